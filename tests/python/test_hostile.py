# SPDX-License-Identifier: Apache-2.0
"""Files and names that mean harm: nothing waits for ever, nothing is read without end, nothing raw comes out."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from plotly.offline import get_plotlyjs
from synthetic import MS, TraceWriter, mpi_run, profile_of, training_run, write_info

from powerccl import clean, files
from powerccl.commands import VERBS, cli
from powerccl.live.run_folder import LiveRun
from powerccl.traces.folder import read_run

NOBODY = 65534
RAW = re.compile("(?!\n)[" + clean._RAW + "]")
# A title for the terminal, an 8-bit control, a turn of direction, markup, a formula, HTML, quotes, and a surrogate.
EVIL = '=\x1b]0;PWN\x07\x9b31m\u202ePWN[red]</script><b>"\\'


# Opening.


def replaced(path: Path, how: str) -> None:
    """Put something else in the place of a file."""
    path.unlink(missing_ok=True)
    if how == "a FIFO":
        os.mkfifo(path)
    elif how == "a socket":
        listening = socket.socket(socket.AF_UNIX)
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)
            listening.close()
    elif how == "a directory":
        path.mkdir()
    elif how == "a device":
        path.symlink_to("/dev/zero")
    elif how == "bytes":
        with path.open("wb") as file:
            file.truncate(1 << 43)


HOW = ("a FIFO", "a socket", "a directory", "a device", "bytes")


@pytest.mark.parametrize("how", HOW)
def test_only_regular_files_are_opened(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run.json"
    replaced(path, how)
    with pytest.raises(OSError, match=how) as caught:
        files.read_bytes(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["run.json", "rank-0.trace", "mpi-0.trace", "power-node1.csv", "cpu-a.csv"])
def test_whatever_is_in_the_place_of_a_file_is_a_problem_of_the_run(tmp_path: Path, name: str, how: str) -> None:
    folder = training_run(tmp_path / "run")
    replaced(folder / name, how)
    whole = read_run(folder)
    assert any(name in problem and how in problem for problem in whole.problems), whole.problems
    live = LiveRun(folder)
    live.look()
    assert any(name in problem and how in problem for problem in live.problems), live.problems
    live.close()


def test_links_are_not_followed_where_others_write(tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "open/run.json"
    secret.write_text("secret")
    link.parent.mkdir()
    link.symlink_to(secret)
    assert files.read_bytes(link) == b"secret"
    link.parent.chmod(0o777)
    with pytest.raises(OSError, match="a symbolic link in a folder of another user"):
        files.read_bytes(link)


def test_a_file_of_holes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.trace").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="holes"), files.opened(tmp_path / "a.trace", files.MOST_TRACE):
        pass


def test_a_file_that_grows_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    read = os.read

    def growing(file: int, count: int) -> bytes:
        with path.open("ab") as more:
            more.write(b"y" * 10)
        return read(file, count)

    monkeypatch.setattr(os, "read", growing)
    assert files.read_bytes(path) == b"x" * 10


def test_a_trace_cut_short_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped, it would end the reader."""
    from powerccl.traces import large

    folder = training_run(tmp_path / "run", ranks=1)
    path = folder / "rank-0.trace"
    read_chunk = large.read_chunk

    def cut(*arguments: Any) -> object:
        os.truncate(path, 4096 + 64 * 3)
        return read_chunk(*arguments)

    monkeypatch.setattr(large, "read_chunk", cut)
    run = read_run(folder)
    assert any("rank-0.trace: cut off while it was read: 3 of" in problem for problem in run.problems), run.problems


def test_a_line_without_an_end(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    path = folder / "power-node1.csv"
    before = read_run(folder).power[0].samples["time_ns"]
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + (1 << 30))
    run = read_run(folder)
    assert any("power-node1.csv: a line of more than" in problem for problem in run.problems)
    # So long a file is read with neighbours merged, up to the last line.
    assert run.power[0].samples["time_ns"].max() == before.max()
    live = LiveRun(folder)
    for _ in range(4):
        live.look()
    live.close()


def test_json_that_is_nested_too_deep(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    (folder / "run.json").write_text('{"command":' + "[" * 100_000)
    assert any(problem.startswith("run.json: ") for problem in read_run(folder).problems)


# Names.


def evil_run(tmp_path: Path, name: bytes) -> Path:
    """A run in which every text is hostile."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    folder.mkdir()
    training_run(folder)
    end_ns = 1_800_000_000
    for path in folder.glob("*.trace"):
        path.unlink()
    text = EVIL[:15]
    for rank in range(2):
        header = {"host": text, "gpu_uuid": text + str(rank), "gpu_pci": text[:8], "policy": text[:5], "library": text}
        trace = TraceWriter(rank, 2, **header)
        trace.comm(1 * MS, name=text)
        trace.note(2 * MS, EVIL[:40])
        for number in range(1, 20):
            trace.call(number, number * 50 * MS, 1 << 20, flags=0x40)
            trace.kernel(number, number * 50 * MS, (number * 50 + 20) * MS, 1 << 20)
            trace.wait(number, number * 50 * MS, (number * 50 + 20) * MS)
        trace.write(folder)
    power = folder / "power-node1.csv"
    changed = power.read_text().replace("Tesla T4", EVIL.replace("\n", "")).replace("# host: node1", f"# host: {text}")
    changed = re.sub(r"GPU-0000000(\d)[-0]*", lambda found: text + found[1], changed)
    (folder / f"power-{text.replace('/', '')}.csv").write_text(changed)
    power.unlink()
    more = dict.fromkeys(("started_at", "policy", "clocks", "platform", "launcher"), EVIL)
    info: dict[str, Any] = {
        "name": EVIL,
        "host": text,
        "emulated": "t4x8",
        "gpus": [EVIL],
        "versions": {EVIL: EVIL},
        **more,
    }
    write_info(folder, end_ns, command=[EVIL, EVIL], environment={EVIL: EVIL}, **info)
    (folder / "rank-9.trace").write_bytes(b"PWN")
    (folder / f"rank-{EVIL.replace('/', '')}.trace").write_bytes(b"PWN")
    return folder


def takes_a_run(command: click.Command) -> bool:
    return any(
        isinstance(each, click.Argument) and each.metavar in ("[RUN]", "[RUN]...", "A B [C]...")
        for each in command.params
    )


def writers(command: click.Command) -> list[str]:
    """Options that name a file or a folder to be written."""
    reads = ("--platform", "--kineto", "--runs-dir")
    options = [each for each in command.params if isinstance(each, click.Option) and each.metavar in ("FILE", "DIR")]
    return [each.opts[-1] for each in options if each.opts[-1] not in reads]


FED = [verb for verb in VERBS if takes_a_run(cli.get_command(click.Context(cli), verb))]  # type: ignore[arg-type]


def test_every_verb_that_takes_a_run_is_known() -> None:
    assert FED == ["whatif", "report", "compare", "top", "export"]


def fault(what: str, data: bytes) -> str:
    """What is wrong with an output; `what` names it, with the ending of its form."""
    if what.endswith(".perfetto"):
        return "raw" if b"\x1b]0;PWN" in data or b"PWN" not in data else ""
    text = data.replace(get_plotlyjs().encode(), b"").decode()
    found = RAW.search(text)
    if found:
        return f"raw: {text[max(0, found.start() - 60) : found.end() + 20]!r}"
    if what.endswith(".html") and "</script><b>" in text:
        return "a tag of somebody else"
    if what.endswith(".csv") and re.search(r'(^|,|")=', text, re.MULTILINE):
        return "a formula"
    return ""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


NAMES = (b"evil\x1b]0;PWN\x07\xc2\x9b\xe2\x80\xae\n=", b"not-utf8-\xff\xfe")


def outputs(verb: str, folder: Path, place: Path) -> Iterator[tuple[str, bytes]]:
    """Everything that a verb prints and writes of a run, in each of its forms."""
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    other = training_run(place / "other")
    write_info(other, 1_800_000_000, emulated="t4x8")
    start = {
        "compare": ["compare", str(folder), str(other)],
        "export": ["export", "--once", str(folder)],
        "top": ["top", "--once", str(folder)],
        "whatif": ["whatif", str(folder), "--platform", str(profile_of(folder, place / "machine.json"))],
        "report": ["report", str(folder)],
    }[verb]
    options = writers(command)
    flags = [each.opts[-1] for each in command.params if isinstance(each, click.Option) and each.is_flag]
    runs = [[], *([option, str(place / f"out-{option[2:]}.prom")] for option in options)]
    runs += [[option, "-"] for option in options if option in ("--json", "--csv", "--markdown") and verb != "report"]
    runs += [["--json"]] if "--json" in flags else []
    for more in runs:
        done = run(*start, *more)
        what = " ".join([verb, *more])
        assert done.exit_code == 0, (what, done.output[-2000:])
        yield f"{what} stdout", done.stdout_bytes
        yield f"{what} stderr", done.stderr_bytes
        if len(more) == 2 and more[1] != "-":
            written = Path(more[1])
            for path in sorted(written.iterdir()) if written.is_dir() else [written]:
                yield f"{verb} {path.name}.{more[0][2:]}", path.read_bytes()


@pytest.mark.parametrize("verb", FED)
@pytest.mark.parametrize("name", NAMES, ids=["escapes", "bytes"])
def test_nothing_raw_comes_out(tmp_path: Path, verb: str, name: bytes) -> None:
    found = dict(outputs(verb, evil_run(tmp_path, name), tmp_path))
    assert b"PWN" in found[f"{verb} stdout"]  # it was there to be cleaned
    assert {what: text for what, data in found.items() if (text := fault(what, data))} == {}


@pytest.mark.parametrize("verb", FED)
def test_errors_are_clean_too(tmp_path: Path, verb: str) -> None:
    for name in (EVIL, "\udcff"):
        done = run(verb, *[name] * (2 if verb == "compare" else 1))
        assert done.exit_code == 1
        assert done.stderr.startswith("error: no ")
        assert not fault(verb, done.stderr_bytes)


def test_markup_and_formulas() -> None:
    from io import StringIO

    from rich.table import Table

    from powerccl.console import Console

    sink = StringIO()
    table = Table("host")
    table.add_row("[red]x[/] :smile: \x1b[31m")
    Console(file=sink, width=80).print(table)
    assert r"[red]x[/] :smile: \x1b[31m" in sink.getvalue()
    assert clean.cell("=1+1") == "'=1+1"
    assert clean.cell("@x") == "'@x"
    assert clean.cell("\t=1") == "\\x09=1"
    assert [clean.cell(value) for value in (-3, 2.5, "-3", "a=b", "Tesla T4")] == [-3, 2.5, "-3", "a=b", "Tesla T4"]
    assert json.loads(clean.to_json({"a": "\x9b\u202e\U000e0041"})) == {"a": "\x9b\u202e\U000e0041"}
    assert clean.to_json({"a": "\x9b\U000e0041"}).isascii()


def test_only_one_module_makes_consoles() -> None:
    root = Path(clean.__file__).parent
    for path in root.rglob("*.py"):
        if path.name != "console.py":
            assert "rich.console import Console" not in path.read_text(), path
            assert not re.search(r"sys\.stdout(\.buffer)?\.write", path.read_text()) or path.parts[-2:] == (
                "commandline",
                "output.py",
            ), path


def test_mpi_runs_too(tmp_path: Path) -> None:
    folder = mpi_run(tmp_path / "run")
    for path in folder.glob("mpi-*.trace"):
        replaced(path, "a FIFO")
    assert run("report", str(folder)).exit_code == 0
