# SPDX-License-Identifier: Apache-2.0
"""Random machines and jobs in powerccl-sim."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from evidence.robustness import jobs, machines
from evidence.robustness.trials import Simulator

from powerccl.launch.native import find_native


def a_cluster() -> machines.Machine:
    """The first with 16 GPUs."""
    return next(each for each in (machines.cluster("development", number) for number in range(50)) if each.gpus == 16)


@pytest.mark.parametrize("drawn", [lambda: machines.machine("development", 3), a_cluster], ids=["machine", "cluster"])
def test_a_random_machine_and_job_come_to_the_same_twice(drawn: Callable[[], machines.Machine]) -> None:
    machine = drawn()
    job = jobs.job("development", 3, machine.gpus)
    program = find_native().path("bin/powerccl-sim")
    first, second = (Simulator(program, machine, job).run("auto/slack", 4, 1) for _ in range(2))
    assert len(first.ms) > 10
    assert first == second


def test_a_call_that_stalls_makes_a_job_slower() -> None:
    """Per-call sets clocks several times an iteration, and observe never."""
    program, job = find_native().path("bin/powerccl-sim"), jobs.built_in("exposed")
    ms = {
        (policy, stall_us): Simulator(program, machines.built_in("a", "a100x4", {"set_clock_stall_us": stall_us}), job)
        .run(policy, 4, 1)
        .iteration_ms
        for policy in ("observe", "per-call")
        for stall_us in ("0", "5000")
    }
    assert ms["observe", "0"] == ms["observe", "5000"]
    assert ms["per-call", "5000"] > 1.05 * ms["per-call", "0"]
