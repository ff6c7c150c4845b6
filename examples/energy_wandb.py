"""Joules of training steps in Weights & Biases, from a plain PyTorch loop. It runs offline and without a GPU.

powerccl run --emulate t4x8 -- python examples/energy_wandb.py
"""

import os

# Emulated GPUs compute nothing: this model is trained on the processor. Remove the line on a machine with GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import wandb
from torch import nn

from powerccl.integrations import StepMeter


def main() -> None:
    """Train a small model for some seconds."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    meter = StepMeter()  # in the process that logs
    with wandb.init(project="powerccl", mode="offline") as run:
        for _ in range(300):
            batch = torch.randn(128, 256)
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log({"loss": loss.item(), **meter.step(tokens=len(batch))})
        run.summary.update(meter.close())
        print(run.summary["powerccl/mean_joules_per_step"], "joules a step")


if __name__ == "__main__":
    main()
