#!/usr/bin/env python3
"""MPI's collectives over two networks on one machine, for `powerccl compare`: two-networks.py OUT.

Network namespaces stand for two hosts; the veth pair between them sends at 10 Gbit/s, then at 1 Gbit/s, in turns.
Needs root. Only its own namespaces are touched, and they go when it ends, however it ends. No delay is added: the two
networks differ by their rate alone. `--figures FILE --guide PAGE` also
writes what docs/guides/compare-two-networks.md quotes.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests")]

from evidence.networks.published import write_guide
from evidence.networks.sweeps import TESTS, measure, mpich, name
from support.figures import Figures, about, spread, write
from support.namespaces import BURST_BYTES, NetworksError, alone

from powerccl.launch.native import BENCH_MPI, find_native

PATTERNS = {"allreduce": "all_reduce", "reduce_scatter": "reduce_scatter", "latency": "send_receive"}


def medians(files: list[Path]) -> dict[tuple[str, int], list[float]]:
    """(test, bytes): each round's median, us."""
    found: dict[tuple[str, int], list[float]] = {}
    for path in files:
        for row in json.loads(path.read_text())["results"]:
            found.setdefault((row["test"], row["size_bytes"]), []).append(row["median_us"])
    return found


def figures(files: dict[int, list[Path]]) -> Figures:
    """Study D's rows: latency, time at the largest size, how many times the bandwidth (over sizes, not rounds)."""
    fast, slow = max(files), min(files)
    times = {mbit: medians(paths) for mbit, paths in files.items()}
    found = {}
    for test in TESTS:
        sizes = sorted(size for each, size in times[fast] if each == test)
        stem = f"networks.{PATTERNS[test]}"
        for mbit in files:
            word = name(mbit).replace(" Gbit/s", "gbit").replace(" Mbit/s", "mbit")
            for size in (sizes[0], sizes[-1]):
                found[f"{stem}.{word}.{size}B.us"] = spread(times[mbit][test, size], "us")
        for what, size in (("smallest", sizes[0]), ("largest", sizes[-1])):
            both = zip(times[fast][test, size], times[slow][test, size], strict=True)
            found[f"{stem}.{what}.change_pct"] = spread([100 * (one / other - 1) for one, other in both], "%")
        # Smaller messages fit into what the shaper lets through at once.
        large = [size for size in sizes if size >= 8 * BURST_BYTES]
        middle = {rate: [statistics.median(each[test, size]) for size in large] for rate, each in times.items()}
        factors = [lame / quick for lame, quick in zip(middle[slow], middle[fast], strict=True)]
        found[f"{stem}.from_1MiB.bandwidth_factor"] = spread(factors, "times")
    return found


def main() -> None:
    """Measure, print the command that compares, and write figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mbit", default="10000,1000", help="rates, Mbit/s (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="few sizes up to 4 MiB, few iterations: to try it")
    parser.add_argument("--figures", type=Path, help="such as evidence/results/networks-2core.json")
    parser.add_argument("--guide", type=Path, help="page whose table to renew: docs/guides/compare-two-networks.md")
    parser.add_argument("--conditions", default="", help="what else the machine did, for --figures")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.guide and not options.figures:
        parser.error("--guide goes with --figures")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through `finally`
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    mbits = [int(each) for each in options.mbit.split(",")]
    began = time.monotonic()
    try:
        if not options.inside:
            sys.exit(alone([sys.executable, __file__, *sys.argv[1:], "--inside"]))
        files = measure(
            find_native().path(BENCH_MPI), mpich(), mbits, options.rounds, out, options.short,
            lambda line: print(line, file=sys.stderr),
        )  # fmt: skip
    except NetworksError as error:
        sys.exit(f"error: {error}")
    # The slower one first: it is what the other is told against, as in study D.
    sides = [
        f"{name(mbit).replace(' ', '').removesuffix('/s')}={','.join(map(str, files[mbit]))}" for mbit in sorted(mbits)
    ]
    print("powerccl compare " + " ".join(sides))
    if options.figures:
        first = json.loads(files[mbits[0]][0].read_text())
        rates = " and ".join(name(mbit) for mbit in mbits)
        rapl = any(Path("/sys/class/powercap").glob("intel-rapl:*"))
        conditions = (
            f"veth between two network namespaces, {rates} by tbf at both ends, no added delay; "
            f"{first['mpi_version']}; {options.rounds} rounds in turns, {time.monotonic() - began:.0f} s; one rank a "
            f"host, both on this machine's cores. {options.conditions}"
        )
        command = " ".join(["evidence/scripts/two-networks.py", *(each for each in sys.argv[1:] if each != "--inside")])
        power = "RAPL is here, but no part of this sweep" if rapl else "not read: no RAPL on this machine"
        found = figures(files)
        write(options.figures, found, **about(command, conditions.strip()), power=power)
        if options.guide:
            write_guide(options.guide, found)


if __name__ == "__main__":
    main()
