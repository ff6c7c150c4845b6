# SPDX-License-Identifier: Apache-2.0
"""A GPT trained data-parallel in plain PyTorch, with a distributed optimizer: nothing in it knows of PowerCCL.

Once an iteration the gradients are reduce-scattered, each rank updates its own share of the weights (Adam, fp32), and
all shares are gathered again, as Megatron-LM's distributed optimizer does: 2 bytes a parameter each way.

torchrun --nproc-per-node 2 examples/train_gpt.py --model 350m --iterations 30
powerccl run -- torchrun --nproc-per-node 2 examples/train_gpt.py --model 350m
powerccl study scaling --gpus 1,2,4 -- torchrun --nproc-per-node {gpus} examples/train_gpt.py --json {json}
"""

import argparse
import hashlib
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8


@dataclass(frozen=True)
class Shape:
    """A model's size; `tiny` is for tests on a CPU."""

    layers: int
    hidden: int
    heads: int
    sequence: int = 1024
    vocabulary: int = 50304


MODELS = {
    "350m": Shape(layers=24, hidden=1024, heads=16),
    "1.3b": Shape(layers=24, hidden=2048, heads=16),
    "tiny": Shape(layers=2, hidden=64, heads=4, sequence=64, vocabulary=512),
}


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a layer norm and beside a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(shape.hidden), nn.LayerNorm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.hidden)
        self.wide = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.narrow = nn.Linear(4 * shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same."""
        batch, length, hidden = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Embeddings (the output layer's too), blocks, a layer norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = nn.Embedding(shape.sequence, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of predicting each token of [batch, sequence + 1] from those before it."""
        given, wanted = tokens[:, :-1], tokens[:, 1:]
        x = self.tokens(given) + self.places.weight[: given.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


class ShardedAdam:
    """Adam whose fp32 weights and moments are divided among ranks; weights and gradients are one flat buffer each."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, device: torch.device, rate: float) -> None:
        self.world, self.rank, self.rate, self.step_count = dist.get_world_size(), dist.get_rank(), rate, 0
        parameters = list(model.parameters())
        self.count = sum(parameter.numel() for parameter in parameters)
        length = -(-self.count // (64 * self.world)) * 64 * self.world  # equal, aligned shards
        self.weights = torch.zeros(length, dtype=dtype, device=device)
        self.gradients = torch.zeros(length, dtype=dtype, device=device)
        share = length // self.world
        self.own = slice(self.rank * share, (self.rank + 1) * share)
        exact = torch.zeros(length, dtype=torch.float32, device=device)
        at = 0
        for parameter in parameters:
            end = at + parameter.numel()
            exact[at:end] = parameter.detach().flatten().float()
            self.weights[at:end] = exact[at:end].to(dtype)
            parameter.data = self.weights[at:end].view_as(parameter)
            parameter.grad = self.gradients[at:end].view_as(parameter)
            at = end
        self.master = exact[self.own].clone()
        self.mean, self.square = torch.zeros_like(self.master), torch.zeros_like(self.master)
        self.shard = torch.empty(share, dtype=dtype, device=device)
        self.averages = dist.get_backend() == "nccl"  # gloo can only add
        # fp16's gradients underflow: the loss is scaled up as far as they allow. bf16 has fp32's range.
        self.scale, self.good = (2.0**16, 0) if dtype == torch.float16 else (1.0, -1)

    def step(self) -> bool:
        """Reduce-scatter gradients, update the own share, gather weights. False: skipped, some gradient overflowed."""
        operation = dist.ReduceOp.AVG if self.averages else dist.ReduceOp.SUM
        # Asynchronous, though awaited at once: so it runs in NCCL's own stream, and tools see what waits for it.
        dist.reduce_scatter_tensor(self.shard, self.gradients, op=operation, async_op=True).wait()
        gradient = self.shard.float() / (self.scale if self.averages else self.scale * self.world)
        finite = torch.isfinite(gradient).all().float()
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)  # all ranks skip, or none
        if not finite.item():
            self.scale, self.good = self.scale / 2, 0
            return False
        self.step_count += 1
        self.mean.lerp_(gradient, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        mean = self.mean / (1 - BETA1**self.step_count)
        root = (self.square / (1 - BETA2**self.step_count)).sqrt_().add_(EPSILON)
        self.master.addcdiv_(mean, root, value=-self.rate)
        dist.all_gather_into_tensor(self.weights, self.master.to(self.weights.dtype), async_op=True).wait()
        if self.good >= 0:
            self.good += 1
            if self.good == 1000:
                self.scale, self.good = self.scale * 2, 0
        return True


class Batches:
    """Tokens of this rank: random ones, or stretches of a file of 16-bit tokens."""

    def __init__(self, file: Path | None, shape: Shape, batch: int, length: int, device: torch.device) -> None:
        self.shape, self.batch, self.length, self.device = shape, batch, length, device
        self.generator = torch.Generator().manual_seed(1000 + dist.get_rank())
        self.tokens = None
        if file:
            count = file.stat().st_size // 2
            if count <= length + 1:
                raise SystemExit(f"{file}: {count} tokens, but one sequence is {length}")
            self.tokens = torch.from_file(str(file), dtype=torch.uint16, size=count)

    def next(self) -> Tensor:
        """[batch, sequence + 1]."""
        if self.tokens is None:
            shape = (self.batch, self.length + 1)
            return torch.randint(self.shape.vocabulary, shape, generator=self.generator).to(self.device)
        starts = torch.randint(len(self.tokens) - self.length - 1, (self.batch,), generator=self.generator)
        rows = [self.tokens[start : start + self.length + 1].long() for start in starts.tolist()]
        return torch.stack(rows).to(self.device)


def main() -> None:
    """Train for a few iterations; rank 0 prints each one's time, the throughput and a digest of the weights."""
    options = parse()
    on_gpu = torch.cuda.is_available() and not options.cpu
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(7)  # the same weights on all ranks
    shape = MODELS[options.model]
    if options.sequence:
        shape = Shape(shape.layers, shape.hidden, shape.heads, options.sequence, shape.vocabulary)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[options.precision]
    with device:
        model = Gpt(shape)
    optimizer = ShardedAdam(model, dtype, device, options.rate)
    batches = Batches(options.data, shape, options.batch, shape.sequence, device)
    world = dist.get_world_size()
    tokens = world * options.batch * shape.sequence
    if dist.get_rank() == 0:
        print(f"GPT {options.model}, {optimizer.count / 1e6:.0f} M parameters, {options.precision}, {world} ranks")

    iterations = []
    for number in range(options.warmup + options.iterations):
        begin_ns = time.monotonic_ns()
        optimizer.gradients.zero_()
        loss = model(batches.next())
        (loss * optimizer.scale).backward()
        stepped = optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        end_ns = time.monotonic_ns()
        warmup = number < options.warmup
        iterations.append({"start_ns": begin_ns, "end_ns": end_ns, "warmup": warmup, "loss": loss.item()})
        if dist.get_rank() == 0:
            seconds = (end_ns - begin_ns) / 1e9
            remark = (" (warm-up)" if warmup else "") + ("" if stepped else " (skipped: gradients overflowed)")
            print(
                f"iteration {number}  {seconds * 1e3:.1f} ms  {tokens / seconds:.0f} tokens/s"
                f"  loss {loss.item():.4f}{remark}"
            )
    if dist.get_rank() == 0:
        report(options, optimizer, iterations, tokens)
    dist.destroy_process_group()


def report(options: argparse.Namespace, optimizer: ShardedAdam, iterations: list[dict], tokens: int) -> None:
    """The end's line, and the file of --json."""
    measured = [each for each in iterations if not each["warmup"]]
    middle = statistics.median((each["end_ns"] - each["start_ns"]) / 1e9 for each in measured)
    digest = hashlib.sha256(optimizer.weights[: optimizer.count].float().cpu().numpy().tobytes()).hexdigest()[:16]
    last = measured[-1]["loss"]
    print(f"median {middle * 1e3:.1f} ms  {tokens / middle:.0f} tokens/s  loss {last:.4f}  weights {digest}")
    if options.json:
        told = {
            "program": "train_gpt",
            "model": options.model,
            "parameters": optimizer.count,
            "buffer_bytes": optimizer.weights.numel() * optimizer.weights.element_size(),
            "precision": options.precision,
            "ranks": dist.get_world_size(),
            "batch": options.batch,
            "tokens_per_iteration": tokens,
            "median_ms": middle * 1e3,
            "weights": digest,
            "iterations": iterations,
        }
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="350m")
    parser.add_argument("--precision", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--batch", type=int, default=8, help="sequences a rank and iteration")
    parser.add_argument("--sequence", type=int, help="tokens of a sequence (1024; tiny: 64)")
    parser.add_argument("--iterations", type=int, default=30, help="measured")
    parser.add_argument("--warmup", type=int, default=5, help="iterations before that")
    parser.add_argument("--rate", type=float, default=3e-4, help="of learning")
    parser.add_argument("--data", type=Path, help="file of 16-bit tokens; without one tokens are random")
    parser.add_argument("--json", type=Path, help="each iteration's times, for `powerccl study scaling`")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, over gloo, also where there are GPUs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
