# SPDX-License-Identifier: Apache-2.0
"""A job that does odd things with communicators: `communicators.py abort` and `communicators.py zero`.

Two ranks in one process, through ctypes, on whatever libcuda.so.1 and libnccl.so.2 the loader finds. Prints `right` if
an all-reduce afterwards still gives the right sums.
"""

from __future__ import annotations

import ctypes
import sys
import time

RANKS = 2
FLOAT32, SUM = 7, 0
cuda = ctypes.CDLL("libcuda.so.1")
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetErrorString.restype = ctypes.c_char_p


def must(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function and end the job if it fails."""
    code = getattr(library, name)(*arguments)
    if code:
        sys.exit(f"{name} failed with {code}")


class Rank:
    """One GPU with a stream and two buffers."""

    def __init__(self, device: int, count: int) -> None:
        self.bytes = 4 * count
        number, self.context, self.stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.send, self.receive = ctypes.c_uint64(), ctypes.c_uint64()
        must(cuda, "cuDeviceGet", ctypes.byref(number), device)
        must(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(self.context), number)
        self.enter()
        must(cuda, "cuStreamCreate", ctypes.byref(self.stream), 1)
        must(cuda, "cuMemAlloc_v2", ctypes.byref(self.send), ctypes.c_size_t(self.bytes))
        must(cuda, "cuMemAlloc_v2", ctypes.byref(self.receive), ctypes.c_size_t(self.bytes))

    def enter(self) -> None:
        """Make this GPU the thread's."""
        must(cuda, "cuCtxSetCurrent", self.context)

    def all_reduce(self, comm: ctypes.c_void_p, count: int) -> None:
        """Enqueue an all-reduce of count floats."""
        self.enter()
        must(
            nccl,
            "ncclAllReduce",
            self.send,
            self.receive,
            ctypes.c_size_t(count),
            FLOAT32,
            SUM,
            comm,
            self.stream,
        )


def communicators() -> list[ctypes.c_void_p]:
    """One communicator a rank."""
    comms = (ctypes.c_void_p * RANKS)()
    must(nccl, "ncclCommInitAll", comms, RANKS, (ctypes.c_int * RANKS)(*range(RANKS)))
    return [ctypes.c_void_p(comm) for comm in comms]


def sums_are_right(ranks: list[Rank], comms: list[ctypes.c_void_p], count: int) -> bool:
    """All-reduce rank + 1 and look at the result."""
    for number, rank in enumerate(ranks):
        rank.enter()
        values = (ctypes.c_float * count)(*[number + 1.0] * count)
        must(cuda, "cuMemcpyHtoD_v2", rank.send, values, ctypes.c_size_t(4 * count))
    must(nccl, "ncclGroupStart")
    for rank, comm in zip(ranks, comms, strict=True):
        rank.all_reduce(comm, count)
    must(nccl, "ncclGroupEnd")
    right = True
    for rank in ranks:
        rank.enter()
        must(cuda, "cuStreamSynchronize", rank.stream)
        values = (ctypes.c_float * count)()
        must(cuda, "cuMemcpyDtoH_v2", values, rank.receive, ctypes.c_size_t(4 * count))
        right = right and set(values) == {sum(range(1, RANKS + 1))}
    return right


def main() -> None:
    """What the command line says."""
    what = sys.argv[1]
    must(cuda, "cuInit", 0)
    large = 16 << 20  # floats: 64 MiB, so that a policy manages it
    ranks = [Rank(device, large) for device in range(RANKS)]
    comms = communicators()
    if what == "abort":
        ranks[0].all_reduce(comms[0], large)  # its peer never comes
        time.sleep(0.3)
        for comm in comms:
            must(nccl, "ncclCommAbort", comm)
        comms = communicators()
    elif what == "zero":
        for _ in range(3):
            must(nccl, "ncclGroupStart")
            for rank, comm in zip(ranks, comms, strict=True):
                rank.all_reduce(comm, 0)
            must(nccl, "ncclGroupEnd")
        for rank in ranks:
            rank.enter()
            must(cuda, "cuStreamSynchronize", rank.stream)
    print("right" if sums_are_right(ranks, comms, 1000) else "wrong", flush=True)
    for comm in comms:
        must(nccl, "ncclCommDestroy", comm)


main()
