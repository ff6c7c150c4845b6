"""Joules of training steps in TensorBoard, from Lightning. It needs no GPU.

powerccl run --emulate t4x8 -- python examples/energy_lightning.py
tensorboard --logdir lightning_logs
"""

import os

# Emulated GPUs compute nothing: this model is trained on the processor. Remove the line on a machine with GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import lightning
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader

from powerccl.integrations.lightning import EnergyCallback


class Model(lightning.LightningModule):
    """An autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = nn.functional.mse_loss(self.layers(batch), batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    """Train a small model for some seconds."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=TensorBoardLogger("."),
        callbacks=[EnergyCallback(tokens=len)],
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), DataLoader(torch.randn(128 * 300, 256), batch_size=128))


if __name__ == "__main__":
    main()
