"""FSDP2 as PyTorch 2.11 has it, without tensors."""

from types import SimpleNamespace

from torch.distributed.fsdp._fully_shard import DefaultAllGather, FSDPModule, fully_shard

__all__ = ["DefaultAllGather", "FSDPModule", "SimpleNamespace", "fully_shard"]
