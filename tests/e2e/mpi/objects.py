# SPDX-License-Identifier: Apache-2.0
"""mpi4py: buffers, pickled objects, collectives of objects."""

import array
import hashlib
import os
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
results: list[object] = []

buffer = array.array("d", [rank + i / 8 for i in range(1000)])
sums = array.array("d", bytes(8000))
if rank == 0:
    time.sleep(0.005)
world.Allreduce(buffer, sums)
results.append(sum(sums))
world.Allreduce(MPI.IN_PLACE, buffer, op=MPI.MAX)
results.append(sum(buffer))

before, after = (rank - 1) % size, (rank + 1) % size
results.append(world.sendrecv({"from": rank, "text": "x" * 100_000}, after, source=before)["from"])
results.append(world.bcast({"root": [1, 2, 3]} if rank == 1 else None, root=1))
results.append(world.gather((rank, "a" * rank), root=size - 1))
results.append(world.alltoall([f"{rank}->{peer}" * (peer + 1) for peer in range(size)]))
results.append(world.allgather({rank: rank * 1.5}))
results.append(world.scatter([[peer] * peer for peer in range(size)] if rank == 0 else None))
results.append(world.allreduce(rank + 1, op=MPI.PROD))

if rank == 0:
    time.sleep(0.003)
    for peer in range(1, size):
        world.send(list(range(peer * 10)), peer, tag=5)
else:
    message = world.mprobe(source=MPI.ANY_SOURCE, tag=5)
    results.append(len(message.recv()))
    request = world.isend("done", 0, tag=6)
    request.wait()
if rank == 0:
    results.append(sorted(world.recv(source=MPI.ANY_SOURCE, tag=6) for _ in range(size - 1)))

part = world.Split(rank % 2, -rank)
results.append(part.allgather(rank))
part.Free()
digest = hashlib.sha256(repr(results).encode()).hexdigest()
os.write(1, f"rank {rank}: {results[0]} {len(results)} {digest}\n".encode())
