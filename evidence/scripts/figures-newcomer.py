"""A newcomer's first minutes on a fresh machine: from a wheel to the report of an own MPI job, by pip, uv and pipx.

figures-newcomer.py --wheel FILE --root DIR [--out FILE]. Needs root and the package registries. DIR is a bare system
with python3, python3-venv and pipx, such as `mmdebstrap --variant=minbase --include=python3,python3-venv,pipx,
ca-certificates bookworm DIR` makes. Commands run in it by chroot, each way in a home of its own. The job is of MPI, as
torch has 4 GB.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from support.figures import Figures, about, bare, show, write

JOB = """from mpi4py import MPI
import time
for step in range(200):
    time.sleep(0.01 * (1 + MPI.COMM_WORLD.rank))
    MPI.COMM_WORLD.allreduce(step)
"""
RUN = ["powerccl run -- mpiexec -n 2 python job.py", "powerccl report"]
# Each way's commands, from nothing to a report.
WAYS = {
    "pip": [
        "python3 -m venv .venv && . .venv/bin/activate",
        "pip install -q '{wheel}[all]' mpich mpi4py",
        *RUN,
    ],
    "uv": [
        "python3 -m venv tool && tool/bin/pip install -q uv && export PATH=$PWD/tool/bin:$PATH",
        "uv venv -q && . .venv/bin/activate",
        "uv pip install -q '{wheel}[all]' mpich mpi4py",
        *RUN,
    ],
    "pipx": [
        "pipx install '{wheel}[all]' && export PATH=$HOME/.local/bin:$PATH",
        "python3 -m venv .venv && . .venv/bin/activate && pip install -q mpich mpi4py",
        *RUN,
    ],
}


def tried(way: str, commands: list[str], wheel: Path, root: Path) -> tuple[float, str]:
    """Seconds from the first command to the report, and what the last one printed."""
    home = root / f"home/{way}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    shutil.copy(wheel, home)
    (home / "job.py").write_text(JOB)
    kept = (
        "PATH",
        "PIP_CERT",
        "PIP_INDEX_URL",
        "UV_INDEX_URL",
        "SSL_CERT_FILE",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    )
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"HOME": f"/home/{way}", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
    script = "\n".join(["set -eu", f"cd /home/{way}", *commands]).format(wheel=f"./{wheel.name}")
    # In a mount namespace, which takes the mounts with it.
    enter = f'mount --rbind /proc {root}/proc && mount --rbind /dev {root}/dev && exec chroot {root} bash -c "$0"'
    command = ["unshare", "--mount", "bash", "-c", enter, script]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    took_s = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr[-2000:]}")
    return took_s, done.stdout


def main() -> None:
    """Try each way, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: Figures = {}
    shutil.copy("/etc/resolv.conf", options.root / "etc/resolv.conf")
    for way, commands in WAYS.items():
        took_s, shown = tried(way, commands, options.wheel.resolve(), options.root.resolve())
        if "MPI" not in shown or "what to do next" not in shown:
            raise SystemExit(f"{way}: the report is not whole:\n{shown[-2000:]}")
        figures[f"first.newcomer.{way}.seconds"] = bare(round(took_s, 1), "s")
        figures[f"first.newcomer.{way}.commands"] = bare(len(commands), "1")
    show(figures)
    conditions = "a bare Debian bookworm by chroot; downloads included; the job lasts 4 s"
    write(options.out, figures, **about("evidence/scripts/figures-newcomer.py --wheel WHEEL --root DIR", conditions))


if __name__ == "__main__":
    main()
