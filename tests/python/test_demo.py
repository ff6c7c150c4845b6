# SPDX-License-Identifier: Apache-2.0
"""The demo: its MPI job in turns, and models that fail."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import fakes
import pytest
from click.testing import CliRunner

from powerccl.commands import cli
from powerccl.console import Console
from powerccl.demo import command as demo_command
from powerccl.demo import mpi as mpi_demo
from powerccl.demo import report as reports_demo
from powerccl.demo import savings, training
from powerccl.demo.mpi_report import MpiDemo
from powerccl.demo.page import demo_page
from powerccl.errors import PowercclError
from powerccl.launch.native import MPI_ADAPTER, NativeFiles


@pytest.fixture
def native(loadable_native: NativeFiles) -> NativeFiles:
    return loadable_native


PACKAGE = Path(__file__).parents[2] / "python"
BENCH_MPI = f"""#!{sys.executable}
import json, os, pathlib, sys
if os.environ.get("FAKE_BENCH_FAILS", "") == os.environ.get("POWERCCL_MPI", "none"):
    sys.exit("no slots")
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(PACKAGE)!r}]
managed = os.environ.get("POWERCCL_MPI") == "auto"
if managed:
    import synthetic
    for rank in (0, 1):
        trace = synthetic.mpi_trace(rank, 2)
        times_ns = [ms * (1 - rank) * 1_000_000 for ms in (400, 390, 300)]
        trace.mpi_total(2_000_000_000, "Allreduce", 300, *times_ns)
        trace.process(2_000_000_000, 1_000_000_000)
        trace.write(pathlib.Path(os.environ["POWERCCL_RUN_FOLDER"]), f"mpi-{{rank}}.trace")
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(
    json.dumps(dict(schema=1, summary=dict(run_s=2.0, cpu_s=3.4 if managed else 4.0, sweeps=7, checksum=0.25))))
assert "--sweeps 7" in " ".join(sys.argv) or os.environ.get("POWERCCL_MPI", "none") == "none"
"""


@pytest.fixture
def small_mpi(native: NativeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NativeFiles:
    """A launcher that starts one process and a benchmark that says what it is to say."""
    fakes.write_program(tmp_path / "bin/mpiexec", '#!/bin/sh\nshift 2\nexec "$@"\n')
    fakes.write_program(native.root / "bin/powerccl-bench-mpi", BENCH_MPI)
    monkeypatch.setenv("POWERCCL_NATIVE", str(native.root))
    monkeypatch.setattr(mpi_demo, "find_launchers", lambda: [str(tmp_path / "bin/mpiexec")])
    return native


def demo(tmp_path: Path) -> tuple[MpiDemo | None, str]:
    target = Console(file=io.StringIO(), width=100)
    shown = demo_command._mpi(target, tmp_path / "runs")
    assert isinstance(target.file, io.StringIO)
    return shown, target.file.getvalue()


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
@pytest.mark.usefixtures("small_mpi")
def test_the_demo_runs_in_turns_and_shows_what_it_measured(tmp_path: Path) -> None:
    found, shown = demo(tmp_path)
    assert found
    assert len(list((tmp_path / "runs").iterdir())) == 2 * mpi_demo.TURNS
    saved = found.figures["cpu_saved_pct"]
    assert saved.value == pytest.approx(15)
    assert (saved.unit, saved.n) == ("%", mpi_demo.TURNS)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "CPU time, 2 ranks 4.00 s 3.40 s -15.0 % (-15.0 to -15.0 %)" in lines
    assert "run time 2.00 s 2.00 s 0.0 % (0.0 to 0.0 %)" in lines
    assert "waiting asleep 300 ms" in lines
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert "all results are equal" in shown
    page = demo_page([], found)
    assert "rank 1" in page
    assert "-15.0 % (-15.0 to -15.0 %)" in page


@pytest.mark.parametrize(("fails", "words"), [("none", "no MPI job: "), ("auto", "no MPI figures: ")])
@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
@pytest.mark.usefixtures("small_mpi")
def test_a_demo_whose_mpi_fails_goes_on(
    tmp_path: Path,
    fails: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAKE_BENCH_FAILS", fails)
    assert demo(tmp_path) == (None, "")
    said = capsys.readouterr().err
    assert words in said
    assert "no slots" in said


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
@pytest.mark.usefixtures("small_mpi")
def test_a_demo_shows_the_turns_that_were_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stencil = mpi_demo.run_stencil

    def failing(*given: object) -> Path:
        if "stencil-auto-3" in given:
            raise PowercclError("the MPI job ended with 1: no slots", "")
        return run_stencil(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(mpi_demo, "run_stencil", failing)
    found, shown = demo(tmp_path)
    assert found is not None and shown
    assert {figure.n for figure in found.figures.values() if figure.unit == "%"} == {2}
    assert "MPI figures of 2 of 3 turns: the MPI job ended with 1: no slots" in capsys.readouterr().err


def test_a_demo_without_mpi_says_so_in_a_line(
    small_mpi: NativeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mpi_demo, "find_launchers", lambda: [])
    assert demo(tmp_path) == (None, "")
    assert "no MPI job: no mpiexec on this machine (pip install mpich installs one)" in capsys.readouterr().err
    (small_mpi.root / MPI_ADAPTER).unlink()
    assert demo(tmp_path) == (None, "")
    assert "no MPI job: this build of PowerCCL has no MPI library" in capsys.readouterr().err
    monkeypatch.setenv("POWERCCL_MPI", "off")
    assert demo(tmp_path) == (None, "")
    assert "POWERCCL_MPI=off" in capsys.readouterr().err


def test_a_model_that_fails_costs_the_demo_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(model: str, *_: object) -> str:
        if model == "opt":
            raise PowercclError("powerccl-bench ended with 4: a rank failed", "see what is wrong")
        return model

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(savings, "savings", lambda *_: {"saved": 1})
    monkeypatch.setattr(reports_demo, "print_demo", lambda *_: None)
    out = tmp_path / "demo.json"
    words = ["demo", "--no-mpi", "--model", "microllama", "--model", "opt", "--model", "gpt2", "--json", str(out)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1
    assert "error: powerccl-bench ended with 4: a rank failed" in done.stderr
    assert set(json.loads(out.read_text())) == {"demo.microllama.saved", "demo.gpt2.saved"}
