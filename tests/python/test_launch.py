# SPDX-License-Identifier: Apache-2.0
"""Starting jobs: folders, launchers, environment, services, and the child with its signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fakes
import pytest

from powerccl.errors import PowercclError, choose
from powerccl.launch import child as relay
from powerccl.launch import folder as folders
from powerccl.launch.child import ChildNotStartedError, run_child
from powerccl.launch.emulation import Emulation, emulated_platform, platform_name
from powerccl.launch.environment import (
    emulated_environment,
    job_environment,
    preload_wanted,
    recorded,
    slowdown_budget_pct,
    with_preload,
)
from powerccl.launch.gpus import Gpus, may_set_clocks, query_gpus, query_gpus_in
from powerccl.launch.native import NativeFiles, find_native
from powerccl.launch.plan import decide_clocks
from powerccl.launch.plan import plan_job as plan
from powerccl.launch.request import Request
from powerccl.launch.services import Service
from powerccl.launch.witness import Received, signal_within
from powerccl.platforms.store import load_profile


@pytest.fixture
def native(tmp_path: Path) -> NativeFiles:
    return NativeFiles(fakes.native_folder(tmp_path / "native"))


def test_native_files_by_environment(native: NativeFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POWERCCL_NATIVE", str(native.root))
    assert find_native().root == native.root
    assert sorted(native.emulated_platforms()) == ["h200x4", "t4x8"]
    monkeypatch.setenv("POWERCCL_NATIVE", str(tmp_path / "none"))
    with pytest.raises(PowercclError, match="is not a folder"):
        find_native()


def test_a_missing_native_file_says_how_to_get_it(native: NativeFiles) -> None:
    native.path("bin/powerccl-bench").unlink()
    with pytest.raises(PowercclError, match="powerccl-bench is missing") as error:
        native.path("bin/powerccl-bench")
    assert "make native" in error.value.hint


def test_folders_of_one_second_are_distinct(tmp_path: Path) -> None:
    made = {folders.make_folder(tmp_path / "runs", "job name/x", None) for _ in range(5)}
    assert len(made) == 5
    assert all("job-name-x" in path.name for path in made)
    assert len({(path / ".run-id").read_text() for path in made}) == 5


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the way")
    with pytest.raises(PowercclError) as error:
        folders.make_folder(tmp_path / "runs", "job", None)
    assert "cannot make a run folder" in error.value.message
    assert "--runs-dir" in error.value.hint


def test_socket_paths_are_short_private_and_distinct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    long = tmp_path / ("x" * 200)
    first, second = folders.socket_path(long), folders.socket_path(tmp_path)
    assert first != second
    assert len(first.name) < 20
    assert first.parent.stat().st_mode & 0o777 == 0o700
    first.parent.chmod(0o777)
    with pytest.raises(PowercclError, match="belongs to another user"):
        folders.socket_path(long)


def test_the_jobs_environment(native: NativeFiles, tmp_path: Path) -> None:
    base = {"LD_LIBRARY_PATH": "/opt/x", "POWERCCL_POLICY_TABLE": "stale", "SECRET_TOKEN": "s", "NCCL_DEBUG": "INFO"}
    emulated = emulated_environment(base, native, tmp_path / "s.sock")
    assert emulated["LD_LIBRARY_PATH"] == f"{native.root}/emulator:/opt/x"
    assert emulated["POWERCCL_EMULATOR_SOCKET"] == str(tmp_path / "s.sock")
    job = job_environment(base, native, tmp_path, "observe", None, "none")
    assert job["NCCL_PROFILER_PLUGIN"] == f"{native.root}/lib/libpowerccl-nccl.so"
    assert job["POWERCCL_RUN_FOLDER"] == str(tmp_path)
    assert "POWERCCL_POLICY_TABLE" not in job
    assert recorded(base).keys() == {"LD_LIBRARY_PATH", "POWERCCL_POLICY_TABLE", "NCCL_DEBUG"}


def test_ours_are_preloaded_last_or_not_at_all(tmp_path: Path) -> None:
    ours = [tmp_path / "nccl.so", tmp_path / "mpi.so"]
    base = {"LD_PRELOAD": "libmine.so /opt/other.so"}
    added = with_preload(base, ours, ours)
    assert added == {"LD_PRELOAD": f"libmine.so:/opt/other.so:{ours[0]}:{ours[1]}"}
    assert with_preload(added, ours, ours) == added  # not twice in a run within a run
    assert with_preload(base, ours, []) == base
    assert with_preload(added, ours, []) == {"LD_PRELOAD": "libmine.so:/opt/other.so"}  # an outer run's are taken out
    assert with_preload(with_preload({}, ours, ours), ours, []) == {}
    assert with_preload(base, [], [tmp_path / "a folder/x.so"]) == base
    own_nccl = with_preload({"LD_PRELOAD": "libasan.so.8:/opt/libnccl.so.2"}, ours, ours[:1])
    assert own_nccl == {"LD_PRELOAD": f"libasan.so.8:{ours[0]}:/opt/libnccl.so.2"}
    assert preload_wanted({})
    assert not preload_wanted({}, asked=False)
    assert not preload_wanted({"POWERCCL_PRELOAD": "0"})


@pytest.mark.parametrize(
    ("policy", "emulated", "set_clocks", "environment", "mode", "words"),
    [
        ("observe", False, False, {}, "none", None),
        ("observe", True, False, {}, "none", None),
        ("observe", False, True, {}, "none", "sets no clocks"),
        ("per-call", True, False, {}, "lease", None),
        ("per-call", True, False, {"POWERCCL_CLOCKS": "nvml"}, "nvml", None),
        ("per-call", False, False, {}, "dry", "add --set-clocks to set them"),
        ("per-call", True, True, {"POWERCCL_CLOCKS": "dry"}, "dry", "POWERCCL_CLOCKS=dry"),
        ("per-call", False, True, {"POWERCCL_CLOCKS": "dry"}, "dry", "POWERCCL_CLOCKS=dry"),
    ],
)
def test_who_may_set_clocks(
    policy: str, emulated: bool, set_clocks: bool, environment: dict[str, str], mode: str, words: str | None
) -> None:
    found, said = decide_clocks(policy, emulated, set_clocks, environment)
    assert found == mode
    assert (said is None) if words is None else (said is not None and words in said)


@pytest.mark.parametrize(
    ("right", "daemon", "wish", "mode"),
    [
        (True, False, "", "lease"),
        (True, False, "nvml", "nvml"),
        (False, True, "", "lease"),
        (False, True, "nvml", "lease"),
        (False, False, "", "dry"),
        (False, False, "nvml", "dry"),
    ],
)
def test_consent_without_right_and_daemon_runs_dry(
    right: bool, daemon: bool, wish: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerccl.launch.plan.may_set_clocks", lambda: right)
    monkeypatch.setattr("powerccl.launch.plan.system_daemon", lambda _: Path("d.sock") if daemon else None)
    found, said = decide_clocks("per-call", False, True, {"POWERCCL_CLOCKS": wish})
    assert found == mode
    if not right and wish:  # what was asked, what takes its place, what to do
        assert said is not None
        assert said.startswith("POWERCCL_CLOCKS=nvml needs root")
        assert (
            "powerccld sets clocks instead; unset the variable" if daemon else "dry run, no clock is set; run as"
        ) in said
    else:
        assert (said is None) if mode != "dry" else (said is not None and "root, CAP_SYS_ADMIN or a powerccld" in said)


@pytest.mark.parametrize(
    ("request_of", "environment", "policy", "words"),
    [
        ({}, {}, "observe", []),
        ({"platform": "t4x8"}, {}, "observe", []),  # nothing is to be set, so nothing is looked up
        ({"emulate": "t4x8"}, {}, "auto", []),
        ({"emulate": "t4x8", "platform": "none"}, {}, "auto", []),
        ({"emulate": "t4x8", "platform": "t4x8"}, {}, "auto", []),
        (
            {"set_clocks": True, "platform": "t4x8"},
            {},
            "auto",
            ["policy auto ignores --platform, which is for per-call"],
        ),
        ({"emulate": "h200x4"}, {}, "auto", []),
        ({"emulate": "t4x8"}, {"POWERCCL_CLOCKS": "dry"}, "observe", []),
        ({}, {"POWERCCL_EMULATOR_SOCKET": "s"}, "auto", []),  # none of two was made
        ({"set_clocks": True}, {}, "auto", []),
        ({"policy": "per-call", "emulate": "t4x8"}, {}, "per-call", []),
        ({"policy": "observe", "emulate": "t4x8"}, {}, "observe", []),
    ],
)
def test_the_policy_where_none_is_named(
    request_of: dict[str, Any],
    environment: dict[str, str],
    policy: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(["Tesla T4"] * 2))
    monkeypatch.setattr("powerccl.launch.plan.may_set_clocks", lambda: True)
    said: list[str] = []
    _, planned, table, profile = plan(
        Request(**{"command": ["x"], "policy": "", **request_of}), environment, said.append
    )
    assert planned == policy
    assert bool(table) == (profile is not None) == (policy == "per-call")
    assert len(said) == len(words)
    assert all(word in line for word, line in zip(words, said, strict=True))


@pytest.mark.parametrize("wish", ["", "lease", "nvml"])
@pytest.mark.parametrize("right", [False, True])
def test_a_daemon_is_no_consent(right: bool, wish: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("powerccl.launch.plan.may_set_clocks", lambda: right)
    monkeypatch.setattr("powerccl.launch.plan.system_daemon", lambda _: tmp_path / "d.sock")
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(["Tesla T4"] * 8))
    monkeypatch.setattr("powerccl.platforms.store.profile_for", lambda _: load_profile("t4x8"))
    environment = {"POWERCCL_CLOCKS": wish, "POWERCCL_LEASE_SOCKET": str(tmp_path / "d.sock")}
    for policy in ("per-call", "auto"):
        found, said = decide_clocks(policy, False, False, environment)
        assert found == "dry"
        assert said is not None and "add --set-clocks" in said
    assert plan(Request(command=["x"], policy=""), environment, pytest.fail)[1] == "observe"
    # The same machine with consent.
    assert plan(Request(command=["x"], policy="", set_clocks=True), environment, pytest.fail)[1] == "auto"
    assert decide_clocks("auto", False, True, environment)[0] in ("lease", "nvml")


def test_clocks_asked_for_take_auto_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(["Tesla T4"] * 8))
    said: list[str] = []
    request = Request(command=["x"], policy="", set_clocks=True)
    assert plan(request, {}, said.append)[1:] == ("auto", "", None)
    assert said == []
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(reason="no NVIDIA driver here"))
    assert plan(request, {}, said.append)[1] == "observe"
    assert said == ["recording only: policy auto has no GPU to manage (no NVIDIA driver here)"]


def test_per_call_needs_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(["Tesla T4"] * 8))
    for platform, words in (("t4x9", "unknown platform 't4x9'"), ("none", "no platform profile for")):
        with pytest.raises(PowercclError, match=words):
            plan(Request(command=["x"], policy="per-call", platform=platform), {}, pytest.fail)


def test_a_run_that_only_records_does_not_ask_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: pytest.fail("asked"))
    assert plan(Request(command=["x"], policy=""), {}, pytest.fail)[1] == "observe"


def test_the_budget_of_slowdown(native: NativeFiles, tmp_path: Path) -> None:
    base = {"POWERCCL_MAX_SLOWDOWN": "2.5"}
    kept = job_environment(base, native, tmp_path, "auto", None, "lease")
    assert kept["POWERCCL_MAX_SLOWDOWN"] == "2.5"
    assert job_environment(base, native, tmp_path, "auto", None, "lease", 0.5)["POWERCCL_MAX_SLOWDOWN"] == "0.5"
    assert slowdown_budget_pct(kept) == 2.5
    # As the runtime: what is no number in range is not taken.
    assert [slowdown_budget_pct({"POWERCCL_MAX_SLOWDOWN": text}) for text in ("", "lots", "nan", "101", "0")] == [
        1.0
    ] * 5
    assert slowdown_budget_pct({}) == 1.0


def test_capability_is_read_from_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _, **_more: "Name:\tx\nCapEff:\t0000000000200000\n")
    assert may_set_clocks()
    monkeypatch.setattr(Path, "read_text", lambda _, **_more: "CapEff:\t0000000000100000\n")
    assert not may_set_clocks()


def test_no_driver_is_a_reason_not_an_error() -> None:
    found = query_gpus("libno-such-nvml.so.1")
    assert found.names == []
    assert "no NVIDIA driver on this machine" in found.describe()
    assert query_gpus("libc.so.6").reason.startswith("this NVML is too old")
    assert query_gpus_in({**os.environ, "LD_LIBRARY_PATH": ""}).names == query_gpus().names


def test_mixed_gpus_are_described() -> None:
    assert Gpus(names=["A", "A", "B"]).describe() == "2 x A + 1 x B"


def test_choices_suggest() -> None:
    assert choose("policy", "observe", ["observe", "per-call"]) == "observe"
    with pytest.raises(PowercclError) as error:
        choose("policy", "per-cal", ["observe", "per-call"])
    assert error.value.hint == "did you mean 'per-call'? known: observe, per-call"


def test_emulated_platforms_by_name_or_file(native: NativeFiles, tmp_path: Path) -> None:
    assert emulated_platform(native, "t4x8").name == "t4x8.conf"
    mine = tmp_path / "mine.conf"
    mine.write_text("")
    assert emulated_platform(native, str(mine)) == mine
    with pytest.raises(PowercclError) as error:
        emulated_platform(native, "t4x9")
    assert "did you mean 't4x8'?" in error.value.hint
    with pytest.raises(PowercclError, match="no platform file"):
        emulated_platform(native, "./none.conf")


def test_an_emulated_platform_can_be_changed(native: NativeFiles, tmp_path: Path) -> None:
    built_in = emulated_platform(native, "t4x8")
    assert str(emulated_platform(native, "t4x8:link_scale=4")) == f"{built_in}:link_scale=4"
    odd = tmp_path / "a:b" / "mine.conf"
    odd.parent.mkdir()
    odd.write_text("")
    assert emulated_platform(native, str(odd)) == odd
    with pytest.raises(PowercclError, match="unknown emulated platform 't4x9'"):
        emulated_platform(native, "t4x9:link_scale=4")


def test_what_a_platform_is_called() -> None:
    assert [platform_name(text) for text in ("t4x8", "t4x8:link_scale=0.5", "a/mine.conf", "a/mine.json", "")] == [
        *("t4x8", "t4x8:link_scale=0.5", "mine", "mine", "")
    ]


def test_emulation_is_up_inside_and_gone_after(native: NativeFiles, tmp_path: Path) -> None:
    with Emulation(native, emulated_platform(native, "t4x8"), tmp_path) as emulation:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(emulation.listening))
        assert emulation.service is not None
        process = emulation.service.process
    assert process.poll() is not None
    assert not emulation.listening.exists()


def test_an_emulator_that_fails_is_quoted(native: NativeFiles, tmp_path: Path) -> None:
    fakes.write_program(native.root / "bin/powerccl-emulator", "#!/bin/sh\necho 'line 3: no clocks' >&2; exit 1\n")
    with (
        pytest.raises(PowercclError, match="line 3: no clocks"),
        Emulation(native, emulated_platform(native, "t4x8"), tmp_path),
    ):
        pass


def test_a_service_ends_with_its_stdin(tmp_path: Path) -> None:
    service = Service(["sh", "-c", "echo ready; cat; exit 0"], os.environ, tmp_path / "log")
    assert service.wait_ready(10)
    assert service.stop(10)


def test_a_service_that_will_not_end_is_ended(tmp_path: Path) -> None:
    service = Service(["sh", "-c", "echo ready; sleep 60"], os.environ, tmp_path / "log")
    assert service.wait_ready(10)
    assert not service.stop(0.1)
    assert service.process.returncode == -signal.SIGTERM


def test_a_service_without_ready(tmp_path: Path) -> None:
    quiet = Service(["sh", "-c", "echo 'cannot: x' >&2; echo 'hint: y' >&2; exit 1"], os.environ, tmp_path / "log")
    assert not quiet.wait_ready(10)
    quiet.stop(5)
    assert quiet.last_words() == "cannot: x"
    slow = Service(["sleep", "60"], os.environ, tmp_path / "log2")
    assert not slow.wait_ready(0.1)
    slow.stop(0.1)


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, None), ("exit 42", 42, None), ("kill -9 $$", 137, 9), ("kill -TERM $$", 143, 15)],
)
def test_how_a_child_ended(script: str, code: int, number: int | None) -> None:
    ended = run_child(["sh", "-c", script], os.environ)
    assert (ended.code, ended.signal) == (code, number)


def test_a_child_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(ChildNotStartedError) as missing:
        run_child(["/no/such/program"], os.environ)
    assert missing.value.code == 127
    plain = tmp_path / "data"
    plain.write_text("x")
    with pytest.raises(ChildNotStartedError) as denied:
        run_child([str(plain)], os.environ)
    assert denied.value.code == 126
    script = tmp_path / "script"
    fakes.write_program(script, "#!/no/such/interpreter\n")
    with pytest.raises(ChildNotStartedError, match="interpreter") as broken:
        run_child([str(script)], os.environ)
    assert broken.value.code == 126


def test_output_can_be_redirected(tmp_path: Path) -> None:
    run_child(["sh", "-c", "echo out; echo err >&2"], os.environ, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_a_stop_outlives_late_news_of_a_continued_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """fg, and ^Z at once: we take the signal before we hear that the child goes on, and it stops after that."""
    continued, stopped, ended = 0xFFFF, (signal.SIGTSTP << 8) | 0x7F, 7 << 8
    news = iter([(0, 0), (1, continued), (1, stopped), (0, 0), (1, ended)])
    typed = iter([Received(signal.SIGTSTP, 0, 0), None, None])
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(relay, "signal_within", lambda *_: next(typed))
    monkeypatch.setattr(os, "waitpid", lambda *_: next(news))
    monkeypatch.setattr(os, "kill", lambda *pair: sent.append(pair))
    child = relay.Child(pid=1)
    relay._Relay(child, set(), relay.Witness(), []).wait()
    assert (os.getpid(), signal.SIGSTOP) in sent
    assert child.ended() == relay.Ended(7, None)


def test_the_child_has_the_systems_signal_dispositions(tmp_path: Path) -> None:
    run_child(["sh", "-c", "grep -E 'SigBlk|SigIgn' /proc/self/status"], os.environ, tmp_path / "log")
    masks = {line.split(":")[0]: int(line.split()[1], 16) for line in (tmp_path / "log").read_text().splitlines()}
    assert masks["SigBlk"] == 0
    assert not masks["SigIgn"] >> (signal.SIGPIPE - 1) & 1  # Python ignores it; a job expects to die of it


LAUNCHER = """
import os, sys
sys.path.insert(0, {package!r})
from powerccl.launch.child import run_child
ended = run_child(sys.argv[1:], os.environ)
sys.exit(ended.code)
"""


def start_launcher(*command: str, **more: object) -> subprocess.Popen[str]:
    package = str(Path(__file__).parents[2] / "python")
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.format(package=package), *command],
        stdout=subprocess.PIPE,
        text=True,
        **more,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_child_once(number: signal.Signals) -> None:
    script = (
        "import signal,time,sys\n"
        "got = []\n"
        f"signal.signal({int(number)}, lambda *_: got.append(1))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\n"
        "time.sleep(0.2); print(len(got), flush=True); sys.exit(5)\n"
    )
    # Under nohup a hangup would be ignored, rightly.
    launcher = start_launcher(sys.executable, "-c", script, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.send_signal(number)
    assert launcher.stdout.read() == "1\n"
    assert launcher.wait(20) == 5


def test_a_signal_that_ends_the_child_shows_in_the_code() -> None:
    launcher = start_launcher("sh", "-c", "echo ready; sleep 60")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.terminate()
    assert launcher.wait(20) == 143


def test_nohup_stays_nohup() -> None:
    launcher = start_launcher(
        "sh",
        "-c",
        "echo ready; sleep 0.5; exit 3",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.send_signal(signal.SIGHUP)
    assert launcher.wait(20) == 3


def test_a_launcher_whose_children_are_reaped_for_it_still_sees_the_end() -> None:
    launcher = start_launcher("sh", "-c", "exit 9", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert launcher.wait(20) == 9


def test_a_launcher_that_was_stopped_for_long_goes_on_passing_signals_on() -> None:
    script = "trap 'echo got' USR1; echo ready; while :; do sleep 0.1; done"
    launcher = start_launcher("sh", "-c", script)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    for _ in range(2):
        launcher.send_signal(signal.SIGSTOP)
        time.sleep(0.8)  # more than the launcher waits for a signal at a time
        launcher.send_signal(signal.SIGCONT)
        launcher.send_signal(signal.SIGUSR1)  # which ends whoever does not pass it on
        assert launcher.stdout.readline() == "got\n"
    launcher.terminate()
    assert launcher.wait(20) == 143


def test_a_long_stop_brings_no_signal_that_nobody_sent() -> None:
    """Python's own sigtimedwait makes one up: about 9 in 20 such stops ended in a signal to the job."""
    watched = signal.valid_signals()
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        while True:
            if (info := signal_within(watched, 0.03)) is not None:
                os.write(writes, bytes([info.si_signo]))
    os.close(writes)
    told = []
    for _ in range(20):
        time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        told += os.read(reads, 64)
    time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    told += os.read(reads, 64)
    os.close(reads)
    assert told == [signal.SIGCONT] * 20


def test_a_stopped_child_is_not_an_ended_one() -> None:
    launcher = start_launcher("sh", "-c", "echo $$; sleep 0.3; exit 4")
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    time.sleep(0.2)
    assert launcher.poll() is None
    os.kill(child, signal.SIGCONT)
    assert launcher.wait(20) == 4
