# SPDX-License-Identifier: Apache-2.0
"""The demo's training step, replayed on an emulated server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from powerccl.demo.iterations import Training, read_train_result, read_training
from powerccl.demo.job import run_job
from powerccl.errors import PowercclError
from powerccl.launch.native import BENCH, find_native
from powerccl.launch.request import Request
from powerccl.platforms.catalog import BUILTIN

PLATFORM = "t4x8"
MODELS = Path(__file__).parent / "models"  # their scenario files
PROFILE = str(BUILTIN / f"{PLATFORM}.json")


def train(model: str, policy: str, iterations: int, runs: Path, say: Callable[[str], None]) -> Training:
    """Replay a model's step under a policy.

    Raises:
        PowercclError: the job failed, or recorded too little.
        KeyboardInterrupt: a signal ended the job.
    """
    with tempfile.TemporaryDirectory(prefix="powerccl-demo-") as folder:
        written = Path(folder) / "scenario.json"
        program, count = str(find_native().path(BENCH)), ("--iterations", str(iterations))
        request = Request(
            command=[program, "scenario", str(MODELS / f"{model}.scn"), *count, "--json", str(written)],
            policy=policy,
            platform=PROFILE if policy != "observe" else "",
            emulate=PLATFORM,
            overhead="published",
            name=f"{model}-{policy}",
            runs=runs,
            interval_ms=10,
            output="output.log",
        )
        recorded = run_job(request, "powerccl-bench", written, lambda text: say(f"{model} under {policy}: {text}"))
    try:
        return read_training(recorded, read_train_result(recorded / written.name))
    except ValueError as error:
        raise PowercclError(f"{model} under {policy}: {error}", "see `powerccl doctor`") from error
