# SPDX-License-Identifier: Apache-2.0
"""Environments that break programs: senseless sizes of the terminal, users without a home, foreign signal handlers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic import training_run
from test_platforms import profile

from powerccl import host_clock
from powerccl.commands import cli
from powerccl.console import GREATEST_WIDTH, LEAST_WIDTH, Console
from powerccl.platforms.schema import encode
from powerccl.platforms.store import PROFILES

PACKAGE = Path(__file__).parents[2] / "python"
HANDLERS = Path(__file__).parents[1] / "e2e/programs/handlers.c"
SENSELESS = ("0", "-1", "abc", "", "99999999999", "³", "1e2")


@pytest.mark.parametrize("size", SENSELESS)
def test_a_senseless_size_counts_as_none(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", size)
    monkeypatch.setenv("LINES", size)
    console = Console()
    assert LEAST_WIDTH <= console.width <= GREATEST_WIDTH
    assert console.height > 0


@pytest.mark.parametrize(("columns", "width"), [("1", LEAST_WIDTH), ("57", 57), ("1000", GREATEST_WIDTH)])
def test_a_size_is_kept_within_bounds(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")  # a dumb one has 80 columns, whatever it says
    assert Console().width == width


@pytest.mark.parametrize("size", ["0", "1"])
def test_every_table_is_printed_where_there_are_no_columns(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training_run(tmp_path / "run")
    monkeypatch.setenv("COLUMNS", size)
    monkeypatch.setenv("LINES", size)
    run = str(tmp_path / "run")
    for words in (["report", run], ["compare", run, run], ["top", "--once", run], ["whatif", run], ["doctor"]):
        done = CliRunner().invoke(cli, words)
        assert len((done.output + done.stderr).split()) > 10, words


def homeless(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    def nobody(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}, {"HOME": "home"}, {"XDG_CONFIG_HOME": "config"}])
def test_without_a_home_the_built_in_files_are_known(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    homeless(monkeypatch, **environment)
    assert PROFILES.folder is None
    assert set(PROFILES.known()) == {path.stem for path in (PACKAGE / "powerccl/platforms/builtin").glob("*.json")}
    assert PROFILES.place("mine", tmp_path) == tmp_path / "mine.json"


def test_a_home_that_cannot_be_read_or_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.write_text("a file")
    homeless(monkeypatch, HOME=str(home))
    assert list(PROFILES.known())
    assert PROFILES.place("mine", tmp_path) == tmp_path / "mine.json"
    homeless(monkeypatch, HOME="/" + "x" * 300)  # too long a name: an error where others are just missing
    assert list(PROFILES.known())


def test_the_account_has_a_home_where_the_environment_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    monkeypatch.setattr("pwd.getpwuid", lambda uid: pwd.struct_passwd(("a", "x", uid, 0, "", str(tmp_path), "/bin/sh")))
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    assert PROFILES.folder == tmp_path / ".config/powerccl/platforms"
    assert PROFILES.place("mine", Path("/nowhere")) == PROFILES.folder / "mine.json"
    PROFILES.folder.mkdir(parents=True)
    (PROFILES.folder / "mine.json").write_bytes(encode(profile()))
    assert "mine" in PROFILES.known()


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("takes a C compiler")
    library = tmp_path_factory.mktemp("handlers") / "handlers.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(HANDLERS)], check=True)
    return str(library)


HANDLED = """
import os, signal, sys
sys.path.insert(0, {package!r})
from powerccl.launch.child import Child, interruptible, run_child
child = Child()
with interruptible(child):
    ended = run_child(["sh", "-c", {script!r}], {{"PATH": os.environ["PATH"]}}, child=child)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGPROF):
    os.kill(os.getpid(), number)
sys.exit(ended.code)
"""


def under_handlers(library: str, script: str) -> subprocess.CompletedProcess[str]:
    program = HANDLED.format(package=str(PACKAGE), script=script)
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD, signal.SIGPROF)
    environment = {**os.environ, "LD_PRELOAD": library, "HANDLERS": " ".join(str(int(each)) for each in numbers)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_a_librarys_handlers_are_put_back(handlers: str) -> None:
    done = under_handlers(handlers, "exit 3")
    assert done.returncode == 3, done.stderr
    assert done.stderr == 5 * "handled by a library\n"


def test_the_job_gets_signals_that_a_library_handles(handlers: str) -> None:
    done = under_handlers(
        handlers, "trap 'exit 9' TERM; kill -PROF $PPID; kill -TERM $PPID; while :; do sleep 0.1; done"
    )
    assert done.returncode == 9, done.stderr
    # Its own timer's signal is the library's.
    assert done.stderr == 6 * "handled by a library\n"


def test_the_clock_is_the_hosts(tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("takes root to enter a time namespace")
    code = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); from powerccl import host_clock as clock; "
    code += "print(clock.monotonic_ns(), clock.shift_ns(), clock.shift_ns('boottime'))"
    words = ["unshare", "--time", "--monotonic", "86400", "--boottime", "-1", sys.executable, "-c", code]
    before = host_clock.monotonic_ns()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no time namespaces here: {done.stderr}")
    now, shift, boot_shift = map(int, done.stdout.split())
    assert before < now < host_clock.monotonic_ns()
    assert (shift, boot_shift) == (86400 * 10**9, -(10**9))
