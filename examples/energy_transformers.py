"""Joules of training steps in Trackio, from Hugging Face's Trainer. It downloads nothing and needs no GPU.

powerccl run --emulate t4x8 -- python examples/energy_transformers.py
trackio show
"""

import os

# Emulated GPUs compute nothing: this model is trained on the processor. Remove the line on a machine with GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from powerccl.integrations.transformers import EnergyCallback


def main() -> None:
    """Train a small language model on random words for some seconds."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=128, n_embd=128, n_layer=2, n_head=2))
    words = torch.randint(0, 256, (1600, 64))
    data = [{"input_ids": row, "labels": row} for row in words]
    arguments = TrainingArguments(
        "trainer",
        use_cpu=True,
        max_steps=200,
        per_device_train_batch_size=8,
        logging_steps=20,
        save_strategy="no",
        report_to="trackio",
        include_num_input_tokens_seen=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    EnergyCallback.add_to(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
