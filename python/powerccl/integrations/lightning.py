# SPDX-License-Identifier: Apache-2.0
"""Joules a step and a token in the loggers of a Lightning Trainer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

# `lightning` and `pytorch_lightning` have the same classes twice, and a Trainer takes those of its own alone.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

from powerccl.integrations.meter import StepMeter, guarded


class EnergyCallback(Callback):  # type: ignore[misc]
    """Logs `powerccl/` figures: `Trainer(callbacks=[EnergyCallback()])`."""

    def __init__(self, tokens: Callable[[Any], float] | None = None, meter: StepMeter | None = None) -> None:
        """`tokens`: how many a batch has, such as `lambda batch: batch["input_ids"].numel()`. None: not known.

        `meter`: one with other settings than the usual.
        """
        super().__init__()
        self._tokens_of, self._meter = tokens, meter
        self._step, self._tokens = 0, 0.0

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start measuring, in the process that logs."""
        self._step = trainer.global_step
        if trainer.is_global_zero:
            self._meter = self._meter or StepMeter()

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch has ended, and a step unless gradients accumulate."""
        if self._meter is None or not trainer.is_global_zero:
            return
        if self._tokens_of is not None:
            try:
                self._tokens += float(self._tokens_of(batch))
            except Exception as error:
                self._tokens_of = None
                sys.stderr.write(f"powerccl: joules a token are not known: {type(error).__name__}: {error}\n")
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        figures = self._meter.step(self._tokens if self._tokens_of else None)
        self._tokens = 0.0
        self._log(trainer, figures)

    @guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the means over the run."""
        if self._meter is not None and trainer.is_global_zero:
            self._log(trainer, self._meter.close())
            self._meter = None

    def _log(self, trainer: Any, figures: dict[str, float]) -> None:
        if figures:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)
