# SPDX-License-Identifier: Apache-2.0
"""What pages promise is so: messages that are quoted, the batch script, and that nothing is sent over a network."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import fakes
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*(ROOT / "python/powerccl").rglob("*.py")]


def texts_of_sources() -> str:
    """Every text of the Python sources; \0 in the place of what is put in."""
    texts = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                texts.append("".join(map(str, parts)))
    return "\n".join(texts)


def test_troubleshooting_quotes_messages_of_the_sources() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 20
    texts = texts_of_sources()
    for message in quoted:
        for part in filter(None, (part.strip(" :,;") for part in message.split("…"))):
            assert part in texts, message


# Names that a program needs to reach another machine.
NETWORK = re.compile(r"\b(AF_INET6?|getaddrinfo|gethostbyname|urlopen|urllib\.request|http\.client|requests\.get)\b")


def test_nothing_is_sent_over_a_network() -> None:
    """`powerccl export` listens, and no source connects to another machine."""
    native = [path for path in (ROOT / "native").rglob("*") if path.suffix in (".c", ".cpp", ".h")]
    uses = {str(path.relative_to(ROOT)): NETWORK.findall(path.read_text("utf-8")) for path in [*SOURCES, *native]}
    assert {name for name, found in uses.items() if found} <= {"python/powerccl/live/exporter.py"}


PROGRAMS = {
    "scontrol": '#!/bin/sh\n[ "$1 $2" = "show hostnames" ] && printf "node7\\nnode8\\n"\n',
    "srun": '#!/bin/sh\nexport SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0\nexec "$@"\n',
    "torchrun": '#!/bin/sh\necho "$@" > torchrun-was-here\nexit 7\n',
    "powerccl": f'#!/bin/sh\nexec {sys.executable} -m powerccl "$@"\n',
}


def test_the_batch_script_works_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs/guides/slurm-cluster.md").read_text("utf-8")
    script = guide.partition("```bash\n")[2].partition("```")[0]
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        fakes.write_program(programs / name, text)
    (tmp_path / "job.sh").write_text(script)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "python"),
        "HOME": str(tmp_path),
        "POWERCCL_NATIVE": str(fakes.native_folder(tmp_path / "native")),
        "SLURM_JOB_ID": "41",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_JOB_NUM_NODES": "2",
    }
    # -u: a variable that Slurm does not set, such as HOST, ends the script.
    done = subprocess.run(
        ["bash", "-u", "job.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 7, done.stderr
    assert "--nnodes 2" in (asked := (tmp_path / "torchrun-was-here").read_text()) and "node7:29500" in asked
    assert (tmp_path / "report-41.html").stat().st_size > 1000
