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
