"""A job for evidence/scripts/prove-harm-on-gpus.py: all-reduces, and one thing that a job or its surroundings may do.

torchrun --nproc-per-node 2 evidence/scripts/harm-job.py CASE FOLDER
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROUNDS, CALLS = 40, 1000
MIDDLE = ROUNDS // 4


def traces() -> list[Path]:
    """Traces of the run so far."""
    folder = os.environ.get("POWERCCL_RUN_FOLDER", "")
    return list(Path(folder).glob("rank-*.trace")) if folder else []


def take_descriptors(folder: Path, rank: int) -> dict[Path, bytes]:
    """Close the descriptors of files in the run folder, as closefrom(3) would, and use their numbers."""
    mine = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if int(entry.name) > 2 and ("powerccl" in target or ".trace" in target):
            os.close(int(entry.name))
            path = folder / f"mine-{rank}-{entry.name}"
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
            os.write(descriptor, b"mine")
            mine[path] = b"mine"
    return mine


def main() -> None:
    """Run the case; rank 0 prints a digest of the result, which is the same in every case."""
    case, folder = sys.argv[1], Path(sys.argv[2])
    rank, attempt = int(os.environ["LOCAL_RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    interrupts = []
    if case == "interrupt":
        signal.signal(signal.SIGINT, lambda *_: interrupts.append(time.time()))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    buffer = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    mine: dict[Path, bytes] = {}
    started = time.perf_counter()
    for number in range(ROUNDS):
        for _ in range(CALLS):
            dist.all_reduce(buffer, dist.ReduceOp.AVG)
        torch.cuda.synchronize()
        if number != MIDDLE:
            continue
        if case == "truncate" and rank == 0:
            for path in traces():
                os.truncate(path, 0)
        elif case == "delete" and rank == 0:
            for path in traces():
                path.unlink()
        elif case == "descriptors":
            mine = take_descriptors(folder, rank)
        elif case == "restart" and attempt == 0:
            sys.exit(9)
        elif case == "interrupt" and rank == 0:
            (folder / "ready").touch()
            time.sleep(3)
    seconds = time.perf_counter() - started
    changed = sum(path.read_bytes() != content for path, content in mine.items())
    digest = hashlib.sha256(buffer.cpu().numpy().tobytes()).hexdigest()[:16]
    if rank == 0:
        print(f"result {digest} seconds {seconds:.3f} interrupts {len(interrupts)} changed {changed}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
