"""A rank of scripts/step-cost: trains one model with fully_shard, eager and compiled, whenever it is its turn.

TURNS is a folder. The rank waits until TURNS/go holds a number that it has not run yet, trains --steps of each model,
appends a line of JSON to TURNS/<way>.<rank> and waits for the next; -1 ends it. With the time of a step it tells the
energy of its own GPU, where a turn lasts long enough for the counter (see `Counter`).
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTH, HEAD, HIDDEN, VOCABULARY = 2048, 128, 5632, 32000  # the first and third: --width, --hidden


class Counter:
    """The energy counter of this rank's GPU, which moves every 100 ms: read as it moves, so that no part is lost."""

    def __init__(self, device: int) -> None:
        """Open it."""
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        self._read = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3

    def moved(self) -> float:
        """Wait until it moves; return joules."""
        before = self._read()
        while (now := self._read()) == before:
            time.sleep(0.001)
        return now


class Block(nn.Module):
    """A decoder layer: causal attention and a gated perceptron."""

    def __init__(self) -> None:
        """Make the layer's weights."""
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output of the same shape: sequences, tokens, WIDTH."""
        shape = (*x.shape[:2], WIDTH // HEAD, HEAD)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # deterministic where asked to be; cuDNN's is not
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        gate, value = self.up(self.between(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * value)


def build(layers: int, compiled: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a sharded model and its optimizer."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        *(Block() for _ in range(layers)),
        nn.RMSNorm(WIDTH),
        nn.Linear(WIDTH, VOCABULARY, bias=False),
    ).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for index in range(1, layers + 1):
        if compiled:
            model[index].compile()
        fully_shard(model[index], mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def main() -> None:
    """Train whenever it is our turn."""
    global WIDTH, HIDDEN
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way")
    parser.add_argument("turns", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=8192, help="of each rank and step, a multiple of 1,024")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=5632)
    parser.add_argument("--models", default="eager,compiled")
    parser.add_argument("--energy", action="store_true")
    options = parser.parse_args()
    WIDTH, HIDDEN = options.width, options.hidden
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.use_deterministic_algorithms(True, warn_only=True)  # so that losses can be compared
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    torch.manual_seed(100 + rank)
    data = torch.randint(VOCABULARY, (options.tokens // 1024, 1025), device="cuda")
    models = {name: build(options.layers, name == "compiled") for name in options.models.split(",")}
    counter = Counter(local) if options.energy else None
    losses: dict[str, list[float]] = {name: [] for name in models}

    def train(name: str, steps: int) -> float:
        """Train so many steps; return ms a step."""
        model, optimizer = models[name]
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            logits = model(data[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        losses[name].append(loss.item())
        return 1e3 * (time.perf_counter() - began) / steps

    out = (options.turns / f"{options.way}.{rank}").open("a", buffering=1)
    for name in models:
        train(name, 6)
    out.write(json.dumps({"ready": {name: train(name, 10) for name in models}}) + "\n")
    done = 0
    while True:
        text = (options.turns / "go").read_text().split() if (options.turns / "go").exists() else []
        turn = int(text[1]) if len(text) == 2 and text[0] in (options.way, "all") else 0
        if turn < 0:
            break
        if turn <= done:
            time.sleep(0.02)
            continue
        done = turn
        times, joules = {}, {}
        for name in models:
            train(name, 1)  # what has stood still begins anew
            before = counter.moved() if counter else 0.0
            times[name] = train(name, options.steps)
            joules[name] = (counter.moved() - before) / options.steps if counter else None
        out.write(json.dumps({"turn": turn, "ms": times, "joules": joules}) + "\n")
    out.write(json.dumps({"losses": losses}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
