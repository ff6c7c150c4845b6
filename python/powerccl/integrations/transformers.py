# SPDX-License-Identifier: Apache-2.0
"""Joules a step and a token among what Hugging Face's Trainer logs, to whatever tracker it reports to."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from powerccl.integrations.meter import StepMeter, guarded


class EnergyCallback(TrainerCallback):  # type: ignore[misc]
    """Adds `powerccl/` figures to the Trainer's logs. `EnergyCallback.add_to(trainer)` puts it where it has to be.

    Joules a token need `TrainingArguments(include_num_input_tokens_seen=...)`: the Trainer counts the tokens then.
    """

    def __init__(self, meter: StepMeter | None = None) -> None:
        """`meter`: one with other settings than the usual."""
        self._meter = meter
        self._figures: dict[str, float] = {}
        self._tokens = 0.0

    @classmethod
    def add_to(cls, trainer: Any, meter: StepMeter | None = None) -> EnergyCallback:
        """Add it in front of the callbacks that report to trackers, so that these see its figures."""
        callback = cls(meter)
        trainer.callback_handler.callbacks.insert(0, callback)
        return callback

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start measuring, in the process that logs."""
        self._tokens = float(state.num_input_tokens_seen or 0)
        if state.is_world_process_zero:
            self._meter = self._meter or StepMeter()

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step has ended."""
        if self._meter is None or not state.is_world_process_zero:
            return
        seen, before = float(state.num_input_tokens_seen or 0), self._tokens
        self._tokens = seen
        # The Trainer counts the tokens of all ranks.
        tokens = (seen - before) / max(args.world_size, 1) if seen > before else None
        self._figures |= self._meter.step(tokens)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Add the last window's figures to what is logged."""
        if isinstance(logs, dict) and self._figures and not any(name.startswith("eval_") for name in logs):
            logs.update(self._figures)
            if state.log_history:
                state.log_history[-1].update(self._figures)
            self._figures = {}

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer's last log has been before: means over the run go into its history."""
        if self._meter is not None:
            means = self._meter.close()
            if means:
                state.log_history.append({**means, "step": state.global_step})
            self._meter = None
