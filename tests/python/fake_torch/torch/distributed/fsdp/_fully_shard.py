"""Here `fully_shard` is defined, as in PyTorch."""

from types import SimpleNamespace
from typing import Any


class DefaultAllGather:
    def allocate(self, size: tuple[int, ...], *, dtype: Any, device: object) -> object:
        import torch

        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output: Any, input: object, group: object, async_op: bool) -> object:
        import torch.distributed as dist

        return dist.all_gather_into_tensor(output, input, group, async_op)


class FSDPModule:
    state: SimpleNamespace

    def _get_fsdp_state(self) -> SimpleNamespace:
        return self.state

    def set_custom_all_gather(self, comm: object) -> None:
        self.state._fsdp_param_group._all_gather_comm = comm

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        assert isinstance(self.state._fsdp_param_group._all_gather_comm, DefaultAllGather), "is custom"


def fully_shard(module: FSDPModule, **keywords: object) -> FSDPModule:
    """Shard it."""
    module.state = SimpleNamespace(_fsdp_param_group=SimpleNamespace(_all_gather_comm=DefaultAllGather()))
    return module
