"""One training of same-losses, with nothing in it that differs from run to run: prints a loss a step, exactly.

ddp, fsdp2: PyTorch's own. symmetric: a layer at a time as FSDP does it, over buffers in symmetric windows. jax: one
process that trains on all GPUs.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

STEPS, WIDTH, LAYERS, ROWS = 20, 1024, 6, 512


def of_torch(kind: str) -> None:
    """Train as one of torchrun's ranks."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))).cuda()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp2":
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    data, target = torch.randn(ROWS, WIDTH, device=device), torch.randn(ROWS, WIDTH, device=device)
    gather = _symmetric(model, dist, torch) if kind == "symmetric" else None
    for step in range(STEPS):
        loss = nn.functional.mse_loss(model(data), target)
        loss.backward()
        if gather:
            gather()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"{kind} {step} {total.item() / ranks:.9g}", flush=True)
    dist.destroy_process_group()


def _symmetric(model: Any, dist: Any, torch: Any) -> Callable[[], None]:
    """Return what averages gradients by reduce-scatter and all-gather over symmetric windows."""
    ranks = dist.get_world_size()
    backend = dist.group.WORLD._get_backend(torch.device("cuda", torch.cuda.current_device()))
    count = sum(each.numel() for each in model.parameters())
    count += -count % ranks
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        whole, part = torch.zeros(count, device="cuda"), torch.zeros(count // ranks, device="cuda")
    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    backend.register_mem_pool(pool, symm=True)

    def average() -> None:
        at = 0
        for each in model.parameters():
            whole[at : at + each.numel()].copy_(each.grad.flatten())
            at += each.numel()
        dist.reduce_scatter_tensor(part, whole)
        dist.all_gather_into_tensor(whole, part.div_(ranks))
        at = 0
        for each in model.parameters():
            each.grad.copy_(whole[at : at + each.numel()].view_as(each))
            at += each.numel()

    return average


def of_jax() -> None:
    """Train on all GPUs of this process."""
    import jax
    import jax.numpy as jnp

    count = len(jax.devices())
    keys = jax.random.split(jax.random.PRNGKey(1), LAYERS + 2)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[:LAYERS]]
    data = jax.random.normal(keys[-2], (count, ROWS, WIDTH))
    target = jax.random.normal(keys[-1], (count, ROWS, WIDTH))

    def loss(weights: Any, data: Any, target: Any) -> Any:
        for each in weights:
            data = jax.nn.gelu(data @ each)
        return jnp.mean((data - target) ** 2)

    def step(weights: Any, data: Any, target: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, data, target)
        value, gradients = jax.lax.pmean((value, gradients), "gpus")
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    train = jax.pmap(step, axis_name="gpus", in_axes=(0, 0, 0))
    shared = [jnp.stack([each] * count) for each in weights]
    for index in range(STEPS):
        shared, value = train(shared, data, target)
        print(f"jax {index} {float(value[0]):.9g}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["ddp", "fsdp2", "symmetric", "jax"])
    chosen = parser.parse_args().kind
    of_jax() if chosen == "jax" else of_torch(chosen)
