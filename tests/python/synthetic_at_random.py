# SPDX-License-Identifier: Apache-2.0
"""Run folders at random: ranks, hosts, patterns, sizes, power, counters and intervals by a seed. No powerccl in it."""

from __future__ import annotations

import random
from pathlib import Path

import synthetic
from synthetic import GPU_AHEAD_NS, HOST, MS, TraceWriter, mpi_run, write_info, write_power

KIB = 1024


def synthetic_run(folder: Path, seed: int) -> Path:
    """A run of NCCL, now and then of MPI."""
    chance = random.Random(seed)
    if chance.random() < 0.15:
        return mpi_run(folder, ranks=chance.choice((2, 3, 5, 8)), end_ns=chance.randrange(1500, 6000) * MS)
    folder.mkdir(parents=True)
    ranks = chance.choice((1, 2, 2, 3, 4, 8))
    hosts = [HOST] if ranks < 4 or chance.random() < 0.6 else [HOST, "node2"]
    step_ms = chance.choice((20, 50, 110, 400))
    steps = max(3, chance.choice((400, 2000, 5000)) // step_ms)
    kinds = [
        (chance.choice(synthetic.PATTERNS), chance.choice((0, 4, 512, 64 * KIB, 3 << 20, 100 << 20)), chance.random())
        for _ in range(chance.choice((1, 2, 4)))
    ]
    shares = sum(share for *_, share in kinds) / chance.uniform(0.1, 0.8)
    per_host = ranks // len(hosts)
    told = chance.random() < 0.8  # NCCL's plugin learned the GPU's UUID; else its bus id, which hosts have in common
    ends_ns = 0
    for rank in range(per_host * len(hosts)):
        host = hosts[rank // per_host]
        local = rank % per_host
        where = {
            "host": host,
            "gpu_uuid": synthetic.uuid(rank) if told else "",
            "gpu_pci": f"00000000:0{local}:00.0",
            "local_rank": local,
        }
        trace = TraceWriter(rank, per_host * len(hosts), **where, start_ns=5 * MS)
        trace.comm(6 * MS)
        call_id, late_ns = 0, chance.randrange(0, 2 * MS)
        for step in range(steps):
            now = 20 * MS + step * step_ms * MS
            for pattern, size, share in kinds:
                call_id += 1
                length = int(share / shares * step_ms * MS)
                trace.call(call_id, now - 5 * MS, size, pattern, flags=0x40)
                if chance.random() < 0.98:
                    ahead = GPU_AHEAD_NS + rank * 1000
                    trace.kernel(call_id, now + late_ns, now + length, size, pattern, 20_000, ahead)
                now += length + MS
            ends_ns = max(ends_ns, now)
        trace.write(folder)
    end_ns = ends_ns + 10 * MS
    interval_ns = chance.choice((10, 19, 50, 100, 500)) * MS
    interval_ns = min(interval_ns, end_ns // 8 // MS * MS)
    end_ns = -(-end_ns // interval_ns) * interval_ns  # an agent reads the counters when the job starts and ends
    more_ns = chance.choice((0, 1, 2)) * interval_ns
    idle, busy = chance.uniform(30, 100), chance.uniform(100, 600)
    counter = chance.random() < 0.8
    every_ns = interval_ns * chance.choice((0, 2, 5)) if interval_ns <= 50 * MS else 0
    for at, host in enumerate(hosts):

        def watts(gpu: int, now: int, more: int = 40 * at) -> float:
            return busy + more if (now // (step_ms * MS // 2)) % 2 else idle + 5 * gpu

        # An agent samples until after the job's end, unless it is killed with the job.
        path = write_power(folder, per_host, end_ns + more_ns, watts, 1200, interval_ns, counter, every_ns, host=host)
        text = path.read_text()
        for gpu in reversed(range(per_host * bool(at))):  # GPUs of the second host have UUIDs of their own
            text = text.replace(synthetic.uuid(gpu), synthetic.uuid(at * per_host + gpu))
        limits = [f"# gpu{gpu}_power_limit_max_mw: 700000\n" for gpu in range(per_host)]
        path.write_text("".join(limits) + text)
    write_info(folder, end_ns)
    return folder
