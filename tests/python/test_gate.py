# SPDX-License-Identifier: Apache-2.0
"""`powerccl compare --fail-above`: an energy gate whose decisions are right about known truths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic import training_run, write_info

from powerccl.commands import cli
from powerccl.compare.gate import FAILED, PASSED, UNDECIDED, change_of, decide, parse_limit
from powerccl.compare.significance import Change, Value, mean_of
from powerccl.errors import PowercclError


def run_of(folder: Path, times: float = 1.0, iterations: int = 30, ranks: int = 2) -> str:
    """A run whose steps need 30.75 J a GPU, times a factor."""
    return str(training_run(folder, ranks, iterations, comm_watts=45 * times, compute_watts=70 * times))


def gate(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output in one line, standard error."""
    done = CliRunner().invoke(cli, ["compare", *arguments], env={"GITHUB_ACTIONS": "", "COLUMNS": "200"})
    return done.exit_code, " ".join(done.stdout.split()), done.stderr


@pytest.mark.parametrize(
    ("pct", "low_pct", "high_pct", "outcome"),
    [
        (3.0, 1.0, 5.0, FAILED),
        (3.0, -0.1, 6.0, UNDECIDED),
        (1.9, 0.5, 3.3, PASSED),  # an increase, within the limit
        (0.1, -0.8, 1.0, PASSED),
        (0.1, -3.0, 3.2, UNDECIDED),  # neither zero nor 2 % is excluded
        (-5.0, -9.0, -1.0, PASSED),
        (-5.0, None, None, UNDECIDED),
        (None, None, None, UNDECIDED),
    ],
)
def test_the_rule(pct: float | None, low_pct: float | None, high_pct: float | None, outcome: str) -> None:
    assert decide(Change(pct=pct, low_pct=low_pct, high_pct=high_pct), 2.0) == outcome


def test_runs_of_known_energy(tmp_path: Path) -> None:
    plain, more, little = (run_of(tmp_path / name, times) for name, times in (("a", 1.0), ("b", 1.03), ("c", 1.01)))
    code, out, _ = gate(plain, more, "--fail-above", "2%")
    assert code == 3
    assert "energy gate failed: energy of an iteration +3.0 % (95 %: +2.1 to +3.9 %), limit 2 %" in out
    for other in (little, plain):
        code, out, _ = gate(plain, other, "--fail-above", "2")
        assert (code, "energy gate passed" in out) == (0, True)
    assert gate(more, plain, "--fail-above", "0%")[0] == 0, "less energy passes"
    assert gate(plain, more)[0] == 0, "no gate was asked for"


def test_a_gate_that_cannot_tell_does_not_pass(tmp_path: Path) -> None:
    plain, short, moved = run_of(tmp_path / "a"), run_of(tmp_path / "b", iterations=10), run_of(tmp_path / "c", ranks=1)
    for other, words in ((short, "one run each, with fewer than 25 steps"), (moved, "one run each, on different GPUs")):
        code, out, err = gate(plain, other, "--fail-above", "2%")
        assert code == 1
        assert f"energy gate not decided: {words}" in out.replace("energy of an iteration 0.0 %, limit 2 %; ", "")
        assert "error: energy gate not decided" in err and "hint: record" in err


def test_several_runs_of_each_side(tmp_path: Path) -> None:
    """Runs of 1 % apart: two cannot tell 2 %, four can."""
    sides = {
        side: [run_of(tmp_path / f"{side}{n}", times * (1 + 0.005 * (-1) ** n)) for n in range(4)]
        for side, times in (("a", 1.0), ("b", 1.03))
    }
    first, second = (",".join(runs[:2]) for runs in sides.values())
    assert gate(first, second, "--fail-above", "2%")[0] == 1
    first, second = (",".join(runs) for runs in sides.values())
    assert gate(first, second, "--fail-above", "2%")[0] == 3


def test_whole_runs_count_where_there_is_no_step(tmp_path: Path) -> None:
    names = [run_of(tmp_path / name, times, 3) for name, times in (("a", 1.0), ("b", 1.001), ("c", 1.05), ("d", 1.051))]
    first, second = ",".join(names[:2]), ",".join(names[2:])
    code, out, _ = gate(first, second, "--fail-above", "2%")
    assert (code, "energy of the whole run +5.0 %" in out) == (3, True)
    longer = run_of(tmp_path / "longer", 1.0, 4)
    code, out, _ = gate(first, f"{longer},{longer}", "--fail-above", "2%")
    assert (code, "different amounts of work" in out) == (1, True)
    write_info(Path(names[3]), 1_800_000_000, exit_code=9)
    code, out, _ = gate(first, second, "--fail-above", "2%")
    assert (code, "d did not end with exit code 0" in out) == (1, True)


def test_what_github_and_files_get(tmp_path: Path) -> None:
    plain, more = run_of(tmp_path / "a"), run_of(tmp_path / "b", 1.03)
    files = ["--markdown", str(tmp_path / "gate.md"), "--json", "-"]
    words = ["compare", plain, more, "--fail-above", "2%", *files]
    done = CliRunner().invoke(cli, words, env={"GITHUB_ACTIONS": "true"})
    assert done.exit_code == 3
    assert (
        "::error title=Energy gate::b against a: energy gate failed: energy of an iteration +3.0 %25 (" in done.stderr
    )
    found = json.loads(done.stdout)["gate"]
    assert (found["outcome"], found["limit_pct"], found["change"]["verdict"]) == ("failed", 2.0, "higher")
    assert "**Energy gate failed: energy of an iteration +3.0 %" in (tmp_path / "gate.md").read_text()
    done = CliRunner().invoke(cli, ["compare", more, plain, "--fail-above", "2%"], env={"GITHUB_ACTIONS": "true"})
    assert "::notice title=Energy gate::" in done.stderr


def test_what_it_does_not_judge(tmp_path: Path) -> None:
    plain = run_of(tmp_path / "a")
    assert gate(plain, plain, plain, "--fail-above", "2%")[0] == 2
    for text in ("much", "-1%", "nan"):
        with pytest.raises(PowercclError, match="takes a percentage"):
            parse_limit(text)


def test_one_run_each_covers_slow_noise() -> None:
    """Noise whose long stretches differ as much as short ones, as a random walk's do: chance seldom fails the gate."""
    rng = np.random.default_rng(7)

    def noisy() -> Value:
        walk = np.cumsum(rng.normal(0, 0.003, 4000))
        start = int(rng.integers(0, 3000))
        value = mean_of((100 * np.exp(walk - walk.mean()))[start : start + 400].tolist(), "iterations")
        assert value
        return value

    outcomes = [decide(change_of([noisy()], [noisy()]), 2.0) for _ in range(200)]
    assert outcomes.count(FAILED) <= 60
