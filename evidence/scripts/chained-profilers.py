#!/usr/bin/env python3
"""Check on real GPUs that a user's own profiler writes the same alone and behind PowerCCL's.

Runs powerccl-bench (all patterns, one size) alone with the profiler and then chained, and compares what it wrote. Of
NVIDIA's Inspector that is its JSON without times and bandwidths, of NVIDIA's example plugin how many events of each
name and kind.
Writes one JSON with what was compared and prints a line for each.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

POOLS = "GROUP_API COLL_API P2P_API KERNEL_LAUNCH GROUP COLL P2P PROXY_CTRL CE_COLL CE_SYNC CE_BATCH PROXY_DETACH"
STATES = {"Idle", "Active", "Sleep", "Wakeup", "Append", "AppendEnd", "ProxyCtrl"}
MEASURED = re.compile(r"time|bw|_ts$|timestamp|pid|dump|version|hostname")  # what differs between any two runs


def without_measures(value: Any) -> Any:
    """Return the document without what is measured."""
    if isinstance(value, dict):
        return {key: without_measures(each) for key, each in value.items() if not MEASURED.search(key.lower())}
    return [without_measures(each) for each in value] if isinstance(value, list) else value


def inspected(folder: Path) -> collections.Counter[str]:
    """Return Inspector's records, as text, with how often each was written."""
    found: collections.Counter[str] = collections.Counter()
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in {".log", ".json", ".jsonl"}:
            for line in path.read_text().splitlines():
                if line.strip():
                    record = without_measures(json.loads(line))
                    record.get("header", {}).pop("id", None)  # of the communicator, new in each run
                    found[json.dumps(record, sort_keys=True)] += 1
    return found


def traced(folder: Path) -> collections.Counter[str]:
    """Return the example plugin's events by name, category and phase.

    Without those of the proxy thread's own states: how often it slept differs between any two runs.
    """
    found: collections.Counter[str] = collections.Counter()
    for path in folder.glob("trace_*.json"):
        text = re.sub(r",\s*$", "", path.read_text().strip().removesuffix("]").strip())
        for event in json.loads(f"{text}]"):
            if event.get("cat") != "PROXY" or event.get("name") not in STATES:
                found[f"{event.get('name')} {event.get('cat')} {event.get('ph')}"] += 1
    return found


# What tells each profiler where to write, and the reader of what it wrote.
PROFILERS: dict[str, tuple[Callable[[Path], dict[str, str]], Callable[[Path], collections.Counter[str]]]] = {
    "inspector": (
        lambda folder: {
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_DUMP_DIR": str(folder),
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",
            "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE": "16384",
            "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE": "16384",
            "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "1",
        },
        inspected,
    ),
    "example": (
        lambda folder: {
            "NCCL_PROFILE_EVENT_MASK": "4095",
            "NCCL_PROFILE_DUMP_FILE": str(folder / "trace"),
            **{f"NCCL_PROFILE_{name}_POOL_SIZE": "400" for name in POOLS.split()},
        },
        traced,
    ),
}


def run(options: argparse.Namespace, environment: dict[str, str], folder: Path) -> str:
    """Run the bench once; return what was wrong."""
    command = [options.bench, "all", "-b", "1M", "-e", "1M", "-n", "8", "-w", "2", "-g", str(options.gpus), "-c", "1"]
    command += ["--no-energy", "--timeout", "60", *(["--nccl", options.nccl] if options.nccl else [])]
    done = subprocess.run(
        command, env=os.environ | environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    right = done.returncode == 0 and re.search(r'"type": "summary", .*"wrong": 0,', done.stdout)
    return "" if right and "powerccl: cannot" not in done.stderr else f"{done.stdout[-800:]}{done.stderr[-800:]}"


def main() -> None:
    """Compare and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--plugin", required=True, help="libpowerccl-nccl.so")
    parser.add_argument("--inspector")
    parser.add_argument("--example")
    parser.add_argument("--nccl", default="")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for name, (variables, read) in PROFILERS.items():
        profiler = getattr(options, name)
        if not profiler:
            continue
        wrote = {}
        for way in ("alone", "again", "chained"):
            with tempfile.TemporaryDirectory() as text:
                folder = Path(text)
                (folder / "run").mkdir()
                environment = {"NCCL_PROFILER_PLUGIN": profiler, **variables(folder)}
                if way == "chained":
                    environment |= {
                        "NCCL_PROFILER_PLUGIN": options.plugin,
                        "POWERCCL_CHAINED_PROFILER": profiler,
                        "LD_PRELOAD": options.plugin,
                        "POWERCCL_RUN_FOLDER": str(folder / "run"),
                        "POWERCCL_CLOCKS": "dry",
                    }
                wrong = run(options, environment, folder)
                if wrong:
                    print(f"{name} {way}: {wrong}")
                wrote[way] = read(folder)
        # A profiler loses records by itself; what two runs alone have in common has to be there behind PowerCCL too.
        alone, again, chained = (wrote[way] for way in ("alone", "again", "chained"))
        lost = ((alone & again) - chained).total()
        more = (chained - (alone | again)).total()
        result[name] = {
            "records": alone.total(),
            "differ_alone": ((alone - again) + (again - alone)).total(),
            "lost_chained": lost,
            "only_chained": more,
            "examples": list((alone & again) - chained)[:10],
        }
        print(f"{name}: {json.dumps({k: v for k, v in result[name].items() if k != 'examples'})}")
    options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
