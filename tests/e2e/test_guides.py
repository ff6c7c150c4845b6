# SPDX-License-Identifier: Apache-2.0
"""Each block of README.md and the guides runs word for word, and prints what the page shows.

Programs that a test machine lacks are stand-ins (tests/e2e/stand_ins), which start real, short jobs. GPUs are emulated.
tests/e2e/test_tutorial.py runs the tutorial.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_process import Daemon
from fleet_runs import late_run, months
from harness import EmulatedMachine, profile_of
from support.pages import ROOT, Block, Outcome, Step, blocks_of, keep, label, missing

from powerccl.launch.native import NativeFiles

STAND_INS = Path(__file__).parent / "stand_ins"
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))] if blocks_of(page)]
# The server that a page has; with the default, of two GPUs, everything is quickest.
SERVERS = {"tune": "h200x4.conf", "prove": "h100x8.conf:gpus=2", "save-energy-without-clocks": "h200x4.conf:gpus=2"}
SERVER = "t4x8.conf"
DAEMON = ("install-cluster", "kubernetes")  # pages that speak with a powerccld
# Blocks that do not run here, by page and a part of their text.
NOT_RUN = {
    ("fleet", "s3://"): "needs a bucket; test_fleet_objects.py has stores in memory and files",
    ("README", "make demo"): "builds PowerCCL and runs the demo for minutes; `make demo` and wheel.yml are tests of it",
    ("compare-two-networks", "two-networks.py"): "takes root, network namespaces and an idle machine for half an hour",
}
# Commands that end when they are interrupted, each on its own.
ENDLESS = re.compile(r"powerccl top --json|powerccl export(?! --once)")
# Exit codes that a page gives in a table instead of in the block.
CODES = {"--fail-above": 3}
# Folders of a cluster, which are the scratch folder's here.
FOLDERS = (
    "/shared/runs",
    "/scratch/runs",
    "/data/powerccl",
    "/var/lib/node_exporter/textfile_collector",
    "/opt",
    "/usr/local/bin",
)
# These take longest, and begin first.
LONG = ("prove", "compare-two-networks", "save-energy-without-clocks", "watch-running-jobs", "scaling-study")
LIMIT_S = 100
# A tuned profile, where a search of seconds finds none.
TUNED = {
    "schema_version": 1,
    "gpu": "NVIDIA H200",
    "nodes": 1,
    "nccl": "2.28.9",
    "links": ["nvlink"],
    "objective": "time",
    "variables": {"NCCL_NTHREADS": "256"},
    "emulated": True,
    "rules": [],
    "confirmed": [],
}
STEP = "compute {}\nall_reduce 24M\nall_gather 8M\n"


@pytest.fixture(scope="session")
def runs(native: NativeFiles, clean_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded runs under the names that pages use: one short job, and one that computes longer."""
    folder = tmp_path_factory.mktemp("recorded")
    names = {
        24: ["20260101-110000-train", "m1", "m2", "m3", "a", "b"],
        30: ["20260101-120000-train", "p1", "p2", "p3", "c", "d"],
    }
    for compute, copies in names.items():
        (folder / "step.scn").write_text(STEP.format(compute))
        command = ["run", "-q", "--emulate", "h200x4", "--policy", "observe", "--runs-dir", str(folder / f"{compute}")]
        job = [
            str(native.path("bin/powerccl-bench")),
            "scenario",
            str(folder / "step.scn"),
            "-g",
            "2",
            "--iterations",
            "60",
        ]
        powerccl = str(Path(sys.executable).parent / "powerccl")
        subprocess.run([powerccl, *command, "--", *job], env=clean_environment, check=True, stdout=subprocess.DEVNULL)
        (made,) = (folder / f"{compute}").glob("[!.]*/")
        for name in copies:
            shutil.copytree(made, folder / "runs" / name)
    return folder / "runs"


class Place:
    """A page's scratch folder, with the machine that its commands find there."""

    def __init__(self, page: Path, folder: Path, environment: dict[str, str]) -> None:
        self.page = page
        self.folder = folder
        self.environment = environment
        self.said = ""  # by the commands of all blocks so far

    def outcome(self, block: Block) -> Outcome:
        """Run a block, unless it is known not to run here."""
        for (page, part), why in NOT_RUN.items():
            if page == self.page.stem and part in block.text:
                return Outcome(block.name, False, why_not=why)
        different = [what for step in block.steps if (what := self._different(step, block))]
        lacks = missing(block.shown, self.said)
        different += [f"no command of the page so far prints {lacks}"] if lacks else []
        return Outcome(block.name, True, different="\n".join(different))

    def _different(self, step: Step, block: Block) -> str:
        """Run a command. What differs from the page, else nothing."""
        command = step.command
        for path in FOLDERS:
            command = command.replace(path, f"{self.folder}{path}")
        endless = block.kind == "console" and bool(ENDLESS.search(command))
        program = ["sbatch"] if block.kind == "bash" else ["bash", "-euo", "pipefail"]
        code, said = self._run([*program, "-c", command], 4 if endless else LIMIT_S)
        self.said += said
        wanted = next((code for part, code in CODES.items() if part in command), 0)
        if code != (124 if endless else wanted) or "unexpected:" in said:
            return f"{step.command.strip()}\nended with {code}:\n{said[-3000:]}"
        lacks = missing(step.shown, said)
        return f"{step.command}\nno longer prints {lacks}:\n{said}" if lacks else ""

    def _run(self, command: list[str], limit_s: int) -> tuple[int, str]:
        """The exit code, 124 at the limit, and what it printed."""
        timed = ["timeout", "--signal=INT", "--kill-after=10", str(limit_s)]
        with tempfile.TemporaryFile("w+") as output:
            code = subprocess.run(
                [*timed, *command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
            output.seek(0)
            return code, output.read()


@contextmanager
def place_of(page: Path, native: NativeFiles, clean: dict[str, str], runs: Path, tmp_path: Path) -> Iterator[Place]:
    """Where the page's blocks run: `tmp_path`, with an emulated server, stand-ins, recorded runs and settings."""
    own = Path(tempfile.mkdtemp(prefix="g"))  # short: MPI libraries have paths of sockets below TMPDIR
    machine = EmulatedMachine(native, own, SERVERS.get(page.stem, SERVER))
    daemon = Daemon(native, machine) if page.stem in DAEMON else None
    shutil.copytree(runs, tmp_path / "runs")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    scenario = tmp_path / "examples/gpt350m.scn"
    scenario.write_text(scenario.read_text().replace("iterations 6", "iterations 2"))
    (tmp_path / "app").symlink_to(STAND_INS / "app")
    (tmp_path / "packaging").symlink_to(ROOT / "packaging")
    (tmp_path / "RUN").symlink_to(tmp_path / "runs/m1")
    (tmp_path / "step.scn").write_text(STEP.format(20))
    for path in (*FOLDERS, "/node"):
        (tmp_path / path[1:]).mkdir(parents=True, exist_ok=True)
    if page.stem == "fleet":
        months(tmp_path / "scratch/runs")
        late_run(tmp_path / "demo/late")
        index = [str(Path(sys.executable).parent / "powerccl"), "index", "demo", "--analyse", "--quiet"]
        subprocess.run(index, cwd=tmp_path, env=clean, check=True)
    settings = own / "config/powerccl"
    for folder in ("platforms", "tuned"):
        (settings / folder).mkdir(parents=True)
    (settings / "platforms/my-machine.json").write_bytes(profile_of("NVIDIA H200", 4))
    for ranks in (2, 4):
        name = f"h200-x{ranks}-nvlink"
        (settings / f"tuned/{name}.json").write_text(json.dumps({**TUNED, "name": name, "ranks": ranks}))
    scripts = Path(sys.executable).parent
    environment = {
        **clean,
        **machine.environment,
        "PATH": f"{STAND_INS}:{scripts}:{native.root / 'bin'}:{clean['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("python")),
        "TMPDIR": str(own),
        "COLUMNS": "100",
        "XDG_CONFIG_HOME": str(own / "config"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "STAND_IN_MPIEXEC": str(scripts / "mpiexec"),
        "STAND_IN_NATIVE": str(native.root),
        "STAND_IN_NODE": str(tmp_path / "node"),
    }
    if daemon:
        daemon.start()
        environment["POWERCCL_LEASE_SOCKET"] = str(daemon.socket)
    try:
        yield Place(page, tmp_path, environment)
    finally:
        if daemon:
            daemon.end()
        machine.stop()
        shutil.rmtree(own, ignore_errors=True)


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest,
    native: NativeFiles,
    clean_environment: dict[str, str],
    runs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[Path, Future[list[Outcome]]]]:
    """What became of the blocks of each page that is asked for. Three pages run at a time: they mostly wait."""

    def run(page: Path, folder: Path) -> list[Outcome]:
        with place_of(page, native, clean_environment, runs, folder) as place:
            return [place.outcome(block) for block in blocks_of(page)]

    chosen = {item.callspec.params.get("page") for item in request.session.items if hasattr(item, "callspec")}
    pages = sorted((page for page in PAGES if page in chosen), key=lambda page: page.stem not in LONG)
    with ThreadPoolExecutor(3) as pool:
        yield {page: pool.submit(run, page, tmp_path_factory.mktemp(page.stem)) for page in pages}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_it_runs_as_written(page: Path, outcomes: Mapping[Path, Future[list[Outcome]]]) -> None:
    found = outcomes[page].result()
    keep(page.stem, found)
    different = [f"{each.block}: {each.different}" for each in found if each.different]
    assert not different, "\n\n".join(different)


def test_few_blocks_do_not_run() -> None:
    blocks = [block for page in [*PAGES, ROOT / "docs/tutorial.md"] for block in blocks_of(page)]
    not_run = len(NOT_RUN) + 1  # and one of the tutorial
    assert len(blocks) >= 60
    assert not_run <= 0.05 * len(blocks), f"{not_run} of {len(blocks)}"


def test_every_block_says_its_language() -> None:
    fences = {page.name: re.findall(r"^ *```(.*)$", page.read_text(), re.MULTILINE)[::2] for page in PAGES}
    assert {name: kinds for name, kinds in fences.items() if "" in kinds} == {}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("whole run   4.3 s", "whole run"),
        ("per-call  1 %", "per-call"),
        ("per-call would save 1 %", "would save"),
        ("–  GPUs  none", "GPUs"),
        ("1. Look at rank 3, GPU 3", "Look at rank"),
    ],
)
def test_label(line: str, text: str) -> None:
    assert label(line) == text
