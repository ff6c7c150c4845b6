# SPDX-License-Identifier: Apache-2.0
"""Files and names that mean harm: nothing waits for ever, nothing is read without end, nothing raw comes out."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from synthetic import MS, TraceWriter, mpi_run, profile_of, training_run, write_info

from powerccl import clean, files
from powerccl.commands import VERBS, cli
from powerccl.live import foreign, processes
from powerccl.live.findings import NodeView
from powerccl.live.node import LiveNode
from powerccl.live.run_folder import LiveRun
from powerccl.reports.page import get_plotlyjs
from powerccl.traces.folder import read_run

NOBODY = 65534
RAW = re.compile("(?!\n)[" + clean._RAW + "]")
# A title for the terminal, an 8-bit control, a turn of direction, markup, a formula, HTML, quotes, and a surrogate.
EVIL = '=\x1b]0;PWN\x07\x9b31m\u202ePWN[red]</script><b>"\\'
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


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
@pytest.mark.parametrize(
    "name", ["run.json", "rank-0.trace", "mpi-0.trace", "power-node1.csv", "cpu-a.csv", "clocks-a.journal"]
)
def test_whatever_is_in_the_place_of_a_file_is_a_problem_of_the_run(tmp_path: Path, name: str, how: str) -> None:
    folder = training_run(tmp_path / "run")
    replaced(folder / name, how)
    whole = read_run(folder)
    assert any(name in problem and how in problem for problem in whole.problems), whole.problems
    live = LiveRun(folder)
    live.look()
    if not name.startswith("clocks"):
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

    def cut(*arguments: object) -> object:
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
    info = {"name": EVIL, "host": text, "emulated": "t4x8", "gpus": [EVIL], "versions": {EVIL: EVIL}, **more}
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
    reads = ("--platform", "--kineto")
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
        "report": ["report", str(folder), "--baseline", str(other)],
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
                "commands",
                "__init__.py",
            ), path


# Other users' folders.


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that belongs to another user, all above it open to him."""
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and str(path).startswith("/tmp/"):
            path.chmod(0o755)
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    monkeypatch.setattr(processes, "SCAN_EVERY_S", 0.0)
    return folder


def started(folder: Path, name: str = "") -> subprocess.Popen[bytes]:
    """A process of nobody's that names a run folder."""
    return subprocess.Popen(
        ["/bin/cat"],  # Python may lie where only root comes to
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={"POWERCCL_RUN_FOLDER": name or str(folder)},
        cwd="/",
    )


def owned(folder: Path) -> Path:
    for path in (folder, *folder.iterdir()):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return folder


@as_root
def test_root_reads_others_folders_with_their_rights(theirs: Path) -> None:
    good = owned(training_run(theirs / "good"))
    write_info(good, 0, exit_code=None)
    link = theirs / "link"
    link.mkdir()
    secret = theirs.parent / "run.json"
    secret.write_text('{"command": ["secret"], "name": "secret"}')
    secret.chmod(0o600)
    (link / "run.json").symlink_to(secret)
    fifo = theirs / "fifo"
    fifo.mkdir()
    os.mkfifo(fifo / "run.json")
    children = [started(folder) for folder in (good, owned(link), owned(fifo))]
    node = LiveNode(totals=True)
    try:
        jobs = {Path(job.folder).name: job for job in node.look().jobs if str(theirs) in job.folder}
        assert set(jobs) == {"good", "link", "fifo"}
        assert len(jobs["good"].ranks) == 2
        assert jobs["good"].user == "nobody"
        assert jobs["good"].pids == [children[0].pid]
        assert node.counts[good].ranks[0][0][0] == 9
        assert jobs["link"].command == []
        assert jobs["link"].problems == ["run.json: Permission denied"]
        assert jobs["fifo"].problems == ["run.json: a FIFO, not a regular file"]
        assert not node.watchers.keys() & {good, link, fifo}  # nothing was read by this process
        helpers = list(node._foreign._helpers.values())
        assert len(helpers) == 1
        status = Path(f"/proc/{helpers[0]._process.pid}/status").read_text()
        assert re.search(rf"^Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}$", status, re.MULTILINE)
        assert re.search(r"^Groups:\t *$", status, re.MULTILINE)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
        assert re.search(r"^CapPrm:\t0+$", status, re.MULTILINE)
    finally:
        node.close()
        for child in children:
            child.communicate(b"\n")


@as_root
def test_a_folder_that_does_not_answer_is_left_out(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "ANSWER_S", 0.5)
    good = owned(training_run(theirs / "good"))
    child = started(good)
    said: list[str] = []
    node = LiveNode(totals=True, say=said.append)
    try:
        assert any(job.folder == str(good) for job in node.look().jobs)
        (helper,) = node._foreign._helpers.values()
        os.kill(helper._process.pid, signal.SIGSTOP)
        begin_s = time.monotonic()
        view = node.look()
        assert time.monotonic() - begin_s < 10
        assert not any(job.folder == str(good) for job in view.jobs)
        assert any("did not answer" in problem for problem in view.problems)
        assert not Path(f"/proc/{helper._process.pid}").exists()
        for _ in range(3):
            assert any("left out for a while" in problem for problem in node.look().problems)
        assert said == [f"{good} of user {NOBODY} did not answer within 0.5 s; trying again in 60 s"]
    finally:
        node.close()
        child.communicate(b"\n")


@as_root
def test_a_helper_outlives_the_thread_that_started_it(theirs: Path) -> None:
    """A server for metrics has a thread a request."""
    said: list[str] = []
    followed = foreign.ForeignRuns(5.0, True, "node1", 30.0, said.append)
    wanted = {(NOBODY, NOBODY): {str(owned(training_run(theirs / "run"))): [1]}}
    try:
        for _ in range(3):
            thread = threading.Thread(target=followed.look, args=(wanted, time.monotonic()))
            thread.start()
            thread.join()
            (helper,) = followed._helpers.values()
            time.sleep(0.05)
            assert helper._process.poll() is None
        assert said == []
    finally:
        followed.close()


@as_root
def test_how_many_folders_a_user_can_name_is_bounded(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MOST_FOLDERS", 2)
    said: list[str] = []
    followed = foreign.ForeignRuns(5.0, True, "node1", 30.0, said.append)
    names = {str(theirs / str(number)): [os.getpid()] for number in range(5)}
    try:
        for _ in range(3):
            found = followed.look({(NOBODY, NOBODY): names}, time.monotonic())
            assert len(found.answers) == 2
        assert said == [f"user {NOBODY} has 5 run folders: only 2 are read"]
    finally:
        followed.close()


@as_root
def test_a_name_that_is_no_text(theirs: Path) -> None:
    name = os.fsdecode(b"\xff\n\x1b")
    folder = owned(training_run(theirs / name))
    (folder / os.fsdecode(b"rank-\xff\n.trace")).write_bytes(b"")
    followed = foreign.ForeignRuns(5.0, True, "node1", 30.0)
    long_name = "/" + "x" * 5000
    try:
        found = followed.look({(NOBODY, NOBODY): {str(folder): [1], long_name: [2]}}, time.monotonic())
        ((_, answer, _),) = found.answers
        assert answer.job is not None
        assert len(answer.job.ranks) == 2
        assert answer.folder.endswith(r"\xff\x0a\x1b")
        assert found.problems == []
    finally:
        followed.close()


def test_metrics_of_one_name_and_of_one_user_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from powerccl.live.findings import LiveGpu, LiveJob, LiveRank
    from powerccl.reports import export

    monkeypatch.setattr(export, "MOST_OF_USER", 50)
    same = [LiveGpu(gpu="x" * 300 + str(number), index=0, host="a", power_w=1.0) for number in range(3)]
    ranks = [LiveRank(rank=number, host="a", pid=1, gpu="", calls=1, per_s=1.0) for number in range(100)]
    jobs = [
        LiveJob(run="a", folder="/a/\x1b", user="one", gpus=same, ranks=ranks),
        LiveJob(run="a", folder="/a/\\x1b", user="two"),
    ]
    found = {family.name: family.samples for family in export.families(NodeView(host="a", unix_s=0, jobs=jobs), {})}
    assert len(found["powerccl_gpu_power_watts"]) == 1
    assert len(found["powerccl_job_running"]) == 1  # two folders that look alike
    assert sum(len(samples) for samples in found.values()) < 70
    assert [sample.labels["user"] for sample in found["powerccl_job_info"]] == ["one", "two"]


@as_root
def test_two_users_who_name_one_folder(theirs: Path) -> None:
    """Metrics of one name twice would make a scrape fail: the folder is of its owner."""
    folder = owned(training_run(theirs / "run"))
    folder.chmod(0o755)
    node = LiveNode(totals=True)
    try:
        view = NodeView(host="", unix_s=0.0)
        others = {(NOBODY - 1, NOBODY): {str(folder): [1]}, (NOBODY, NOBODY): {str(folder): [2]}}
        node._add_others(view, others, time.monotonic())
        assert [(job.folder, job.user, job.pids) for job in view.jobs] == [(str(folder), "nobody", [2])]
    finally:
        node.close()


@as_root
def test_a_helper_never_is_root() -> None:
    from powerccl.live.foreign_helper import become

    with pytest.raises(PermissionError):
        become(0, 0)


def test_who_a_process_belongs_to(tmp_path: Path) -> None:
    """The owner of /proc/PID is root where a process cannot be traced: its status tells."""
    (tmp_path / "status").write_text("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t1001\t0\t0\t0\n")
    assert processes._owner(tmp_path) == (1000, 1001)


def test_what_a_helper_sends_is_not_trusted() -> None:
    helper = foreign.Helper.__new__(foreign.Helper)
    for data in (b"\xff\xff\xff\xff", b"\x04\0\0\0abcd", b"\x01\0\0\0\xc0"):
        reading, writing = os.pipe()
        helper.answers, helper.broken, helper._in, helper.output = [], False, bytearray(), reading
        helper.received = 0
        os.write(writing, data)
        helper.receive()
        assert helper.broken
        os.close(reading)
        os.close(writing)


def test_mpi_runs_too(tmp_path: Path) -> None:
    folder = mpi_run(tmp_path / "run")
    for path in folder.glob("mpi-*.trace"):
        replaced(path, "a FIFO")
    assert run("report", str(folder)).exit_code == 0
