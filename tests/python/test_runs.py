# SPDX-License-Identifier: Apache-2.0
"""`powerccl runs`, how runs are named, and what a shell completes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from synthetic import training_run

from powerccl.analysis.report import report
from powerccl.commandline import run_index
from powerccl.commandline.run_index import BROKEN, NO_END, RECORDING, RunRow, run_rows
from powerccl.commandline.runs import find_run, last_runs
from powerccl.commandline.since import parse_since
from powerccl.commandline.summaries import summary_of
from powerccl.commands import cli
from powerccl.errors import PowercclError
from powerccl.runs.selection import COLUMNS, in_order, select

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def made(
    runs: Path, folder: str, name: str = "", day: int = 1, summary: dict[str, Any] | None = None, **more: Any
) -> Path:
    """A run folder as `powerccl run` leaves it, without traces."""
    path = runs / folder
    path.mkdir(parents=True)
    info = {
        "command": ["train"],
        "name": name or folder,
        "started_at": f"2026-11-{day:02d}T08:00:00+0000",
        "start_ns": SECOND,
        "end_ns": 11 * SECOND,
        "exit_code": 0,
        **more,
    }
    (path / "run.json").write_text(json.dumps(info))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


SUMMARY = {
    "energy": {"joules": 2500.0},
    "shares": {"exposed_pct": 12.5},
    "gpus": [{"gpu": "a"}, {"gpu": "b"}],
    "iteration_s": 0.25,
    "joules_per_iteration": 64.0,
    "patterns": [{"pattern": "all_reduce"}],
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three jobs; of one, two runs."""
    folder = tmp_path / "runs"
    made(folder, "20261101-080000-train", "train", 1, SUMMARY)
    made(folder, "20261102-080000-train", "train", 2, exit_code=3)
    made(folder, "20261103-080000-transfer", "transfer", 3, emulated="t4x8")
    made(folder, "20261104-080000-solve", "solve", 4)
    return folder


def asked(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def names(rows: list[RunRow]) -> list[str]:
    return [row.folder[6:] for row in rows]


def test_a_row_has_what_its_files_say_and_nothing_else(runs: Path) -> None:
    rows = {row.folder: row for row in run_rows(runs)}
    whole = rows["20261101-080000-train"]
    assert (whole.wall_s, whole.gpus, whole.joules, whole.joules_per_iteration) == (10.0, 2, 2500.0, 64.0)
    assert (whole.exposed_pct, whole.exit_code, whole.emulated) == (12.5, 0, "")
    bare = rows["20261103-080000-transfer"]
    assert (bare.wall_s, bare.emulated) == (10.0, "t4x8")
    assert (bare.gpus, bare.joules, bare.iteration_s, bare.joules_per_iteration, bare.exposed_pct) == (None,) * 5


def test_the_newest_is_first_and_latest(runs: Path) -> None:
    os.utime(runs / "20261101-080000-train" / "run.json")  # such as by a copy
    newest_first = ["04-080000-solve", "03-080000-transfer", "02-080000-train", "01-080000-train"]
    assert names(run_rows(runs)) == newest_first
    assert last_runs(runs)[0] == find_run("latest", runs, quiet=True) == runs / "20261104-080000-solve"


def test_runs_that_are_not_whole_cost_one_row(runs: Path) -> None:
    (runs / "broken").mkdir()
    (runs / "broken/run.json").write_text('{"command": [')
    (runs / "begun").mkdir()
    (runs / "begun/.run-id").write_text("0" * 32)
    (runs / "other").mkdir()
    (runs / "a-file").write_text("")
    killed = made(runs, "killed", end_ns=0, exit_code=None)
    recording = made(runs, "recording", end_ns=0, exit_code=None)
    for file in killed.iterdir():
        os.utime(file, (1e9, 1e9))
    made(runs, "odd-summary", summary={"energy": {"joules": "much"}})
    rows = {row.folder: row for row in run_rows(runs)}
    states = {name: rows[name].state for name in ("broken", "begun", "killed", recording.name, "odd-summary")}
    assert states == {"broken": BROKEN, "begun": BROKEN, "killed": NO_END, "recording": RECORDING, "odd-summary": ""}
    assert "run.json" in rows["broken"].problem and rows["begun"].problem == "no run.json"
    assert rows["odd-summary"].joules is None and rows["killed"].wall_s is None
    assert "other" not in rows and len(rows) == 9
    shown = asked("runs", "--runs-dir", str(runs))
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert [sum(line.startswith(name) for line in lines) for name in ("broken", "begun", "killed", "recording")] == [
        1
    ] * 4
    failed = asked("runs", "--runs-dir", str(runs), "--failed", "--csv", "-")
    found = {row["folder"] for row in csv.DictReader(io.StringIO(failed.stdout))}
    assert found == {"broken", "begun", "killed", "20261102-080000-train"}


def test_a_link_to_a_run_beside_it_is_no_other_run(runs: Path) -> None:
    (runs / "best").symlink_to("20261104-080000-solve")
    (runs / "itself").symlink_to("itself")
    assert len(run_rows(runs)) == 4
    assert find_run("best", runs) == runs / "best"


def test_the_table_fits_and_labels_emulated_runs(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, 100, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = asked("runs", "--runs-dir", str(runs)).stdout
        assert max(map(len, shown.splitlines())) <= width
        line = next(line for line in shown.splitlines() if line.startswith("transfer"))
        assert "emulated t4x8" in " ".join(shown.split()) and "11-03" in line
        assert ("2026-11-03 08:00" in line) == (width > 80)
        assert shown.startswith("4 runs in ")
        assert next(line for line in shown.splitlines() if " 64.0 " in line).startswith("train")
    only = asked("runs", "--runs-dir", str(runs), "transfer").stdout.splitlines()
    assert only[0].endswith("emulated t4x8") and "emulated" not in only[2]


def test_a_part_of_the_energy_is_at_least(runs: Path) -> None:
    part = {"energy": {"joules_at_least": 2500.0}, "shares": {"exposed_pct": 5.0, "uncovered_pct": 10.0}}
    made(runs, "part", summary=part)
    line = next(
        each for each in asked("runs", "--runs-dir", str(runs), "part").stdout.splitlines() if "part" in each[:8]
    )
    assert "≥ 2.50" in line and "≥ 5.0 %" in line


def test_filters_and_order(runs: Path) -> None:
    rows = run_rows(runs)
    assert names(select(rows, ["tra"])) == ["03-080000-transfer", "02-080000-train", "01-080000-train"]
    assert names(select(rows, ["*solve", "transfer"])) == ["04-080000-solve", "03-080000-transfer"]
    assert names(select(rows, ["20261102"])) == ["02-080000-train"]
    assert names(select(rows, failed=True)) == ["02-080000-train"]
    now = datetime.fromisoformat("2026-11-05T08:00:00+00:00")
    assert names(select(rows, since_s=parse_since("2d", now))) == ["04-080000-solve", "03-080000-transfer"]
    assert names(select(rows, since_s=parse_since("2026-11-04", now))) == ["04-080000-solve"]
    assert names(in_order(rows, "energy"))[0] == "01-080000-train"
    assert [row.name for row in in_order(rows, "name")] == ["solve", "train", "train", "transfer"]
    for column in COLUMNS:
        assert sorted(names(in_order(rows, column))) == sorted(names(rows))
    with pytest.raises(PowercclError, match="--since soon: not understood"):
        parse_since("soon", now)


def test_columns_of_the_option_are_those_that_can_be_sorted() -> None:
    from powerccl.runs.command import SORTS

    assert tuple(COLUMNS) == SORTS


def test_json_and_csv_have_the_same_rows(runs: Path, tmp_path: Path) -> None:
    done = asked("runs", "--runs-dir", str(runs), "--json", "-", "--csv", str(tmp_path / "runs.csv"), "--last", "3")
    found = json.loads(done.stdout)["runs"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text())))
    assert [row["folder"] for row in rows] == [row["folder"] for row in found]
    assert len(found) == 3 and found[0]["joules"] is None and rows[0]["joules"] == ""


def test_more_rows_than_a_screen_are_counted(tmp_path: Path) -> None:
    for number in range(40):
        made(tmp_path / "runs", f"run{number:02d}", day=1)
    shown = asked("runs", "--runs-dir", str(tmp_path / "runs")).stdout
    assert shown.startswith("30 of 40 runs in ") and "… 10 more: --last 40" in shown
    assert "run00" in asked("runs", "--runs-dir", str(tmp_path / "runs"), "--last", "40").stdout


def test_without_runs_it_says_how_to_record_one(tmp_path: Path, runs: Path) -> None:
    done = asked("runs", "--runs-dir", str(tmp_path / "nowhere"))
    assert done.exit_code == 1 and "has no run folders" in done.stderr and "powerccl run --" in done.stderr
    assert "none of 4 runs" in asked("runs", "--runs-dir", str(runs), "nothing").stdout


def test_names_of_others_do_nothing(runs: Path) -> None:
    made(runs, os.fsdecode(b"bytes-\xff"), name="=\x1b]0;PWN\x07\u202ePWN[red]", day=5)
    for words in ([], ["--json", "-"], ["--csv", "-"]):
        done = asked("runs", "--runs-dir", str(runs), *words)
        assert done.exit_code == 0, done.output
        text = done.stdout_bytes.decode()
        assert "PWN[red]" in text and not set(text) & set("\x1b\x07\u202e"), words
        assert words != ["--csv", "-"] or not re.search(r"(^|,)=", text, re.MULTILINE)
    assert len(completed("bash", "powerccl report ", runs)) == 1 + 3 + 4


# The cache.


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders whose files are read from now on."""
    read: list[str] = []
    whole = run_index._read_row
    monkeypatch.setattr(run_index, "CACHED_FROM", 1)

    def reading(path: Path, stamp: run_index.Stamp) -> RunRow:
        read.append(path.name)
        return whole(path, stamp)

    monkeypatch.setattr(run_index, "_read_row", reading)
    return read


def test_only_what_changed_is_read_again(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch)
    first = run_rows(runs)
    assert len(read) == 4
    read.clear()
    assert run_rows(runs) == first and not read
    (runs / "20261104-080000-solve/summary.json").write_text(json.dumps(SUMMARY))
    made(runs, "new")
    again = {row.folder: row for row in run_rows(runs)}
    assert sorted(read) == ["20261104-080000-solve", "new"] and again["20261104-080000-solve"].gpus == 2
    for file in (runs / "new").iterdir():
        file.unlink()
    assert "new" not in {row.folder for row in run_rows(runs)}


def test_a_run_is_recording_as_long_as_it_writes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on the time is not kept."""
    read = counted(monkeypatch)
    path = made(runs, "dying", end_ns=0)
    states = [next(row.state for row in run_rows(runs) if row.folder == "dying")]
    monkeypatch.setattr(run_index, "SILENT_S", -1.0)
    states.append(next(row.state for row in run_rows(runs) if row.folder == "dying"))
    assert states == [RECORDING, NO_END] and read.count(path.name) == 1


@pytest.mark.parametrize("harm", ["damaged", "another schema", "a folder", "no place"])
def test_a_cache_that_is_of_no_use_costs_time_only(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setattr(run_index, "CACHED_FROM", 1)
    first = run_rows(runs)
    (file,) = (tmp_path / "cache/powerccl").iterdir()
    if harm == "damaged":
        file.write_bytes(file.read_bytes()[:-9])
    elif harm == "another schema":
        cache = json.loads(file.read_bytes())
        cache["rows"]["20261104-080000-solve"][1]["name"] = "old"
        file.write_text(json.dumps(cache | {"schema": 0}))
    elif harm == "a folder":
        file.unlink()
        file.mkdir()
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert run_rows(runs) == first


def test_two_lists_at_once_leave_a_whole_cache(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "CACHED_FROM", 0)
    first = run_rows(runs)
    wrong: list[list[RunRow]] = []

    def lists() -> None:
        wrong.extend(rows for rows in (run_rows(runs) for _ in range(50)) if rows != first)

    threads = [threading.Thread(target=lists) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (file,) = (tmp_path / "cache/powerccl").iterdir()
    assert not wrong and set(msgspec.json.decode(file.read_bytes())["rows"]) == {row.folder for row in first}


def test_a_few_runs_make_no_cache(runs: Path, tmp_path: Path) -> None:
    run_rows(runs)
    assert not (tmp_path / "cache").exists()


# Names.


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("latest", "20261104-080000-solve"),
        ("", "20261104-080000-solve"),
        ("20261101-080000-train", "20261101-080000-train"),
        ("train", "20261102-080000-train"),
        ("trai", "20261102-080000-train"),
        ("s", "20261104-080000-solve"),
        ("20261103", "20261103-080000-transfer"),
    ],
)
def test_a_run_by_a_folder_a_name_or_the_beginning_of_one(runs: Path, name: str, folder: str) -> None:
    assert find_run(name, runs, quiet=True) == runs / folder


def test_a_folder_here_that_is_no_run_hides_none(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    assert find_run("train", runs, quiet=True) == runs / "20261102-080000-train"
    assert find_run("./train", runs) == Path("./train")
    (tmp_path / "lone").mkdir()
    assert find_run("lone", runs) == Path("lone")


def test_an_ambiguous_name_lists_five_candidates_and_a_wrong_one_the_nearest(runs: Path) -> None:
    for number in range(7):
        made(runs, f"many-{number}", day=9)
    with pytest.raises(PowercclError) as error:
        find_run("many", runs)
    assert "many is ambiguous: 7" in error.value.message
    assert error.value.hint.count("many-") == 5 and error.value.hint.endswith("and 2 more")
    with pytest.raises(PowercclError) as error:
        find_run("tra", runs)  # two names, of which one has two runs
    assert "2 names" in error.value.message and "transfer, train" in error.value.hint
    with pytest.raises(PowercclError) as error:
        find_run("trian", runs)
    assert error.value.message == "no run trian" and "did you mean 'train'?" in error.value.hint


def test_what_a_name_stands_for_is_said(runs: Path) -> None:
    done = asked("report", "trai", "--runs-dir", str(runs))
    assert done.stderr.splitlines()[0].endswith("the last run train of " + f"{runs}/: 20261102-080000-train")


def test_verbs_find_runs_alike(runs: Path) -> None:
    for words in (["report"], ["whatif"], ["compare", "latest"], ["tune", "--from"], ["tune", "--beside"]):
        done = asked(*words, "trian", "--runs-dir", str(runs))
        assert "did you mean 'train'?" in done.stderr, words


# compare.


def test_runs_of_one_name_are_repetitions(tmp_path: Path) -> None:
    folders = [training_run(tmp_path / f"runs/{name}-{number}") for number in (1, 2, 3) for name in ("spin", "sleep")]
    for folder in folders:
        info = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(info | {"name": folder.name[:-2]}))
    out = tmp_path / "found.json"

    def sides(*words: str) -> list[tuple[str, int]]:
        done = asked("compare", *words, "--runs-dir", str(tmp_path / "runs"), "--json", str(out))
        assert done.exit_code == 0, done.output
        return [(side["name"], len(side["members"])) for side in json.loads(out.read_text())["sides"]]

    assert sides(*map(str, sorted(folders))) == [("sleep", 3), ("spin", 3)]
    assert sides("sleep-1", "spin-1", "spin-2", "spin-2") == [("sleep", 1), ("spin", 2)]
    assert sides("a=sleep-1", "spin-1", "spin-2") == [("a", 1), ("spin-1", 1), ("spin-2", 1)]
    assert sides("sleep-1,sleep-2", "spin-1") == [("sleep-1 +1", 2), ("spin-1", 1)]
    assert sides("spin-1", "spin-2") == [("spin-1", 1), ("spin-2", 1)], "one name: each is a side"
    assert sides("spin", "sleep") == [("spin", 1), ("sleep", 1)], "a name stands for its latest run"


def test_many_sides_have_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = training_run(tmp_path / "base")
    for number in range(12):
        folder = tmp_path / f"runs/side{number:02d}"
        folder.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-r", str(base), str(folder)], check=True)
        info = json.loads((folder / "run.json").read_text())
        info.update(name=folder.name, environment={"NCCL_ALGO": str(number)})
        (folder / "run.json").write_text(json.dumps(info))
    monkeypatch.setenv("COLUMNS", "80")
    folders = [str(path) for path in sorted((tmp_path / "runs").iterdir())]
    done = asked("compare", *folders, "--json", str(tmp_path / "found.json"), "--markdown", str(tmp_path / "found.md"))
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [sum(line.startswith(f"side{number:02d} ") for line in lines) for number in range(12)] == [1] * 12
    assert len(lines) < 40 and max(map(len, lines)) <= 80
    assert (
        "11 sides against side00" in done.stdout
        and "NCCL_ALGO: 0 (side00), 1 (side01), 2 (side02) and 9 more" in done.stdout
    )
    assert "more figures of each side in --json" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["rows"]) > 5 and len(found["rows"][0]["cells"]) == 12
    assert (tmp_path / "found.md").read_text().count("\n| side") == 12


# The summary's iteration.


def test_an_iteration_of_the_summary_is_that_of_the_report(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", iterations=12)
    (inside,) = report(folder).findings.iterations
    summary = summary_of(folder)
    assert summary.iteration_s == inside.median_s and summary.joules_per_iteration == inside.joules
    assert summary.joules_per_iteration


# Completion.


def completed(shell: str, words: str, runs: Path) -> list[str]:
    """What a shell is answered; the last word is the one that is being typed."""
    typed = words.split(" ")
    environment = {**os.environ, "_POWERCCL_COMPLETE": f"{shell}_complete", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(typed) - 1) if shell != "fish" else typed[-1]
    done = subprocess.run(
        [sys.executable, "-m", "powerccl"], cwd=runs.parent, env=environment, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.split()


def test_runs_are_completed_by_name_and_folder(runs: Path) -> None:
    made(runs, "odd", name="two words")
    assert completed("bash", "powerccl report l", runs) == ["plain,latest"]
    assert completed("bash", "powerccl report tra", runs) == ["plain,transfer", "plain,train"]
    assert completed("bash", "powerccl whatif 2026110", runs)[0] == "plain,20261104-080000-solve"
    assert completed("bash", "powerccl compare train,s", runs) == ["plain,train,solve"]
    assert completed("bash", "powerccl tune --from so", runs) == ["plain,solve"]
    assert completed("bash", f"powerccl top --runs-dir {runs} s", runs) == ["plain,solve"]
    assert completed("bash", "powerccl report runs/x", runs) == ["file,runs/x"]
    assert "plain,--html" in completed("bash", "powerccl report --h", runs)
    assert completed("bash", "powerccl ru", runs) == ["plain,run", "plain,runs"]
    assert "latest" in completed("fish", "powerccl report l", runs)[0]
    assert "words" not in " ".join(completed("bash", "powerccl report t", runs))


def test_completion_imports_nothing_large(runs: Path) -> None:
    code = (
        "import sys\nfrom powerccl.commands import main\n"
        "try:\n main()\nexcept SystemExit:\n"
        " print(sorted({'numpy', 'polars', 'rich', 'scipy', 'plotly'} & set(sys.modules)))"
    )
    environment = {
        **os.environ,
        "_POWERCCL_COMPLETE": "bash_complete",
        "COMP_WORDS": "powerccl report s",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=runs.parent, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:2] == ["plain,solve", "[]"], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell: str) -> None:
    script = asked("completion", shell).stdout
    assert f"_POWERCCL_COMPLETE={shell}_complete" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True).stderr == ""
        done = subprocess.run(
            ["bash", "-c", f"{script}\ncomplete -p powerccl"], capture_output=True, text=True, check=True
        )
        assert "-o default" in done.stdout
