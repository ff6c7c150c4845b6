# SPDX-License-Identifier: Apache-2.0
"""Joules of training steps in the experiment tracker that a job uses already.

`StepMeter` is for any loop. `transformers` and `lightning` have callbacks for these two trainers. Nothing here imports
more than the job has already: no polars, no numpy, no tracker.
"""

from powerccl.integrations.meter import StepMeter

__all__ = ["StepMeter"]
