# SPDX-License-Identifier: Apache-2.0
"""Old names of options, variables and policies: they work, one line gives the new name, and old files are read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import fakes
import pytest
import synthetic
from click.testing import CliRunner
from test_commands import only_run, powerccl
from test_commands import work as work  # the fixture: an empty folder and stand-ins for native programs
from test_compare import mpi_file
from test_platforms import profile

from powerccl import aliases
from powerccl.commands import cli
from powerccl.compare.side_by_side import compare_sides
from powerccl.errors import PowercclError
from powerccl.launch.native import MPI_ADAPTER
from powerccl.launch.request import POLICIES
from powerccl.platforms.schema import encode
from powerccl.traces.folder import read_run
from powerccl.traces.records import HEADER_BYTES

RELEASES = "; the old name works in 0.1 and goes in 0.2\n"


def renamed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that give a new name, without what they have in common."""
    lines = done.stderr.splitlines(keepends=True)
    return [line.removeprefix("powerccl: ").removesuffix(RELEASES) for line in lines if line.endswith(RELEASES)]


@pytest.fixture
def no_line_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "_said", set())


@pytest.mark.parametrize(
    ("verb", "old", "new"), [(v, o, n) for v, each in aliases.OPTIONS.items() for o, n in each.items()]
)
def test_help_shows_new_options_only(verb: str, old: str, new: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--help"]).output.split()
    assert new in shown
    assert old not in shown


def test_policies_of_the_table_are_those_of_the_command_line() -> None:
    assert set(aliases.POLICIES.values()) < set(POLICIES)
    assert not set(aliases.POLICIES) & set(POLICIES)
    native = (Path(__file__).parents[2] / "native/base/environment.cpp").read_text()
    for old, new in {**aliases.VARIABLES, **aliases.POLICIES}.items():
        assert f'"{old}"' in native
        assert new in native


def test_old_options_set_what_the_new_ones_do(tmp_path: Path) -> None:
    fakes.write_program(tmp_path / "native" / MPI_ADAPTER, "")
    done = powerccl("run", "-q", "--slowdown", "0.25", "--budget=5", "--", "env", POWERCCL_PRELOAD="1")
    assert {"POWERCCL_MAX_SLOWDOWN=0.25", "POWERCCL_MPI_MAX_DELAY=5"} <= set(done.stdout.splitlines())
    assert renamed(done) == ["--slowdown is now --max-slowdown", "--budget is now --mpi-max-delay"]
    again = powerccl("run", "-q", "--max-slowdown", "0.25", "--mpi-max-delay", "5", "--", "env")
    assert not renamed(again)


def test_old_options_have_the_range_of_the_new_ones() -> None:
    done = powerccl("run", "--slowdown", "0", "--", "touch", "started")
    assert done.returncode == 1
    assert "Invalid value for '--max-slowdown': 0.0 is not in the range" in done.stderr
    assert not Path("started").exists()


def test_an_option_of_the_job_is_its_own() -> None:
    done = powerccl("run", "-q", "--", "echo", "--slowdown", "0.25")
    assert done.stdout == "--slowdown 0.25\n"
    assert not renamed(done)


@pytest.mark.parametrize("order", [1, -1])
def test_old_and_new_option_must_agree(order: int) -> None:
    def run(old: str, new: str) -> subprocess.CompletedProcess[str]:
        options = [("--slowdown", old), ("--max-slowdown", new)][::order]
        return powerccl("run", "-q", *(word for pair in options for word in pair), "--", "env")

    wrong = run("0.25", "0.5")
    assert wrong.returncode == 1
    assert "error: --slowdown 0.25 and --max-slowdown 0.5 differ, and both name the same setting" in wrong.stderr
    assert wrong.stdout == ""
    same = run("0.5", "0.50")
    assert "POWERCCL_MAX_SLOWDOWN=0.5\n" in same.stdout
    assert renamed(same) == ["--slowdown is now --max-slowdown"]


def test_whatif_takes_its_old_option(tmp_path: Path) -> None:
    done = powerccl("whatif", str(tmp_path / "none"), "--budget", "2")
    assert renamed(done) == ["--budget is now --max-slowdown"]
    assert "no run" in done.stderr


@pytest.mark.parametrize(("old", "new"), aliases.POLICIES.items())
def test_old_policies_become_the_new_ones(old: str, new: str, work: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(encode(profile()))
    options = ("--emulate", "t4x8", "--platform", str(tmp_path / "mine.json"))
    done = powerccl("run", "-q", *options, "--policy", old, "--", "env")
    assert f"POWERCCL_POLICY={new}\n" in done.stdout
    assert renamed(done) == [f"policy {old} is now {new}"]
    assert json.loads((only_run(work) / "run.json").read_text())["policy"] == new


def test_the_job_gets_new_variables_only(work: Path) -> None:
    done = powerccl("run", "-q", "--", "env", POWERCCL_BUDGET="3", POWERCCL_MPI_BUDGET="4")
    assert {"POWERCCL_MAX_SLOWDOWN=3", "POWERCCL_MPI_MAX_DELAY=4"} <= set(done.stdout.splitlines())
    assert "BUDGET" not in done.stdout
    assert renamed(done) == [
        "POWERCCL_BUDGET is now POWERCCL_MAX_SLOWDOWN",
        "POWERCCL_MPI_BUDGET is now POWERCCL_MPI_MAX_DELAY",
    ]
    environment = json.loads((only_run(work) / "run.json").read_text())["environment"]
    assert environment["POWERCCL_MAX_SLOWDOWN"] == "3"
    assert "POWERCCL_BUDGET" not in environment


def test_an_option_wins_over_an_old_variable() -> None:
    done = powerccl("run", "-q", "--max-slowdown", "0.5", "--", "env", POWERCCL_BUDGET="3")
    assert "POWERCCL_MAX_SLOWDOWN=0.5\n" in done.stdout


def test_old_and_new_variable_must_agree() -> None:
    both = {"POWERCCL_BUDGET": "3", "POWERCCL_MAX_SLOWDOWN": "2"}
    done = powerccl("run", "-q", "--", "touch", "started", **both)
    assert done.returncode == 1
    assert "error: POWERCCL_BUDGET=3 and POWERCCL_MAX_SLOWDOWN=2 differ" in done.stderr
    assert "hint: unset POWERCCL_BUDGET" in done.stderr
    assert not Path("started").exists()
    with pytest.raises(PowercclError, match="differ"):
        aliases.variables(both, lambda _: None)


@pytest.mark.usefixtures("no_line_was_said")
def test_an_empty_variable_is_an_unset_one() -> None:
    said: list[str] = []
    assert aliases.variables({"POWERCCL_BUDGET": "", "POWERCCL_MAX_SLOWDOWN": "2"}, said.append) == {
        "POWERCCL_MAX_SLOWDOWN": "2"
    }
    assert aliases.variables({"POWERCCL_BUDGET": "", "A": ""}, said.append) == {"A": ""}
    assert not said
    assert aliases.variables({"POWERCCL_BUDGET": "3", "POWERCCL_MAX_SLOWDOWN": ""}, said.append) == {
        "POWERCCL_MAX_SLOWDOWN": "3"
    }
    assert len(said) == 1


@pytest.mark.usefixtures("no_line_was_said")
def test_a_process_gives_a_new_name_once() -> None:
    said: list[str] = []
    for _ in range(3):
        aliases.variables({"POWERCCL_BUDGET": "3"}, said.append)
    assert said == ["POWERCCL_BUDGET is now POWERCCL_MAX_SLOWDOWN" + RELEASES.rstrip()]


def test_one_rank_speaks() -> None:
    """Under srun or mpiexec each rank has a launcher of ours."""
    of_rank = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "here", "POWERCCL_BUDGET": "3"}
    said = {
        rank: renamed(
            powerccl(
                "run", "-q", "--budget", "5", "--policy", "phase", "--", "true",
                OMPI_COMM_WORLD_RANK=rank, OMPI_COMM_WORLD_LOCAL_RANK=rank, **of_rank,
            )
        )
        for rank in ("0", "1")
    }  # fmt: skip
    assert said["0"] == [
        "--budget is now --mpi-max-delay",
        "policy phase is now auto",
        "POWERCCL_BUDGET is now POWERCCL_MAX_SLOWDOWN",
    ]
    assert said["1"] == []


# ---- What older versions wrote.


def old_run(folder: Path, policy: str, budget: str) -> Path:
    """A run as versions before 0.1 left it."""
    synthetic.training_run(folder)
    for path in folder.glob("rank-*.trace"):
        header, data = path.read_bytes()[:HEADER_BYTES], path.read_bytes()[HEADER_BYTES:]
        assert header.count(b"observe\0") == 1
        path.write_bytes(header.replace(b"observe\0", policy.encode().ljust(8, b"\0")) + data)
    environment = {"POWERCCL_BUDGET": budget, "NCCL_ALGO": "Ring"}
    synthetic.write_info(folder, 1_800_000_000, policy=policy, environment=environment)
    return folder


@pytest.mark.parametrize(("old", "new"), [("percall", "per-call"), ("job", "job"), ("fixed", "fixed")])
def test_old_run_folders_show_new_names(old: str, new: str, tmp_path: Path) -> None:
    run = read_run(old_run(tmp_path / "run", old, "2"))
    assert run.info is not None
    assert (run.info.policy, run.info.environment["POWERCCL_MAX_SLOWDOWN"]) == (new, "2")
    assert "POWERCCL_BUDGET" not in run.info.environment
    assert [rank.policy for rank in run.ranks] == [new, new]
    shown = powerccl("report", str(tmp_path / "run"))
    assert shown.returncode == 0
    assert f"policy {new}" in shown.stdout
    written = powerccl("report", "-q", str(tmp_path / "run"), "--json", "-").stdout
    assert f'"{new}"' in written
    assert old == new or f'"{old}"' not in written


def test_an_old_and_a_new_run_differ_by_values_not_by_names(tmp_path: Path) -> None:
    old = old_run(tmp_path / "old", "percall", "2")
    new = synthetic.training_run(tmp_path / "new")
    environment = {"POWERCCL_MAX_SLOWDOWN": "2", "NCCL_ALGO": "Ring"}
    synthetic.write_info(new, 1_800_000_000, policy="per-call", environment=environment)
    assert not [
        text for text in compare_sides([str(old), str(new)], Path).differs if "POWERCCL" in text or "policy" in text
    ]


def test_old_sweeps_are_read(tmp_path: Path) -> None:
    def sweep(name: str, variable: str) -> str:
        path = mpi_file(tmp_path / name, 1)
        path.write_text(json.dumps({**json.loads(path.read_text()), "environment": {variable: "5"}}))
        return str(path)

    old, new = sweep("old.json", "POWERCCL_MPI_BUDGET"), sweep("new.json", "POWERCCL_MPI_MAX_DELAY")
    differs = compare_sides([old, new], Path).differs
    assert not [text for text in differs if text.startswith("POWERCCL_")]


def test_figures_keep_the_names_of_their_series() -> None:
    assert aliases.figure_name("per-call.slowdown_pct") == "percall.slowdown_pct"
    assert aliases.figure_name("observe.step_ms") == "observe.step_ms"
    assert aliases.figure_policy("auto") == "auto"
