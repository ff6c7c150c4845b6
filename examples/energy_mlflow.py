"""Joules of training steps in MLflow, from a plain PyTorch loop. It writes to a folder, and needs no server and no GPU.

powerccl run --emulate t4x8 -- python examples/energy_mlflow.py
"""

import os

# Emulated GPUs compute nothing: this model is trained on the processor. Remove the line on a machine with GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# MLflow keeps its own runs in files; newer versions want to be asked for that.
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

import mlflow
import torch
from torch import nn

from powerccl.integrations import StepMeter


def main() -> None:
    """Train a small model for some seconds."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    meter = StepMeter()  # in the process that logs
    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI", "file:mlruns"))
    with mlflow.start_run():
        for step in range(300):
            batch = torch.randn(128, 256)
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            figures = meter.step(tokens=len(batch))
            if figures:
                mlflow.log_metrics({"loss": loss.item(), **figures}, step=step)
        means = meter.close()
        mlflow.log_metrics(means)
        print(means["powerccl/mean_joules_per_step"], "joules a step")


if __name__ == "__main__":
    main()
