# SPDX-License-Identifier: Apache-2.0
"""The joules that Slurm's energy plugin counted for a step (`ConsumedEnergy` of sacct), beside a report's own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from powerccl.errors import PowercclError
from powerccl.quantities import joules

NO_VALUE = 1 << 62  # Slurm's NO_VAL64 and INFINITE64 are above it
LIMIT_S = 20  # an accounting database that is busy answers within seconds


def slurm_energy_line(labels: Mapping[str, str]) -> str:
    """What Slurm counted for the run's step, or job, in a sentence.

    Raises:
        PowercclError: the run is of no Slurm job, or sacct does not answer.
    """
    job = labels.get("slurm_raw_job_id") or labels.get("slurm_job_id", "")
    if not job:
        raise PowercclError("the run names no Slurm job", "--slurm-energy is for runs that were recorded in one")
    step = labels.get("slurm_step_id", "")
    asked = f"{job}.{step}" if step else job
    if not shutil.which("sacct"):
        raise PowercclError("there is no sacct on this host", "report on a host of the cluster")
    cluster = [f"--clusters={labels['slurm_cluster']}"] if "slurm_cluster" in labels else []
    command = ["sacct", "--noheader", "--parsable2", "--format=ConsumedEnergyRaw", f"--jobs={asked}", *cluster]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PowercclError(f"sacct does not answer: {error}", "leave --slurm-energy out") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PowercclError(f"sacct: {said}", "leave --slurm-energy out where Slurm keeps no accounting")
    rows = [int(row) for row in done.stdout.split() if row.isdecimal() and 0 < int(row) < NO_VALUE]
    if not rows:
        return (
            f"Slurm counted no energy for {asked}: its nodes have no energy plugin (AcctGatherEnergyType), or not yet"
        )
    return f"Slurm counted {joules(max(rows))} for {asked} (ConsumedEnergy: whole nodes, as far as its plugin measures)"
