#!/usr/bin/env python3
"""Prove on real GPUs what only they can show of harm: prove-harm-on-gpus.py OUT.

Runs a job of all-reduces alone and under `powerccl run`, in turns, then once for each thing that may happen to it:
its trace cut short or deleted, its descriptors closed and used again, an interrupt to its group, a restarted worker,
a kill. No clock is set: POWERCCL_CLOCKS=dry. Writes OUT/harm-gpus.json; needs POWERCCL_NATIVE. With
POWERCCL_NATIVE_BEFORE, the native files of an earlier version, that version records in turns with this one.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = re.compile(r"result (\w+) seconds ([\d.]+) interrupts (\d+) changed (\d+)")
ROUNDS = 4
PATIENCE_S = 90


class Proof:
    """Runs cases and keeps what came of them."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: dict[str, dict[str, object]] = {}
        os.environ["POWERCCL_CLOCKS"] = "dry"
        self.gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())

    def job(self, name: str, case: str, prefix: list[str], *torchrun: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a case in a process group of its own."""
        folder = self.out / name
        folder.mkdir(parents=True)
        command = ["torchrun", "--nproc-per-node", str(self.gpus), *torchrun]
        command += [str(ROOT / "evidence/scripts/harm-job.py"), case, str(folder)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*prefix, *command], stdout=log, stderr=log, start_new_session=True, cwd=folder)
        return process, folder

    def finish(self, name: str, process: subprocess.Popen[bytes], folder: Path) -> dict[str, object]:
        """Wait for a case and note it."""
        try:
            code: int | str = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = "hung"
        text = (folder / "log").read_text("utf-8", "replace")
        found = RESULT.search(text)
        row: dict[str, object] = {"code": code, "said": [x for x in text.splitlines() if x.startswith("powerccl")][:4]}
        if found:
            row |= {
                "result": found[1],
                "seconds": float(found[2]),
                "interrupts": int(found[3]),
                "changed": int(found[4]),
            }
        row["traces"] = sorted(path.name for path in folder.glob("runs/*/rank-*.trace"))
        self.rows[name] = row
        print(name, json.dumps(row), flush=True)
        return row

    def run(self, name: str, case: str, prefix: list[str], *torchrun: str) -> dict[str, object]:
        """A case from start to end."""
        return self.finish(name, *self.job(name, case, prefix, *torchrun))


def clocks() -> str:
    """What nvidia-smi says of limits that nobody may have changed."""
    query = "--query-gpu=index,clocks.max.sm,clocks.applications.gr,power.limit"
    return subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout


def main() -> int:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out.resolve()
    proof = Proof(out / "cases")
    ours = [sys.executable, "-m", "powerccl", "run", "--quiet"]
    earlier = os.environ.get("POWERCCL_NATIVE_BEFORE")
    before = clocks()
    proof.run("warm-up", "plain", [])
    for turn in range(ROUNDS):
        proof.run(f"alone-{turn}", "plain", [])
        proof.run(f"recorded-{turn}", "plain", ours)
        if earlier:
            proof.run(f"before-{turn}", "plain", ["env", f"POWERCCL_NATIVE={earlier}", *ours])
    for case in ("truncate", "delete", "descriptors"):
        proof.run(case, case, ours)
    # With torch's shared store a worker that comes back may read the id of its first life's communicator, and waits a
    # minute for it: four of six such restarts failed without us (pytorch issue 135712).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for name, prefix in (("restart-alone", []), ("restart", ours)):
        proof.run(name, "restart", prefix, "--max-restarts", "1")

    for name, prefix in (("interrupt-alone", []), ("interrupt", ours)):
        process, folder = proof.job(name, "interrupt", prefix)
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / "ready").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        proof.finish(name, process, folder)

    process, folder = proof.job("kill", "plain", ours)
    while not list(folder.glob("runs/*/rank-*.trace")) and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        for rank in Path(f"/proc/{child}/task/{child}/children").read_text().split():
            os.kill(int(rank), signal.SIGKILL)
    proof.finish("kill", process, folder)

    rows = proof.rows
    expected = rows["alone-0"].get("result")
    seconds = {
        way: [float(str(rows[f"{way}-{turn}"]["seconds"])) for turn in range(ROUNDS)]
        for way in ("alone", "recorded", *(["before"] if earlier else []))
    }
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    summary = {
        "results_differ": sum(r.get("result", expected) != expected for r in rows.values()),
        "ended_badly": [n for n, r in rows.items() if r["code"] != 0 and not n.startswith(("kill", "interrupt"))],
        "files_changed": sum(int(str(r.get("changed", 0))) for r in rows.values()),
        "time_ratios": {way: round(each / medians["alone"], 4) for way, each in medians.items()},
        "seconds": seconds,
        "interrupts": [rows["interrupt-alone"].get("interrupts"), rows["interrupt"].get("interrupts")],
        "limits_unchanged": clocks() == before,
    }
    (out / "harm-gpus.json").write_text(json.dumps({"summary": summary, "cases": rows}, indent=2) + "\n")
    for name in rows:
        for run in (proof.out / name).glob("runs"):
            shutil.rmtree(run) if name.startswith("recorded") and name != "recorded-0" else None
    print(json.dumps(summary, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
