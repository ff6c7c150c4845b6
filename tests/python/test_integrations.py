# SPDX-License-Identifier: Apache-2.0
"""Joules of training steps inside a job: powerccl.integrations."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import MS

from powerccl.integrations import StepMeter, meter
from powerccl.integrations.gpu_energy import GpuEnergy

STEP_MS, STEP_JOULES = 600, 2 * (0.15 * 70 + 0.45 * 45)  # of synthetic.training_run: two GPUs
SAID = "powerccl: no joules in the tracker: "


class Clock:
    """The host's clock, which a test moves."""

    def __init__(self) -> None:
        self.now_ns = 1

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(meter, "monotonic_ns", own)
    monkeypatch.setattr(meter, "CLOSE_S", 0.0)
    monkeypatch.setattr(platform, "node", lambda: synthetic.HOST)
    meter._say.cache_clear()
    return own


class Growing:
    """A run folder that is written while its job runs: the agent's samples come `late_ms` after they were taken."""

    def __init__(self, folder: Path, clock: Clock, late_ms: int = 300, **power: Any) -> None:
        self.clock, self.late_ms = clock, late_ms
        synthetic.training_run(folder, iterations=40)
        self.path = folder / f"power-{synthetic.HOST}.csv"
        if power:
            busy = lambda _, now: 70.0 if now % (STEP_MS * MS) < 150 * MS else 45.0  # noqa: E731
            synthetic.write_power(folder, 2, 40 * STEP_MS * MS, busy, **power)
        self.lines = self.path.read_text().splitlines(keepends=True)
        self.environment = {"POWERCCL_RUN_FOLDER": str(folder), "LOCAL_WORLD_SIZE": "2"}

    def at(self, now_ms: int) -> None:
        """Go to a time."""
        self.clock.now_ns = now_ms * MS
        until = (now_ms - self.late_ms) * MS
        kept = [line for line in self.lines if not line[0].isdigit() or int(line.split(",")[0]) <= until]
        self.path.write_text("".join(kept) + self.lines[len(kept)][:30] * (len(kept) < len(self.lines)))

    def steps(self, steps: int, step_meter: StepMeter) -> list[dict[str, float]]:
        """So many steps of 100 tokens a rank; the figures of each window."""
        windows = []
        for step in range(1, steps + 1):
            self.at(step * STEP_MS)
            windows.append(step_meter.step(tokens=100))
        return [window for window in windows if window]


@pytest.mark.parametrize(
    "power", [{}, {"counter_every_ns": 100 * MS}, {"counter": False}], ids=["counter", "slow-counter", "power"]
)
def test_windows_add_up_to_the_run(tmp_path: Path, clock: Clock, power: dict[str, Any]) -> None:
    run = Growing(tmp_path / "run", clock, **power)
    own = StepMeter(environment=run.environment)
    windows = run.steps(38, own)
    assert len(windows) > 15
    for window in windows:
        assert window["powerccl/joules_per_step"] == pytest.approx(STEP_JOULES, rel=0.04)
        assert window["powerccl/joules_per_token"] == pytest.approx(window["powerccl/joules_per_step"] / 200)
        assert window["powerccl/step_s"] == pytest.approx(STEP_MS / 1e3)
    run.late_ms = 0
    run.at(39 * STEP_MS)
    means = own.close()
    # Power samples of 20 ms miss when within these power changes.
    close = 0.005 if power.get("counter", True) else 0.01
    assert means["powerccl/mean_joules_per_step"] == pytest.approx(STEP_JOULES, rel=close)
    assert means["powerccl/mean_watts"] == pytest.approx(STEP_JOULES / STEP_MS * 1e3, rel=close)
    assert own.step() == own.close() == {}


def test_a_counter_that_is_read_seldom_follows_power() -> None:
    energy = GpuEnergy({"interval_ns": str(20 * MS)})
    joules = 0.0
    for tick in range(1000):  # 20 ms each; the counter is read every 2 s
        watts = 100 if tick % 50 < 25 else 300
        energy.take(tick * 20 * MS, int((5000 + joules) * 1e6) if tick % 100 == 0 else -1, watts * 1000)
        joules += watts * 0.02
    first, middle, last = (energy.at(tick * 20 * MS) for tick in (100, 125, 150))
    assert first and middle and last
    assert middle - first == pytest.approx(50, rel=0.05)
    assert last - middle == pytest.approx(150, rel=0.05)
    assert energy.at(901 * 20 * MS) is None  # not before the counter is read again


def test_a_counter_that_jumps_begins_again() -> None:
    energy = GpuEnergy({"interval_ns": str(20 * MS)})
    for tick in range(10):
        energy.take(tick * 20 * MS, tick * 2_000_000 + (10**12 if tick > 5 else 0), 100_000)
    assert energy.breaks == 2 and energy.at(5 * 20 * MS) is None
    assert energy.at(9 * 20 * MS) == pytest.approx(10**6 + 18)


def test_a_counter_that_stands_still_leaves_it_to_power() -> None:
    energy = GpuEnergy({"interval_ns": str(20 * MS)})
    for tick in range(300):
        energy.take(tick * 20 * MS, 500_000_000, 100_000)
    later, last = energy.at(200 * 20 * MS), energy.at(299 * 20 * MS)
    assert later is not None and last is not None
    assert last - later == pytest.approx(99 * 0.02 * 100)


def test_a_rank_that_comes_late_begins_a_new_window(tmp_path: Path, clock: Clock) -> None:
    run = Growing(tmp_path / "run", clock)
    late = tmp_path / "run" / "rank-1.trace"
    own = StepMeter(environment=run.environment)
    data = late.read_bytes()
    late.unlink()
    alone = run.steps(10, own)
    assert alone[-1]["powerccl/joules_per_step"] == pytest.approx(STEP_JOULES / 2, rel=0.04)
    late.write_bytes(data)
    windows = []
    for step in range(11, 20):
        run.at(step * STEP_MS)
        windows.append(own.step(tokens=100))
    shown = [window for window in windows if window]
    assert all(window["powerccl/joules_per_step"] == pytest.approx(STEP_JOULES, rel=0.04) for window in shown[1:])


def test_what_the_policy_costs(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Growing(tmp_path / "run", clock)
    trace = synthetic.TraceWriter(0, 2, pid=os.getpid())
    trace.comm(1 * MS)
    trace.budget(1 * MS, slowdown_ppm=(4_000, 1_000, 7_000))
    trace.write(tmp_path / "run")
    windows = run.steps(10, StepMeter(environment=run.environment))
    assert {window["powerccl/slowdown_pct"] for window in windows} == {0.4}


@pytest.mark.parametrize("damage", ["gone", "fifo", "noise", "no-samples"])
def test_a_fault_costs_one_line(damage: str, tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    run = Growing(tmp_path / "run", clock)
    own = StepMeter(environment=run.environment)
    run.at(STEP_MS)
    own.step()
    if damage == "gone":
        (tmp_path / "run").rename(tmp_path / "elsewhere")
    elif damage == "fifo":
        run.path.unlink()
        os.mkfifo(run.path)
    elif damage == "noise":
        run.path.write_bytes(os.urandom(1 << 18))
    elif damage == "no-samples":
        run.path.write_text("".join(run.lines[:12]))
    for step in range(2, 20):
        clock.now_ns = step * STEP_MS * MS
        assert own.step(tokens="many") == {}  # type: ignore[arg-type]
    assert own.close() == {}
    said = capsys.readouterr().err
    assert said.startswith(SAID) and said.count("\n") == 1


def test_without_a_driver_it_says_so(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    own = StepMeter(environment={})
    assert own.step(tokens=1) == own.close() == {}
    assert capsys.readouterr().err.startswith(SAID)


def test_it_imports_nothing_that_a_job_lacks() -> None:
    code = "import sys, powerccl.integrations; print([n for n in ('polars', 'numpy', 'torch') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class FakeMeter(StepMeter):
    """Has figures at every step."""

    def __init__(self) -> None:
        super().__init__(environment={})
        self.tokens: list[float | None] = []

    def step(self, tokens: float | None = None) -> dict[str, float]:
        self.tokens.append(tokens)
        return {"powerccl/joules_per_step": float(len(self.tokens))}

    def close(self) -> dict[str, float]:
        return {"powerccl/mean_joules_per_step": 1.0}


@pytest.mark.large("torch", "transformers")
def test_a_trainer_of_transformers_logs_it(tmp_path: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from powerccl.integrations.transformers import EnergyCallback

    reported: list[dict[str, Any]] = []

    class Tracker(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            reported.append(dict(logs))

    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 16, (64, 8))]
    arguments = TrainingArguments(
        str(tmp_path),
        use_cpu=True,
        max_steps=6,
        per_device_train_batch_size=4,
        logging_steps=2,
        report_to="none",
        include_num_input_tokens_seen=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Tracker()])
    own = FakeMeter()
    EnergyCallback.add_to(trainer, own)
    trainer.train()
    assert own.tokens == [32.0] * 6
    assert [logs["powerccl/joules_per_step"] for logs in reported if "loss" in logs] == [2.0, 4.0, 6.0]
    assert trainer.state.log_history[-1]["powerccl/mean_joules_per_step"] == 1.0


@pytest.mark.large("torch", "lightning")
def test_a_trainer_of_lightning_logs_it(tmp_path: Path) -> None:
    import lightning
    import torch
    from lightning.pytorch.loggers import CSVLogger
    from torch.utils.data import DataLoader

    from powerccl.integrations.lightning import EnergyCallback

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    own = FakeMeter()
    logger = CSVLogger(str(tmp_path))
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=logger,
        callbacks=[EnergyCallback(tokens=len, meter=own)],
        accumulate_grad_batches=2,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), DataLoader(torch.randn(32, 4), batch_size=4))
    assert own.tokens == [8.0] * 4
    text = (Path(logger.log_dir) / "metrics.csv").read_text()
    assert "powerccl/joules_per_step" in text and "powerccl/mean_joules_per_step" in text


def test_hooks_never_raise(capsys: pytest.CaptureFixture[str]) -> None:
    meter._say.cache_clear()

    @meter.guarded
    def hook() -> None:
        raise ValueError("no such state")

    hook()
    hook()
    assert capsys.readouterr().err == f"{SAID}no such state\n"


def test_nvml_counts_the_gpus_of_the_job(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvml:
        energy_mj = 0

        def nvmlInit_v2(self) -> int:  # noqa: N802
            return 0

        def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
            count._obj.value = 4
            return 0

        def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:  # noqa: N802
            device._obj.value = index.value + 1
            return 0

        def nvmlDeviceGetUUID(self, device: Any, text: Any, size: Any) -> int:  # noqa: N802
            text.value = f"GPU-{device.value - 1}".encode()
            return 0

        def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, value: Any) -> int:  # noqa: N802
            value._obj.value = self.energy_mj * device.value
            return 0

    driver = Nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    own = StepMeter(environment={"LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "1,2,3"})
    windows = []
    for second in range(100, 131):
        clock.now_ns = second * 1000 * MS
        driver.energy_mj = second * 1000
        windows.append(own.step(tokens=10))
    shown = [window for window in windows if window]
    assert len(shown) == 3
    assert shown[0]["powerccl/watts"] == pytest.approx(2 + 3)  # GPUs 1 and 2 draw 2 and 3 W
    assert shown[0]["powerccl/joules_per_token"] == pytest.approx(5 / 20)
    for second in range(131, 160):  # the counters stand still: nothing is known of this time, and 0 J is no figure
        clock.now_ns = second * 1000 * MS
        assert own.step(tokens=10) == {}
    assert own.close()["powerccl/mean_watts"] == pytest.approx(2 + 3)
