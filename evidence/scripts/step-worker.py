"""A rank of evidence/scripts/step-cost.py: trains models, each in a way of its own, whenever it is its turn.

TURNS is a folder. The rank waits until TURNS/go holds a number that it has not run yet, trains each model for a while,
appends a line of JSON to TURNS/<way>.<rank> and waits for the next; -1 ends it. With the time of a step it tells the
energy of its own GPU, where a turn lasts long enough for the counter (see `Counter`). TURNS `-` is one turn, and then
the end: for a record.

Way `lines` is the model `handmade` as the guide says to write it: gathers into symmetric windows, by copy engines.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard

HEAD, VOCABULARY = 128, 32000
Step = Callable[[], object]  # one step of a model


class Counter:
    """The energy counter of this rank's GPU, which moves every 100 ms: read as it moves, so that no part is lost."""

    def __init__(self, device: int) -> None:
        """Open it."""
        import pynvml

        pynvml.nvmlInit()
        # NVML counts all GPUs, CUDA those of CUDA_VISIBLE_DEVICES.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        self._read: Callable[[], float] = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3

    def moved(self) -> float:
        """Wait until it moves; return joules."""
        before = self._read()
        while (now := self._read()) == before:
            time.sleep(0.001)
        return now


class Block(nn.Module):
    """A decoder layer: causal attention and a gated perceptron."""

    def __init__(self, width: int, hidden: int) -> None:
        """Make the layer's weights."""
        super().__init__()
        self.width = width
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output of the same shape: sequences, tokens, width."""
        shape = (*x.shape[:2], self.width // HEAD, HEAD)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        gate, value = self.up(self.between(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * value)


def decoder(o: argparse.Namespace) -> nn.Sequential:
    """A decoder with random weights, the same on all ranks."""
    torch.manual_seed(1)
    blocks = (Block(o.width, o.hidden) for _ in range(o.layers))
    ends = nn.RMSNorm(o.width), nn.Linear(o.width, VOCABULARY, bias=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, o.width), *blocks, *ends).cuda()


def training(model: nn.Module, optimizer: torch.optim.Optimizer, o: argparse.Namespace) -> Step:
    """A step of next-token prediction on random tokens, which differ between ranks."""
    torch.manual_seed(100 + dist.get_rank())
    data = torch.randint(VOCABULARY, (o.tokens // 1024, 1025), device="cuda")

    def step() -> None:
        logits = model(data[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def sharded(compiled: bool) -> Callable[[argparse.Namespace], Step]:
    """fully_shard of each layer."""

    def make(o: argparse.Namespace) -> Step:
        model = decoder(o)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for index in range(1, o.layers + 1):
            if compiled:
                model[index].compile()
            fully_shard(model[index], mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        return training(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), o)

    return make


def fsdp1(o: argparse.Namespace) -> Step:
    """The first FSDP, a unit for each layer."""
    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = decoder(o)
    for index in range(1, o.layers + 1):
        model[index] = FullyShardedDataParallel(model[index], mixed_precision=policy)
    whole = FullyShardedDataParallel(model, mixed_precision=policy)
    return training(whole, torch.optim.AdamW(whole.parameters(), lr=1e-4, fused=True), o)


def ddp(zero: bool) -> Callable[[argparse.Namespace], Step]:
    """DistributedDataParallel; `zero`: with a sharded optimizer."""

    def make(o: argparse.Namespace) -> Step:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = nn.parallel.DistributedDataParallel(decoder(o).bfloat16(), gradient_as_bucket_view=True)
        if not zero:
            return training(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), o)
        return training(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4), o)

    return make


class Sent(torch.autograd.Function):
    """Exchange equal parts of rows with every rank, there and, for gradients, back."""

    @staticmethod
    def forward(context: object, rows: torch.Tensor) -> torch.Tensor:
        """Exchange."""
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows.contiguous())
        return out

    @staticmethod
    def backward(context: object, rows: torch.Tensor) -> torch.Tensor:
        """Exchange back."""
        return Sent.forward(None, rows)


def moe(o: argparse.Namespace) -> Step:
    """Experts: all-to-all, a perceptron, all-to-all; data-parallel in nothing."""
    torch.manual_seed(1)
    layers = [
        nn.Sequential(nn.Linear(o.width, o.hidden), nn.GELU(), nn.Linear(o.hidden, o.width)) for _ in range(o.layers)
    ]
    model = nn.ModuleList(layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(o.tokens, o.width, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        x = data
        for layer in model:
            x = x + Sent.apply(layer(Sent.apply(x)))
        loss = x.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def pipe(o: argparse.Namespace) -> Step:
    """Stages in a row, eight micro-batches there and back: send and receive."""
    torch.manual_seed(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = nn.Sequential(*(Block(o.width, o.hidden) for _ in range(max(1, o.layers // ranks)))).cuda().bfloat16()
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
    shape = (max(1, o.tokens // 1024 // 8), 1024, o.width)
    first = torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        kept = []
        for _ in range(8):
            x = first.clone() if rank == 0 else torch.empty_like(first)
            if rank > 0:
                dist.recv(x, rank - 1)
            x.requires_grad_()
            y = stage(x)
            if rank < ranks - 1:
                dist.send(y.detach(), rank + 1)
            kept.append((x, y))
        for x, y in reversed(kept):
            gradient = torch.ones_like(y) * 1e-3
            if rank < ranks - 1:
                dist.recv(gradient, rank + 1)
            y.backward(gradient)
            if rank > 0:
                dist.send(x.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def tensor_parallel(o: argparse.Namespace) -> Step:
    """Generation by a Llama of transformers with random weights, its layers split over all ranks."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    folder = Path(f"/tmp/powerccl-llama-{o.width}-{o.hidden}-{o.layers}-{os.environ['MASTER_PORT']}")
    heads = o.width // HEAD
    if dist.get_rank() == 0 and not folder.exists():
        config = LlamaConfig(
            hidden_size=o.width,
            intermediate_size=o.hidden,
            num_hidden_layers=o.layers,
            num_attention_heads=heads,
            num_key_value_heads=max(2, heads // 4),
            vocab_size=VOCABULARY,
        )
        torch.manual_seed(1)
        LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.bfloat16)
    torch.manual_seed(1)
    prompt = torch.randint(VOCABULARY, (16, 512), device="cuda")

    def step() -> None:
        with torch.no_grad():
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=32,
                min_new_tokens=32,
                do_sample=False,
                pad_token_id=0,
            )

    return step


def handmade(o: argparse.Namespace) -> Step:
    """A step as FSDP does it, by collectives on a side stream: gathers a layer ahead, reduce-scatters behind."""
    wide, ranks = 4 * o.width, dist.get_world_size()
    each = 2 * o.width * wide  # parameters of a layer

    def tensors(count: int, size: int) -> list[torch.Tensor]:
        return [torch.zeros(size, device="cuda", dtype=torch.bfloat16) for _ in range(count)]

    def gathered() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return tensors(2, each), tensors(o.layers, each // ranks)

    if o.way == "lines":
        backend = dist.group.WORLD._get_backend(torch.device("cuda", torch.cuda.current_device()))
        o.pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(o.pool):
            whole, parts = gathered()
        dist.all_reduce(torch.ones(1, device="cuda"))  # there is a communicator from here on
        torch.cuda.synchronize()
        backend.register_mem_pool(o.pool, symm=True)
    else:
        whole, parts = gathered()
    gradients, sums = tensors(2, each), tensors(2, each // ranks)
    torch.manual_seed(100 + dist.get_rank())
    for part in parts:
        part.normal_(0, 0.02)
    data = torch.randn(o.tokens, o.width, device="cuda", dtype=torch.bfloat16)
    here, side = torch.cuda.current_stream(), torch.cuda.Stream()
    ready, used, made, sent = ([torch.cuda.Event() for _ in range(2)] for _ in range(4))
    order = [*range(o.layers), *reversed(range(o.layers))]

    def gather(place: int) -> None:
        with torch.cuda.stream(side):
            side.wait_event(used[place % 2])
            dist.all_gather_into_tensor(whole[place % 2], parts[order[place]])
            ready[place % 2].record(side)

    def step() -> None:
        x = data
        for slot in range(2):
            used[slot].record(here)
            sent[slot].record(side)
        gather(0)
        for place in range(len(order)):
            slot = place % 2
            if place + 1 < len(order):
                gather(place + 1)
            here.wait_event(ready[slot])
            up, down = whole[slot].view(2, -1)
            up, down = up.view(o.width, wide), down.view(wide, o.width)
            if place < o.layers:
                x = torch.relu(x @ up) @ down * 0.02
            else:
                here.wait_event(sent[slot])
                inner = x @ up
                of_up, of_down = gradients[slot].view(2, -1)
                torch.mm(x.t(), inner, out=of_up.view(o.width, wide))
                x = inner @ down * 0.02
                torch.mm(inner.t(), x, out=of_down.view(wide, o.width))
                made[slot].record(here)
                with torch.cuda.stream(side):
                    side.wait_event(made[slot])
                    dist.reduce_scatter_tensor(sums[slot], gradients[slot])
                    sent[slot].record(side)
            used[slot].record(here)
        here.wait_stream(side)

    return step


MODELS: dict[str, Callable[[argparse.Namespace], Step]] = {
    "eager": sharded(False),
    "compiled": sharded(True),
    "fsdp1": fsdp1,
    "ddp": ddp(False),
    "zero1": ddp(True),
    "moe": moe,
    "pipe": pipe,
    "tp": tensor_parallel,
    "handmade": handmade,
}


def main() -> None:
    """Train whenever it is our turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way")
    parser.add_argument("turns")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each model and turn")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=8192, help="of each rank and step, a multiple of 1,024")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=5632)
    parser.add_argument("--models", default="eager,compiled", help="of: " + ", ".join(MODELS))
    parser.add_argument("--energy", action="store_true")
    options = parser.parse_args()
    if options.way == "lines":
        os.environ["NCCL_CTA_POLICY"] = "2"
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    models = {name: MODELS[name](options) for name in options.models.split(",")}
    counter = Counter(local) if options.energy else None

    def train(name: str, steps: int) -> float:
        """Train so many steps; return ms a step."""
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            models[name]()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / steps

    steps: dict[str, int] = {}

    def settle(name: str) -> None:
        """Find how many steps a turn has: in the first turn, since others train while a job comes up."""
        number = torch.tensor([max(2, int(1e3 * options.seconds / train(name, 5)))], device="cuda")
        dist.broadcast(number, 0)  # all ranks train alike
        steps[name] = int(number.item())

    for name in models:
        train(name, 6)
    if options.turns == "-":
        for name in models:
            settle(name)
        shown = {name: train(name, count) for name, count in steps.items()}
        if rank == 0:
            print(json.dumps({"ms": shown}), flush=True)
        dist.destroy_process_group()
        return
    turns = Path(options.turns)
    out = (turns / f"{options.way}.{rank}").open("a", buffering=1)
    out.write(json.dumps({"ready": True}) + "\n")
    done = 0
    while True:
        text = (turns / "go").read_text().split() if (turns / "go").exists() else []
        turn = int(text[1]) if len(text) == 2 and text[0] in (options.way, "all") else 0
        if turn < 0:
            break
        if turn <= done:
            time.sleep(0.02)
            continue
        done = turn
        times, joules = {}, {}
        for name in models:
            if name not in steps:
                settle(name)
            train(name, 1)  # what has stood still begins anew
            before = counter.moved() if counter else 0.0
            times[name] = train(name, steps[name])
            joules[name] = (counter.moved() - before) / steps[name] if counter else None
        out.write(json.dumps({"turn": turn, "ms": times, "joules": joules}) + "\n")
    out.write(json.dumps({"end": True}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
