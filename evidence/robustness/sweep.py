"""Many machines, jobs and policies on all cores: what the scripts that simulate policies have in common."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from evidence.robustness.jobs import Job
from evidence.robustness.machines import Machine
from evidence.robustness.trials import Length, Trial, try_out

from powerccl.launch.native import find_native


def read_rows(path: Path | None) -> dict[tuple[str, str], list[Trial]]:
    """Trials by machine and job, as an earlier call left them."""
    found: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for line in path.read_text().splitlines() if path and path.exists() else ():
        trial = Trial(**json.loads(line))
        found[trial.machine, trial.job].append(trial)
    return found


def try_all(
    wanted: list[tuple[Machine, Job]],
    policies: list[str],
    rows: Path | None = None,
    length: Length | None = None,
    at_once: int | None = None,
) -> Iterator[list[Trial]]:
    """Of each of `wanted` in its order a trial of each policy; none where the simulator failed, which stderr says.

    `rows`: has a line of JSON for each trial; what is there is not simulated again.
    `at_once`: simulations that run side by side; None: one for each core.
    """
    program, kept = Path(find_native().root) / "bin/powerccl-sim", read_rows(rows)

    def one(each: tuple[Machine, Job]) -> tuple[list[Trial], bool]:
        machine, job = each
        known = kept.get((machine.name, job.name), [])
        if [trial.policy for trial in known] == policies:
            return known, False
        try:
            return try_out(program, machine, job, policies, length), True
        except Exception as error:  # of one row: the others are kept
            print(f"{machine.name}, {job.name}: {error}"[:300], file=sys.stderr)
            return [], False

    with ThreadPoolExecutor(at_once or os.cpu_count()) as pool:
        for trials, new in pool.map(one, wanted):
            if rows and new:
                with rows.open("a") as file:
                    file.writelines(json.dumps(asdict(trial)) + "\n" for trial in trials)
            yield trials
