# SPDX-License-Identifier: Apache-2.0
"""A user's own defaults: the file, the verb, and what a broken file costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import training_run
from test_commands import PACKAGE, only_run, powerccl

from powerccl.commandline.config import SETTINGS, config_file, local_dir, parse_config, read_config
from powerccl.commandline.tariffs import asked_tariff
from powerccl.commands import VERBS, cli
from powerccl.errors import PowercclError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    path = config_file()
    assert path == tmp_path / "own/powerccl/config.toml"
    path.parent.mkdir(parents=True)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), standalone_mode=False)


def error_of(*arguments: str) -> PowercclError:
    result = run(*arguments)
    assert result.exit_code in (1, 2) and result.stderr.startswith("error: "), result.output
    message, _, hint = result.stderr.removeprefix("error: ").partition("\nhint: ")
    return PowercclError(message, hint.strip())


def test_config_shows_each_setting_and_where_it_is_set(file: Path, work: Path) -> None:
    assert f"{file} sets nothing" in powerccl("config").stdout
    file.write_text('# mine\npue = 1.3\n\n  "price" = "0.25EUR/kWh"\n')
    lines = [line.split() for line in powerccl("config").stdout.splitlines()]
    assert lines == [
        ["price", "0.25EUR/kWh", f"{file}:4"],
        ["carbon", "none", "built-in"],
        ["pue", "1.3", f"{file}:2"],
        ["runs-dir", "runs", "built-in"],
        ["local-dir", "none", "built-in"],
    ]


def test_the_local_directory_is_an_option_else_a_variable_else_the_files(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POWERCCL_LOCAL_DIR", raising=False)
    assert local_dir(read_config()) is None
    file.write_text('local-dir = "/scratch"\n')
    assert local_dir(read_config()) == Path("/scratch")
    monkeypatch.setenv("POWERCCL_LOCAL_DIR", "/dev/shm")
    assert local_dir(read_config()) == Path("/dev/shm")
    monkeypatch.setenv("POWERCCL_LOCAL_DIR", "")  # none, whatever the file says
    assert local_dir(read_config()) is None
    monkeypatch.setenv("POWERCCL_LOCAL_DIR", "tmp")
    with pytest.raises(PowercclError, match="POWERCCL_LOCAL_DIR=tmp is no absolute path"):
        local_dir(read_config())
    done = powerccl("run", "--local-dir", "tmp", "--", "true")
    assert (done.returncode, "--local-dir tmp is no absolute path" in done.stderr) == (2, True)
    assert "no absolute path" in powerccl("config", "set", "local-dir", "tmp").stderr


def test_set_and_unset_change_their_line_alone(file: Path, work: Path) -> None:
    file.write_text('# mine\nprice = "0.25EUR/kWh"  # of 2025\n# the end')
    assert powerccl("config", "set", "price", "0.3EUR/kWh").returncode == 0
    assert powerccl("config", "set", "pue", "1.2").returncode == 0
    assert powerccl("config", "set", "runs-dir", '~/my "runs"').returncode == 0
    assert file.read_text() == '# mine\nprice = "0.3EUR/kWh"\n# the end\npue = 1.2\nruns-dir = "~/my \\"runs\\""\n'
    assert powerccl("config", "unset", "price").returncode == 0
    assert powerccl("config", "unset", "carbon").returncode == 0
    assert file.read_text() == '# mine\n# the end\npue = 1.2\nruns-dir = "~/my \\"runs\\""\n'


def test_set_makes_the_file(tmp_path: Path, work: Path) -> None:
    result = powerccl("config", "set", "carbon", "380g/kWh", XDG_CONFIG_HOME=str(tmp_path / "new"))
    assert result.returncode == 0
    assert (tmp_path / "new/powerccl/config.toml").read_text() == 'carbon = "380g/kWh"\n'


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (("set", "prise", "1"), "unknown setting 'prise'", "did you mean 'price'?"),
        (("unset", "pu"), "unknown setting 'pu'", "did you mean 'pue'?"),
        (("set", "price", "much"), "price 'much': not understood", "0.25EUR/kWh"),
        (("set", "pue", "1,3"), "pue 1,3: not understood", "such as 1.3"),
        (("set", "pue", "0.3"), "a PUE of 0.3 is not possible", "between 1 and 10"),
        (("set", "runs-dir", " "), "a folder has a name", "runs"),
    ],
)
def test_set_refuses_what_no_verb_could_use(
    file: Path, work: Path, arguments: tuple[str, ...], words: str, hint: str
) -> None:
    error = error_of("config", *arguments)
    assert words in error.message and hint in error.hint
    assert not file.exists()


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ('price = "0.25EUR/kWh"\nprise = 1\n', ":2: unknown setting 'prise'", "did you mean 'price'?"),
        ("[carbon]\nx = 1\n", ":1: carbon is text", "quotes"),
        ("price = 0.25\n", ":1: price is text", 'price = "'),
        ('pue = "1.3"\n', ":1: pue is a number", "pue = 1.3"),
        ("pue = true\n", ":1: pue is a number", "pue = 1.3"),
        ("price = 0.25EUR/kWh\n", "is no TOML file", "line 1"),
        ("\npue = 0.2\n", ":2: a PUE of 0.2 is not possible", "between 1 and 10"),
        ('carbon = "g"\n', ":1: carbon intensity 'g': not understood", "380g/kWh"),
        ('price = "absent.csv"\n', ":1: cannot read", "0.25EUR/kWh"),
    ],
)
def test_a_broken_file_stops_every_verb_that_reads_it(file: Path, work: Path, text: str, words: str, hint: str) -> None:
    file.write_text(text)
    training_run(work / "runs/one")
    for arguments in (["config"], ["report", "runs/one"], ["report"], ["compare", "runs/one", "runs/one"]):
        error = error_of(*arguments)
        assert words in error.message and str(file) in error.message
        assert hint in error.message + error.hint


@pytest.mark.parametrize("text", ["runs-dir = [[\n", "runs-dir = 3\n", 'pric = 3\nruns-dir = "x"\n', "\xff runs-dir"])
@pytest.mark.parametrize("options", [(), ("-q",)])
def test_a_broken_file_costs_a_job_one_line(file: Path, work: Path, text: str, options: tuple[str, ...]) -> None:
    file.write_bytes(text.encode("latin-1"))
    result = powerccl("run", *options, "--", "sh", "-c", "echo mine; exit 7")
    assert (result.returncode, result.stdout) == (7, "mine\n")
    assert result.stderr.count("built-in values are used") == 1 and result.stderr.count(str(file)) == 1
    assert only_run(work)


def test_a_price_that_cannot_be_used_costs_a_job_its_cost(file: Path, work: Path) -> None:
    file.write_text('price = "much"\n')
    training_run(work / "runs/one")
    from powerccl.commandline.summaries import make_summary
    from powerccl.commands.run import _cost

    made = make_summary(work / "runs/one")
    assert _cost(*made) is None
    file.write_text('price = "0.36EUR/kWh"\n')
    cost = _cost(*made)
    assert cost and cost.rows[0].cost


def test_runs_dir_is_the_option_else_the_file_else_built_in(file: Path, work: Path) -> None:
    file.write_text('runs-dir = "~/elsewhere"\n')
    home = work / "home"
    assert powerccl("run", "--name", "own", "--", "true", HOME=str(home)).returncode == 0
    assert powerccl("run", "--runs-dir", "given", "--name", "own", "--", "true", HOME=str(home)).returncode == 0
    assert len(list((home / "elsewhere").iterdir())) == len(list((work / "given").iterdir())) == 1
    assert "the last run of" in powerccl("report", HOME=str(home)).stderr
    assert f"the last run of {home}/elsewhere/" in powerccl("report", HOME=str(home)).stderr
    file.unlink()
    assert powerccl("run", "--name", "own", "--", "true", HOME=str(home)).returncode == 0
    assert only_run(work)


def test_options_win_over_the_file(file: Path, tmp_path: Path) -> None:
    file.write_text('price = "prices.csv"\ncarbon = "380g/kWh"\npue = 1.3\n')
    (file.parent / "prices.csv").write_text("time,USD/MWh\n2026-11-25T10:00Z,80\n")
    own = asked_tariff()
    assert own.price and own.price.unit == "USD" and own.carbon and own.carbon.constant == 380 and own.pue == 1.3
    given = asked_tariff("0.25EUR/kWh", "none", 1.5)
    assert given.price and given.price.unit == "EUR" and given.carbon is None and given.pue == 1.5


def test_a_run_parses_no_file_without_such_a_setting(file: Path) -> None:
    """The parser takes longer to import than all the rest of the way to a job's start."""
    code = (
        "import sys; from powerccl.commands import run; run._own_dirs(True, True); "
        "late = {'tomllib', 'tomli', 'msgspec', 'numpy'} & set(sys.modules); sys.exit(str(late) if late else 0)"
    )
    for text in (None, 'price = "0.25EUR/kWh"\n'):
        if text:
            file.write_text(text)
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100), st.sampled_from([b"", *(f"{name} = ".encode() for name in SETTINGS)]))
def test_any_bytes_are_a_file_or_an_error_with_a_hint(tmp_path: Path, data: bytes, start: bytes) -> None:
    try:
        config = parse_config(tmp_path / "config.toml", start + data)
        for name in config.values:
            assert config.place(name)
            config.checked(name)
    except PowercclError as error:
        assert error.hint and str(tmp_path) in error.message


def test_every_setting_is_in_the_help_and_in_the_reference() -> None:
    shown = run("config", "--help").output
    page = (PACKAGE.parent / "docs/reference/config.md").read_text()
    for name in SETTINGS:
        assert f"\n  {name} " in shown and f"`{name}`" in page
    assert "config" in VERBS
