# SPDX-License-Identifier: Apache-2.0
"""Every Python reader of files that somebody else may have written, fed with damaged ones.

python -m harm.readers --runs 1000000 --out build/figures/fuzz-python.json

Each input is a valid file with some bytes, numbers or values changed, from a seed that is its number: a run that was
interrupted goes on where it stopped, and `--only NAME --from N --runs 1` repeats one. A reader may refuse an input with
an error that it promises and that names the file; anything else is a fault. tests/python/test_fuzz_readers.py has
Hypothesis choose inputs for the same readers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
from support.big_run import write_run
from support.figures import write

from powerccl.errors import PowercclError
from powerccl.traces import records

HUNG_S = 20
ROOT = Path(__file__).resolve().parents[2]
WHOLE = "report"  # reads a whole folder, some ten times slower than any other


@dataclass(frozen=True)
class Reader:
    """`read` is given a file called `file` with one input."""

    name: str
    file: str
    seeds: tuple[bytes, ...]
    read: Callable[[Path], object]


class BrokenPromiseError(Exception):
    """A reader failed in a way that it does not promise."""


def feed(reader: Reader, path: Path, data: bytes) -> bool:
    """Give a reader one input; whether it took it.

    Raises:
        BrokenPromiseError: its error is none that it promises, or does not name the file.
    """
    path.write_bytes(data)
    try:
        reader.read(path)
    except (PowercclError, OSError, ValueError, msgspec.MsgspecError) as error:
        if isinstance(error, UnicodeError):
            raise BrokenPromiseError(f"{type(error).__name__}: {error}") from error
        if path.name not in str(error):
            raise BrokenPromiseError(f"does not name the file: {type(error).__name__}: {error}") from error
        return False
    except (MemoryError, RecursionError, Exception) as error:
        raise BrokenPromiseError(f"{type(error).__name__}: {error}") from error
    return True


NUMBERS = b"0 -1 1e400 -0 NaN 9223372036854775807 9223372036854775808 -9223372036854775809".split()
WORDS = (
    *NUMBERS,
    b"18446744073709551616",
    b"1e-320",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b'"\\ud800"',
    b"\x00",
    b"\xff\xfe",
    b"1e308",
)
WHOLE_NUMBERS = (0, 1, 2, 63, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, 1 << 63)


def damaged(seeds: tuple[bytes, ...], chance: random.Random) -> bytes:
    """A seed with a few changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not data:
            break
        at = chance.randrange(len(data))
        what = chance.randrange(9)
        if what == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            data[at : at + chance.choice((1, 2, 8))] = chance.randbytes(chance.choice((1, 2, 8)))
        elif what == 2:
            del data[at : at + chance.choice((1, 4, 64, len(data)))]
        elif what == 3:
            data[at:at] = data[at : at + chance.choice((1, 16, 256))]
        elif what == 4:  # a number or word of text
            found = list(re.finditer(rb"-?\d[\d.]*|\"[^\"]*\"", data[:65536]))
            if found:
                token = chance.choice(found)
                data[token.start() : token.end()] = chance.choice(WORDS)
        elif what == 5:  # a field of a record
            number = chance.choice(WHOLE_NUMBERS) + chance.randrange(-1, 2)
            at -= at % 8
            data[at : at + 8] = (number % (1 << 64)).to_bytes(8, "little")
        elif what == 6:
            at -= at % 4
            data[at : at + 4] = chance.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000)).to_bytes(4, "little")
        elif what == 7:
            data[at:at] = chance.choice((b"[" * 3000, b'{"a":' * 1500, b",", b"\n", b"#", b"\x1b]0;x\x07", b"=1+1"))
        else:
            other = chance.choice(seeds)
            cut = chance.randrange(len(other) + 1)
            data[at:] = other[cut:]
    return bytes(data[: 1 << 20])


def damaged_json(seeds: tuple[bytes, ...], chance: random.Random) -> bytes:
    """A document with values of other kinds in places; now and then changed as bytes."""
    seed = chance.choice(seeds)
    if chance.random() < 0.3:
        return damaged(seeds, chance)
    try:
        document = json.loads(seed)
    except ValueError:
        return damaged(seeds, chance)
    for _ in range(chance.choice((1, 1, 2, 5))):
        places: list[tuple[Any, Any]] = []
        _places(document, places)
        if not places:
            break
        holder, key = chance.choice(places)
        if chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = chance.choice(
                (
                    None,
                    True,
                    "",
                    "\x1b[31m",
                    "\ud800",
                    0,
                    -1,
                    1 << 63,
                    -(1 << 70),
                    1e308,
                    [],
                    {},
                    [[]],
                    {"a": 1},
                    0.5,
                    10**30,
                )
            )
    return json.dumps(document).encode()


def _places(value: Any, into: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(items)[:200]:
        into.append((value, key))
        _places(each, into)


def _trace(kinds: tuple[int, ...]) -> bytes:
    """A trace with some records of each of these kinds."""
    header = np.zeros(1, records.HEADER)
    rows = []
    for number, kind in enumerate(kinds * 3):
        row = np.zeros(1, records.LAYOUTS[kind])
        row["kind"] = kind
        for name in records.LAYOUTS[kind].names or ():
            if name.endswith("_ns"):
                row[name] = 1_000_000 * (number + 1) + len(name)
        rows.append(row.view(records.RECORD))
    for name, value in {
        "magic": records.MAGIC,
        "version": records.VERSION,
        "header_bytes": records.HEADER_BYTES,
        "record_bytes": records.RECORD_BYTES,
        "nranks": 2,
        "start_ns": 1,
        "committed": len(rows),
        "host": b"node1",
        "gpu_uuid": b"GPU-1",
        "library": b"mpich 5",
    }.items():
        header[name] = value
    return header.tobytes().ljust(records.HEADER_BYTES, b"\0") + b"".join(row.tobytes() for row in rows)


CPU = b"# host: node1\ntime_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n" + b"".join(
    b"%d,package-0,%d,-1,-1\n%d,cpu,-1,%d,%d\n" % (at * 10**7, at * 9, at * 10**7, at * 3, at * 5)
    for at in range(1, 30)
)
RULES = (
    b"collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks\nallreduce,0,65536,tree,ll,2,1,-1\n"
)
TUNED = {
    "schema_version": 1, "name": "a", "gpu": "T4", "ranks": 8, "nodes": 1, "nccl": "2.28.9", "links": ["pcie"],
    "objective": "time", "variables": {"NCCL_ALGO": "Ring"}, "confirmed": [],
    "rules": [{"pattern": "all_reduce", "algorithm": "ring", "protocol": "ll"}],
}  # fmt: skip
SWEEP = {
    "schema": 1, "mode": "sweep", "finished": True, "version": "1", "host": "a", "gpu": "T4", "ranks": 2,
    "results": [
        {"type": "point", "pattern": "all_reduce", "size_bytes": 1 << size, "time_us": 9.5, "time_low_us": 9.0,
         "time_high_us": 10.0, "busbw_gbs": 3.1, "iterations": 20, "watts_per_gpu": 70.0, "joules_per_gpu": 0.1,
         "ranks": 2}
        for size in (10, 20)
    ],
}  # fmt: skip
STEPS = {
    "iterations": [{"start_ns": 10, "end_ns": 20, "exposed_ms": 1.0}, {"start_ns": 20, "end_ns": 30}],
    "tokens_per_iteration": 7,
}
KINETO = {
    "distributedInfo": {"rank": 0},
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 1000.0 + at * 1000, "dur": 100.0 + at}
        for at in range(12)
        for name in ("ncclDevKernel_AllReduce", "gemm")
    ],
}


def _shortened(profile: bytes) -> bytes:
    """A platform profile with some of its 1,500 points: damage lands where it matters, and many times as often."""
    found = json.loads(profile)
    found["points"], found["overhead_samples"] = found["points"][::240], found["overhead_samples"][::30]
    return json.dumps(found).encode()


def readers(folder: Path) -> dict[str, Reader]:
    """All of them, by name; `folder` is where valid files are made."""
    from powerccl.analysis.findings import SUMMARY_FILE, read_summary, write_summary
    from powerccl.analysis.kineto import read_kineto
    from powerccl.analysis.summary import summarise
    from powerccl.compare.sources import read_member
    from powerccl.live.run_folder import LiveRun, LiveSamples, LiveTrace
    from powerccl.platforms.catalog import BUILTIN
    from powerccl.platforms.measurements import read_bench_lines
    from powerccl.platforms.policy_table import policy_table
    from powerccl.platforms.rules import read_rules
    from powerccl.platforms.store import load_profile
    from powerccl.platforms.tuned import load_tuned
    from powerccl.study.worlds import read_steps, read_sweep
    from powerccl.traces import tables
    from powerccl.traces.cpu import read_cpu
    from powerccl.traces.folder import RunData, read_info, read_run
    from powerccl.traces.power import read_power
    from powerccl.traces.rank import read_rank

    run = write_run(folder / "run", 40, 2)
    trace = (run / "rank-0.trace").read_bytes()
    power = next(run.glob("power-*.csv")).read_bytes()
    write_summary(summarise(read_run(run)), folder / SUMMARY_FILE)
    profile = min(BUILTIN.glob("*.json"), key=lambda path: path.stat().st_size)
    kernels = tables.kernels(read_run(run))
    every = _trace(tuple(records.LAYOUTS))
    mpi = _trace((records.MPI_CALL, records.MPI_TOTAL, records.PROCESS, records.COMM))

    def info(path: Path) -> None:
        data = RunData(path.parent)
        read_info(data)
        if data.info is None:
            raise ValueError(data.problems[0])

    def named(read: Callable[[Path], object]) -> Callable[[Path], None]:
        """As folder._read_each does: it puts the file's name in front of a reader's text."""

        def wrapped(path: Path) -> None:
            try:
                read(path)
            except UnicodeError:
                raise
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                raise ValueError(f"{path.name}: {error}") from error

        return wrapped

    def live_trace(path: Path) -> None:
        follower = LiveTrace(path)
        for _ in range(2):
            follower.read()
        follower.close()
        if follower.problem:
            raise ValueError(follower.problem)

    def live_samples(path: Path) -> None:
        follower = LiveSamples(path)
        follower.read()
        if follower.problem:
            raise ValueError(follower.problem)

    def live_info(path: Path) -> None:
        follower = LiveRun(path.parent)
        follower.read_info()
        if follower.problems:
            raise ValueError(follower.problems[0])

    def table(path: Path) -> None:
        from powerccl.files import read_bytes

        read_rules(read_bytes(path).decode("utf-8", "replace"), str(path))

    def platform(path: Path) -> None:
        policy_table(load_profile(str(path)))

    lines = b"\n".join(
        json.dumps(each).encode()
        for each in ({"type": "header", "schema": 1, **SWEEP, "results": []}, *SWEEP["results"])  # type: ignore[misc]
    )
    every_reader = [
        Reader("run_json", "run.json", ((run / "run.json").read_bytes(),), info),
        Reader("live_run_json", "run.json", ((run / "run.json").read_bytes(),), live_info),
        Reader("rank_trace", "rank-0.trace", (trace, every), named(read_rank)),
        Reader("mpi_trace", "mpi-0.trace", (mpi, every), named(read_rank)),
        Reader("live_trace", "rank-0.trace", (trace, every), live_trace),
        Reader("power_csv", "power-a.csv", (power[:4096], power[:300]), named(read_power)),
        Reader("cpu_csv", "cpu-a.csv", (CPU,), named(read_cpu)),
        Reader("live_samples", "power-a.csv", (power[:4096], CPU), live_samples),
        Reader("platform_profile", "a.json", (_shortened(profile.read_bytes()),), platform),
        Reader("tuner_table", "a.csv", (RULES,), table),
        Reader("tuned_profile", "tuned.json", (json.dumps(TUNED).encode(),), lambda path: load_tuned(str(path))),
        Reader("summary_json", SUMMARY_FILE, ((folder / SUMMARY_FILE).read_bytes(),), named(read_summary)),
        Reader("sweep_json", "sweep.json", (json.dumps(SWEEP).encode(), lines), read_member),
        Reader("sweep_lines", "sweep.jsonl", (lines,), read_sweep),
        Reader("bench_lines", "bench.jsonl", (lines,), read_bench_lines),
        Reader("steps_json", "job.json", (json.dumps(STEPS).encode(),), read_steps),
        Reader(
            "kineto",
            "kineto.json",
            (json.dumps(KINETO).encode(),),
            lambda path: read_kineto(path, None, kernels, {0: 0}),
        ),
    ]
    return {reader.name: reader for reader in every_reader}


def whole_run(folder: Path) -> Reader:
    """A report of a run folder, in each input one of its files damaged. `file` is a place holder."""
    from powerccl.analysis.report import report
    from powerccl.console import Console
    from powerccl.reports.report import print_report

    run = write_run(folder / "whole", 40, 2)
    (run / "cpu-node1.csv").write_bytes(CPU)
    (run / "mpi-0.trace").write_bytes(_trace((records.MPI_CALL, records.MPI_TOTAL, records.PROCESS, records.COMM)))
    (run / "rank-1.trace").write_bytes(_trace(tuple(records.LAYOUTS)))
    valid = {path.name: path.read_bytes() for path in run.iterdir()}
    sink = open("/dev/null", "w")  # noqa: SIM115, PTH123 - for as long as the process
    console = Console(file=sink, width=120)

    def read(path: Path) -> None:
        chance = random.Random(path.read_bytes())
        name = chance.choice(sorted(valid))
        change = damaged_json if name.endswith(".json") else damaged
        (run / name).write_bytes(change((valid[name],), chance))
        try:
            print_report(console, report(run).findings)
        finally:
            (run / name).write_bytes(valid[name])

    return Reader(WHOLE, "number", (b"0",), read)


def input_of(reader: Reader, number: int) -> bytes:
    """The input of this number."""
    chance = random.Random(f"{reader.name} {number}")
    if reader.name == WHOLE:
        return str(number).encode()
    as_json = reader.file.endswith(".json") and chance.random() < 0.6
    return (damaged_json if as_json else damaged)(reader.seeds, chance)


def _hung(_: int, __: FrameType | None) -> None:
    raise BrokenPromiseError(f"did not end within {HUNG_S} s")


def work(name: str, begin: int, count: int, faults: Any) -> None:
    """Inputs begin to begin + count, in this process; `faults` is a queue that takes what came of them."""
    signal.signal(signal.SIGALRM, _hung)
    taken = 0
    with tempfile.TemporaryDirectory(prefix="powerccl-fuzz-", dir=_memory()) as made:
        folder = Path(made)
        reader = whole_run(folder) if name == WHOLE else readers(folder)[name]
        path = folder / reader.file
        for number in range(begin, begin + count):
            data = input_of(reader, number)
            signal.setitimer(signal.ITIMER_REAL, HUNG_S)
            try:
                taken += feed(reader, path, data)
            except BrokenPromiseError as error:
                faults.put((number, str(error)[:300]))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    faults.put((-1, (taken, peak_mib())))


def peak_mib() -> float:
    """The most memory that this process has had. ru_maxrss has its parent's in it, from before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def fuzz(name: str, begin: int, count: int) -> tuple[int, float, list[tuple[int, str]]]:
    """Feed a reader in a process of its own: inputs taken, peak MiB, and faults by the input's number."""
    context = multiprocessing.get_context("spawn")
    faults = context.SimpleQueue()
    process = context.Process(target=work, args=(name, begin, count, faults))
    process.start()
    found: list[tuple[int, str]] = []
    while True:
        while faults.empty():
            if not process.is_alive() and faults.empty():
                return 0, 0.0, [*found, (-1, f"the process ended with {process.exitcode}")]
            time.sleep(0.02)
        number, told = faults.get()
        if number == -1:
            process.join()
            return told[0], told[1], found
        found.append((number, told))


NAMES = (
    *("run_json", "live_run_json", "rank_trace", "mpi_trace", "live_trace", "power_csv", "cpu_csv", "live_samples"),
    *("platform_profile", "tuner_table", "tuned_profile", "summary_json", "sweep_json", "sweep_lines"),
    *("bench_lines", "steps_json", "kineto", WHOLE),
)


def main() -> int:
    """Go on with the readers that have been fed least, a batch each in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs for each reader in all")
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--from", dest="begin", type=int, help="the first input's number, instead of where it stopped")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=[name for name in NAMES if name != WHOLE])
    parser.add_argument("--out", type=Path, default=ROOT / "build/figures/fuzz-python.json")
    asked = parser.parse_args()
    kept: dict[str, dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    failed = False
    while True:
        done = {name: int(kept.get(name, {}).get("runs", 0)) for name in asked.only}
        name = min(asked.only, key=lambda each: done[each])
        begin = done[name] if asked.begin is None else asked.begin
        count = min(asked.batch, asked.runs - (done[name] if asked.begin is None else 0))
        if count <= 0:
            break
        started_s = time.monotonic()
        taken, peak_mib, faults = fuzz(name, begin, count)
        for number, text in faults[:20]:
            print(f"{name} {number}: {text}", file=sys.stderr)
        failed |= bool(faults)
        if asked.begin is not None:
            break
        if faults and faults[-1][0] == -1:
            break
        before = kept.get(name, {})
        kept[name] = {
            "runs": done[name] + count,
            "taken": before.get("taken", 0) + taken,
            "faults": before.get("faults", 0) + len(faults),
            "peak_mib": round(max(before.get("peak_mib", 0.0), peak_mib), 1),
            "seconds": round(before.get("seconds", 0.0) + time.monotonic() - started_s, 1),
        }
        write(asked.out, dict(sorted(kept.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
