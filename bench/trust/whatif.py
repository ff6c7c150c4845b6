# SPDX-License-Identifier: Apache-2.0
"""Jobs without iterations: what `whatif` promises of `auto`, and what it manages in the real run."""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from bench.figures import Figures, count
from bench.trust import fault
from bench.trust.checks import strict_json
from bench.trust.jobs import TOGETHER, Job, powerccl, record

from powerccl.launch.native import NativeFiles

JOBS = 28
LEAST = 20  # that must be refused or predicted
PROMISE_PCT = 0.5  # less is within what any prediction may be off
OPERATIONS = (25, 60)
PATTERNS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def job(seed: int, policy: str) -> Job:
    """One pass over operations drawn at random: nothing comes again in the same order."""
    chance = random.Random(seed)
    lines = ["streams comm"]
    for _ in range(chance.randint(*OPERATIONS)):
        if chance.random() < 0.5:
            lines.append(f"compute {chance.uniform(1, 30):.2f}")
        lines.append(f"{chance.choice(PATTERNS)} {chance.choice((1, 2, 4, 8, 12, 16, 25))}M on comm")
        if chance.random() < 0.5:
            lines.append("wait comm on compute")
    file = f"once-{seed}.scn"
    command = ("powerccl-bench", "scenario", file, "--iterations", "1", "-w", "0", "-g", "4")
    return Job("t4x8", command, policy, (), {file: "\n".join([*lines, ""])})


def managed(run: Path) -> bool:
    """Whether a real run's policy ever lowered a clock.

    Raises:
        OSError: it left no summary.
    """
    outcome = json.loads((run / "summary.json").read_text())["policy_outcome"]
    return bool(outcome and (outcome["managed"] or outcome["clock_mhz"]))


def case(native: NativeFiles, seed: int, folder: Path) -> list[str] | None:
    """Promises of one job that its real run does not keep; None: `whatif` failed otherwise than it should.

    It should refuse a job without iterations, which promises nothing.
    """
    seen = record(native, job(seed, "observe"), folder, f"observe-{seed}")
    file = folder / f"whatif-{seed}.json"
    said = powerccl(native, ["whatif", seen, "--platform", "t4x8", "--json", file], folder)
    if said.code == 1 and "cannot be simulated" in said.err:
        return []
    if said.code != 0:
        print(f"job {seed} is refused: {said.err[-300:]}", file=sys.stderr)
        return None
    rows = {row["policy"]: row for row in strict_json(file.read_text())["policies"]}
    row = rows.get("auto")
    if row is None:
        raise RuntimeError(f"whatif tells nothing of auto: {list(rows)}")
    saved = (row["saved_pct"] or {}).get("value") or 0
    if saved < PROMISE_PCT or managed(record(native, job(seed, "auto"), folder, f"auto-{seed}")):
        return []
    return [f"job {seed}: auto is promised {saved:.1f} % and manages nothing"]


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All jobs."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        all_of_them = list(pool.map(lambda seed: case(native, seed, folder), range(JOBS)))
    results = [each for each in all_of_them if each is not None]
    if len(results) < LEAST:
        raise RuntimeError(f"only {len(results)} of {JOBS} jobs were predicted")
    for text in chain.from_iterable(results):
        fault(text)
    print(f"{len(results)} jobs, {sum(map(len, results))} promises", file=sys.stderr)
    return {"trust.whatif.promised_for_nothing": count(sum(bool(each) for each in results), len(results))}
