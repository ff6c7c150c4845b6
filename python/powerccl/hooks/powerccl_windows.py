# SPDX-License-Identifier: Apache-2.0
"""Gives FSDP2's all-gathers outputs in symmetric windows, so that NCCL carries them out by copy engines.

Runs in the job's own Python (3.9 and later) and imports nothing of the package `powerccl`. It uses public interfaces
of PyTorch: `fully_shard`, `FSDPModule.set_custom_all_gather`, `torch.cuda.MemPool`.

A window is registered only when it is proven that all ranks have their outputs at equal offsets. For a while outputs
come from the pool unregistered. Each rank notes their addresses, and then all ranks compare. If anything differs, fails
or is missing, on any rank, everything stays as PyTorch has it on all ranks. docs/decisions has the reasons.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import hashlib
import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

# BYTES@RANKS, several with commas: from how large an output on it gets a window in a group of so many ranks. Groups of
# other numbers get no windows, since ways were not measured there. Without @RANKS: any number.
LEAST_VARIABLE = "POWERCCL_WINDOWS_FROM"
POLICY_VARIABLE, ZERO_CTA = "NCCL_CTA_POLICY", "2"
OUR_POLICY = "POWERCCL_WINDOWS_POLICY"  # set where the policy is ours, which another NCCL below this process may refuse
FIRST_NCCL = (2, 29)  # before, NCCL refuses the zero-CTA policy to communicators made by PyTorch
# All ranks compare after so many outputs for a group, since counting is what they do alike. A large model has some
# hundred a step; if their addresses still changed in the second half, the next one decides.
COMPARE_AFTER = (64, 256, 1024)
# How long a rank waits for the others then. They are at the same gather, so more than a step's time is a rank that does
# not come; the job stands still meanwhile.
PATIENCE = datetime.timedelta(seconds=30)


def install() -> _Finder:
    """Hook the imports of PyTorch, unless POWERCCL_WINDOWS_FROM cannot be read; return what does."""
    hooks = {"torch": _torch_is_there, "torch.distributed.fsdp": _fsdp_is_there}
    finder = _Finder(hooks if wanted() else {})
    sys.meta_path.insert(0, finder)
    return finder


def wanted() -> dict[int, int]:
    """Return what POWERCCL_WINDOWS_FROM says: bytes by the group's ranks, 0 for any; nothing if it cannot be read."""
    least_bytes = {}
    for each in os.environ.get(LEAST_VARIABLE, "").split(","):
        least, _, ranks = each.partition("@")
        if not least.isdigit() or (ranks and not ranks.isdigit()):
            return {}
        least_bytes[int(ranks or 0)] = int(least)
    return least_bytes


_usable = False  # this process's NCCL has what it takes


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a function behind the first import of each module."""

    def __init__(self, wanted: dict[str, Callable[[Any], None]]) -> None:
        self.wanted = dict(wanted)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.wanted:
            return None
        then = self.wanted.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _safely(then, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _safely(then: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return then(*arguments)
    except Exception as error:
        _note("off", f"{type(error).__name__}: {error}")
        return None


_states: dict[str, dict[str, object]] = {}  # of each group, "" is all of it


def _note(state: str, reason: str = "", group: str = "", **more: object) -> None:
    """Write the state into the run folder, for the summary; again when it changes."""
    folder, local = os.environ.get("POWERCCL_RUN_FOLDER"), Path(os.environ.get("POWERCCL_LOCAL_FOLDER", ""))
    if not folder:
        return
    with contextlib.suppress(OSError):  # a host without such a folder, or with another user's
        if local.is_absolute() and local.lstat().st_uid == os.geteuid():
            folder = str(local)
    _states[group] = {"state": state, "reason": reason, **more}
    text = json.dumps({"groups": list(_states.values())})
    with contextlib.suppress(OSError):
        name = f"windows-{os.uname().nodename}-{os.environ.get('RANK', '0')}.json"
        (Path(folder) / name).write_text(text)


def nccl_version() -> tuple[int, ...]:
    """Return the version of the NCCL in this process, which need not be what PyTorch was built with; () if unknown."""
    libraries: list[str | None] = [None]  # what is linked or preloaded
    with Path("/proc/self/maps").open() as maps:
        libraries += sorted({line.split(maxsplit=5)[5].strip() for line in maps if "libnccl.so" in line})
    for library in libraries:
        number = ctypes.c_int()
        try:
            if ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number)) == 0:
                return number.value // 10000, number.value % 10000 // 100, number.value % 100
        except (OSError, AttributeError):
            continue
    return ()


def _torch_is_there(_torch: Any) -> None:
    version = nccl_version()
    if version < FIRST_NCCL:
        shown = ".".join(map(str, version)) or "of an unknown version"
        _note("off", f"copy engines need NCCL {FIRST_NCCL[0]}.{FIRST_NCCL[1]} or newer; this job has NCCL {shown}")
        if os.environ.pop(OUR_POLICY, None):
            os.environ.pop(POLICY_VARIABLE, None)
        return
    global _usable
    _usable = True
    # Before any communicator is made. It concerns collectives on windows alone.
    if POLICY_VARIABLE not in os.environ:
        os.environ.update({POLICY_VARIABLE: ZERO_CTA, OUR_POLICY: "1"})


def _fsdp_is_there(fsdp: Any) -> None:
    if not wanted() or not _usable:
        return
    if not hasattr(getattr(fsdp, "FSDPModule", None), "set_custom_all_gather"):
        _note("off", "this PyTorch has no FSDPModule.set_custom_all_gather")
        return
    original = fsdp.fully_shard

    @functools.wraps(original)
    def fully_shard(module: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(module, *arguments, **keywords)
        for each in module if isinstance(module, (list, tuple)) else [module]:
            _safely(_set_windows, each)
        return result

    # These refuse a module whose all-gather has been replaced: it is put back before.
    for name in ("set_allocate_memory_from_process_group_for_comm", "set_symm_mem_for_comm"):
        if hasattr(fsdp.FSDPModule, name):
            setattr(fsdp.FSDPModule, name, _putting_back(getattr(fsdp.FSDPModule, name)))
    for name in ("torch.distributed.fsdp", "torch.distributed.fsdp._fully_shard"):
        if getattr(sys.modules.get(name), "fully_shard", None) is original:
            vars(sys.modules[name])["fully_shard"] = fully_shard


def _gather_of(module: Any) -> Any:
    """Return what gathers a module's parameters, or None: it has none, or this PyTorch keeps that elsewhere."""
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
    return getattr(getattr(state, "_fsdp_param_group", None), "_all_gather_comm", None)


def _set_windows(module: Any) -> None:
    before = _gather_of(module)
    if type(before).__name__ == "DefaultAllGather":
        module.set_custom_all_gather(WindowAllGather(before))


def _putting_back(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(module: Any, *arguments: Any, **keywords: Any) -> Any:
        gather = _gather_of(module)
        if isinstance(gather, WindowAllGather):
            module.set_custom_all_gather(gather.before)
        return original(module, *arguments, **keywords)

    return method


class WindowAllGather:
    """FSDP2's communication of one module (PyTorch's protocol `AllGather`)."""

    def __init__(self, before: Any = None) -> None:
        self.before = before  # PyTorch's own
        self.windows: Windows | None = None  # of the group, which the first call tells

    def allocate(self, size: Iterable[Any], *, dtype: Any, device: Any) -> Any:
        """Return an empty tensor for an output."""
        import torch

        tensor = None
        if self.windows is not None and dtype.itemsize * _product(size) >= self.windows.least_bytes:
            tensor = self.windows.empty(size, dtype, device)
        return torch.empty(*size, dtype=dtype, device=device) if tensor is None else tensor

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
        """Gather, as PyTorch's own does."""
        import torch.distributed as dist

        if self.windows is None:
            self.windows = _safely(windows_of, group)
        work = dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)
        if self.windows is not None and output_tensor.nbytes >= self.windows.least_bytes:
            self.windows.gathered()
        return work


def _host() -> str:
    """Return what tells hosts apart, in containers too."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _product(size: Iterable[Any]) -> int:
    count = 1
    for each in size:
        count *= int(each)
    return count


_windows: dict[str, list[Windows]] = {}  # by the group's name; those of groups that went before it too


def windows_of(group: Any) -> Windows:
    """Return the windows that all modules of a group share."""
    known = _windows.setdefault(group.group_name, [])
    if not known or known[-1].group is not group:
        known.append(Windows(group, len(known)))
    return known[-1]


class Windows:
    """Outputs of one group: learning, then on or off, alike on all ranks."""

    def __init__(self, group: Any, before: int = 0) -> None:
        """`before`: how many groups of this name there were before, so that none reads an earlier one's verdict."""
        self.group = group
        self.name = f"{group.group_name}.{before}"
        self.state = "learning"
        self.pool: Any = None
        self.failed = ""
        self.placed: list[tuple[int, int]] = []  # address and size of each output so far
        self.outputs = self.compared = 0  # asked for so far, alike on all ranks; and when ranks compared last
        self.sizes: set[int] = set()  # of the outputs that were compared
        least = wanted()
        self.least_bytes = least.get(group.size(), least.get(0, 0))
        if group.size() not in least and 0 not in least:
            known = " and ".join(map(str, sorted(least)))
            self._end(f"ways were measured with {known} ranks, and this group has {group.size()}")

    def empty(self, size: Iterable[Any], dtype: Any, device: Any) -> Any:
        """Return a tensor of the pool, or None: it is to come from where it always comes."""
        import torch

        self.outputs += 1
        # Once registered, a pool that grew would have all ranks register the new part together: it has no reason to.
        late = self.state == "on" and dtype.itemsize * _product(size) not in self.sizes
        if self.state == "off" or self.failed or late:
            return None
        try:
            if self.pool is None:
                self.pool = torch.cuda.MemPool(self.group._get_backend(device).mem_allocator)
                self.device = torch.device(device)
            with torch.cuda.use_mem_pool(self.pool):
                tensor = torch.empty(*size, dtype=dtype, device=device)
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            return None
        if self.state == "learning":
            self.placed.append((tensor.data_ptr(), tensor.nbytes))
        return tensor

    def gathered(self) -> None:
        """An output was gathered. After some of them all ranks compare."""
        if self.state == "learning" and self.outputs in COMPARE_AFTER and self.outputs != self.compared:
            self.compared = self.outputs
            try:
                self._compare()
            except Exception as error:
                self._end(f"{type(error).__name__}: {error}")

    def _compare(self) -> None:
        step, failed = f"places-{self.outputs}", self.failed
        digest, settled, host = "", False, ""
        try:
            host = _host()
            if not failed:
                digest, settled = self._layout()
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        note = {"digest": digest, "settled": settled, "failed": failed, "host": host}
        verdict = self._agree(step, note, self._judge_places)
        if verdict == "on":
            self._register()
        elif verdict != "again":
            self._end(verdict)

    def _judge_places(self, ranks: list[Any]) -> str:
        failed = next((each["failed"] for each in ranks if each["failed"]), "")
        if failed:
            return f"a rank failed: {failed}"
        if len({each["host"] for each in ranks}) > 1:
            return "ranks are on several hosts, where ways were not measured"
        if len({each["digest"] for each in ranks}) > 1:
            return "outputs are not at equal offsets on all ranks"
        if all(each["settled"] for each in ranks):
            return "on"
        if self.outputs < COMPARE_AFTER[-1]:
            return "again"
        return "the addresses of outputs change again and again"

    def _layout(self) -> tuple[str, bool]:
        """Return a digest of the outputs' places within the pool's segments, and whether no new place came lately.

        PyTorch registers a pool's segments one after the other, all ranks together: in the order of their addresses or
        of their making, by its version. So a segment counts as the same on two ranks only if it has both places.
        """
        segments = sorted((each["address"], each["total_size"]) for each in self.pool.snapshot())
        lines = [" ".join(str(size) for _, size in segments)]
        newest, seen, made = 0, set(), dict[int, int]()
        for index, (address, size) in enumerate(self.placed):
            number, start = next(
                (number, start) for number, (start, total) in enumerate(segments) if start <= address < start + total
            )
            lines.append(f"{number} {made.setdefault(start, len(made))} {address - start} {size}")
            if address not in seen:
                seen.add(address)
                newest = index
        self.bytes = sum(size for _, size in segments)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest(), 2 * newest < len(self.placed)

    def _agree(self, step: str, note: object, judge: Callable[[list[Any]], str]) -> str:
        """Return one verdict for all ranks of the group: the group's first rank judges what all have to say.

        Through the job's store and not by a collective, because a rank without this hook would never come to that. The
        verdict is set once: a rank that has waited too long sets another, or learns of the existing one.
        """
        import torch.distributed as dist

        store = dist.distributed_c10d._get_default_store()
        ranks, rank = dist.get_process_group_ranks(self.group), dist.get_rank()
        base = f"powerccl/{self.name}/{step}"
        store.set(f"{base}/{rank}", json.dumps(note))
        try:
            if rank != ranks[0]:
                store.wait([f"{base}/verdict"], 2 * PATIENCE)
                return str(store.get(f"{base}/verdict").decode())
            keys = [f"{base}/{each}" for each in ranks]
            store.wait(keys, PATIENCE)
            verdict = judge([json.loads(store.get(key)) for key in keys])
        except Exception as error:
            verdict = f"not all ranks could compare: {error}"
        return str(store.compare_set(f"{base}/verdict", "", verdict).decode())

    def _register(self) -> None:
        backend, error = self.group._get_backend(self.device), ""
        try:
            backend.register_mem_pool(self.pool, symm=True)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        verdict = self._agree("registered", error, lambda errors: next(filter(None, errors), "on"))
        if verdict == "on":
            self.sizes = {size for _, size in self.placed}
            self.state, self.placed = "on", []
            _note("on", group=self.name, bytes=self.bytes, learned=self.outputs)
            return
        if not error:
            _safely(backend.deregister_mem_pool, self.pool)
        self._end(f"a rank could not register windows: {verdict}")

    def _end(self, reason: str) -> None:
        self.state, self.placed, self.pool = "off", [], None
        _note("off", reason, self.name)
