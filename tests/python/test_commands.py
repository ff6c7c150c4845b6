# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: output, messages, exit codes. Native programs are stand-ins (fakes.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest
from click.testing import CliRunner
from test_platforms import profile

from powerccl.commandline.extras import EXTRAS
from powerccl.commands import VERBS, cli, main
from powerccl.errors import FAULT, NOT_STARTED, USAGE
from powerccl.platforms.schema import encode

PACKAGE = Path(__file__).parents[2] / "python"
pytestmark = pytest.mark.usefixtures("work")


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "powerccl", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def powerccl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    process = start(*arguments, **environment)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def only_run(work: Path) -> Path:
    (run,) = (path for path in (work / "runs").iterdir() if not path.name.startswith("."))
    return run


def test_help_lists_every_verb_and_exits_with_0() -> None:
    result = CliRunner().invoke(cli, [])
    assert result.exit_code == 0
    for verb in VERBS:
        assert verb in result.output
        described = CliRunner().invoke(cli, [verb, "--help"])
        assert described.exit_code == 0
        assert "Usage:" in described.output


@pytest.mark.parametrize("arguments", [[], *([verb] for verb in VERBS), ["study", "scaling"]], ids=" ".join)
def test_help_fits_80_columns(arguments: list[str]) -> None:
    shown = CliRunner().invoke(cli, [*arguments, "--help"], terminal_width=80).output
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    # A verb's first sentence is whole in the list of verbs.
    assert not [line for line in shown.splitlines() if line.startswith("  ") and line.endswith("...")]


def test_version() -> None:
    assert powerccl("--version").stdout.startswith("powerccl, version 0.")


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (["rum"], "unknown verb 'rum'", "did you mean 'run'?"),
        (["study", "scalling"], "No such command 'scalling'", "`powerccl study --help`"),
        (["run", "--polcy", "x", "true"], "No such option", "`powerccl run --help`"),
        (["run"], "no command to run", "powerccl run -- python train.py"),
        (["run", "--policy", "per-cal", "--", "true"], "unknown policy 'per-cal'", "did you mean 'per-call'?"),
        (["run", "--emulate", "t4x9", "--", "true"], "unknown emulated platform 't4x9'", "did you mean 't4x8'?"),
        (["run", "--interval-ms", "-1", "--", "true"], "Invalid value for '--interval-ms'", "--help"),
        (["demo", "--model", "lama"], "unknown model 'lama'", "microllama"),
        (["profile", "--products", "1x2x3"], "--products is for --ways", "add --ways"),
        (["tune", "all_reduce", "--products", "1x2x3"], "--products is for --beside RUN", "leave it out"),
        (["profile", "--patterns", "all_redcue"], "unknown pattern 'all_redcue'", "did you mean 'all_reduce'?"),
        (["profile", "--sizes", "1M:x"], "--sizes 1M:x: not understood", "128K:64M:2"),
        (["profile", "--sizes", "0"], "no size above 0", "128K:64M:2"),
        (["tune", "all_reduse"], "unknown pattern 'all_reduse'", "did you mean 'all_reduce'?"),
        (["tune", "--links", "nvlnk"], "unknown link 'nvlnk'", "did you mean 'nvlink'?"),
        (["tune", "--objective", "speed"], "unknown objective", "energy@slowdown=1%"),
        (["tune", "--time", "soon"], "--time soon: not understood", "90s, 10m or 2h"),
        (["tune", "--verify", "nothing"], "unknown tuned profile 'nothing'", "make one with `powerccl tune`"),
        (["report", ".", "--platform", "t4x9"], "unknown platform 't4x9'", "did you mean 't4x8'?"),
        (["profile", "--clocks", "fast"], "--clocks fast: not understood", "1590,900,450"),
        (["bench", "--emulate", "nope", "all_reduce"], "unknown emulated platform 'nope'", "t4x8"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_a_hint(
    arguments: list[str],
    words: str,
    hint: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["powerccl", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == USAGE
    assert words in err and hint in err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert out == ""
    assert not (work / "runs").exists()


def test_a_job_that_is_not_started_exits_with_125(work: Path) -> None:
    result = powerccl("run", "--policy", "per-call", "--emulate", "h200x4", "--", "touch", "started")
    assert result.returncode == NOT_STARTED
    assert "the emulated platform h200x4" in result.stderr and "profile --emulate h200x4" in result.stderr
    assert not list(work.iterdir())


def test_a_run_that_was_probably_meant_is_named(work: Path) -> None:
    powerccl("run", "-q", "--name", "train", "--", "true")
    result = powerccl("report", f"{only_run(work).name}x")
    assert result.returncode == 1
    assert f"did you mean '{only_run(work).name}'?" in result.stderr
    result = powerccl("tune", "--from", "nowhere")
    assert result.returncode == 1
    assert "error: no run nowhere\nhint: " in result.stderr


def test_run_passes_output_and_code_through_and_leaves_a_folder(work: Path) -> None:
    result = powerccl("run", "--", "sh", "-c", "echo mine; echo its >&2; exit 7")
    assert result.returncode == 7
    assert result.stdout == "mine\n"
    assert "its" in result.stderr
    assert "exit 7" in result.stderr
    run = only_run(work)
    info = json.loads((run / "run.json").read_text())
    assert info["exit_code"] == 7
    assert info["command"][0] == "sh"
    assert info["end_ns"] > info["start_ns"] > 0
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 7
    assert (run / "agent-is-gone").exists()
    assert "--interval-ms 19" in (run / "agent-was-here").read_text()


def test_the_job_sees_its_environment(work: Path) -> None:
    result = powerccl("run", "-q", "--", "env")
    seen = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    assert seen["POWERCCL_POLICY"] == "observe"
    assert seen["POWERCCL_CLOCKS"] == "none"
    assert seen["POWERCCL_RUN_FOLDER"] == str(only_run(work))
    assert seen["NCCL_PROFILER_PLUGIN"].endswith("lib/libpowerccl-nccl.so")
    assert result.stderr == ""


def test_emulated_percall_gets_a_table_and_the_emulators_libraries(work: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(encode(profile()))
    result = powerccl(
        "run", "-q", "--emulate", "t4x8", "--policy", "per-call", "--platform", str(tmp_path / "mine.json"), "--", "env"
    )
    assert result.returncode == 0, result.stderr
    seen = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    assert seen["POWERCCL_CLOCKS"] == "dry"
    assert "dry run, no clock is set" in result.stderr, "the stand-in is no daemon"
    assert seen["LD_LIBRARY_PATH"].split(":")[0].endswith("native/emulator")
    table = Path(seen["POWERCCL_POLICY_TABLE"])
    assert table.parent == only_run(work)
    assert "min_clock_mhz all_reduce 1048576 inf 480" in table.read_text()
    assert not Path(seen["POWERCCL_EMULATOR_SOCKET"]).exists()  # the server has gone with the job


def test_an_emulated_run_takes_auto_and_keeps_a_budget(work: Path) -> None:
    options = ("--emulate", "t4x8", "--max-slowdown", "0.25")
    result = powerccl("run", "-q", *options, "--", "env", POWERCCL_MAX_SLOWDOWN="3")
    assert "POWERCCL_POLICY=auto\n" in result.stdout
    assert "POWERCCL_POLICY_TABLE" not in result.stdout
    assert "POWERCCL_MAX_SLOWDOWN=0.25\n" in result.stdout
    info = json.loads((only_run(work) / "run.json").read_text())
    assert (info["policy"], info["slowdown_pct"]) == ("auto", 0.25)


def test_what_is_no_budget_and_who_keeps_none() -> None:
    wrong = powerccl("run", "--max-slowdown", "-1", "--", "true")
    assert wrong.returncode == USAGE
    assert "Invalid value for '--max-slowdown'" in wrong.stderr
    result = powerccl("run", "-q", "--policy", "observe", "--max-slowdown", "2", "--", "true")
    assert "policy observe ignores --max-slowdown, which is for auto" in result.stderr
    assert powerccl("run", "-q", "--max-slowdown", "2", "--", "true").stderr == ""


def test_dry_in_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(encode(profile()))
    arguments = ["run", "-q", "--emulate", "t4x8", "--policy", "per-call", "--platform", str(tmp_path / "mine.json")]
    result = powerccl(*arguments, "--set-clocks", "--", "env", POWERCCL_CLOCKS="dry")
    assert "POWERCCL_CLOCKS=dry\n" in result.stdout
    assert "POWERCCL_CLOCKS=dry: no clock is set" in result.stderr


def test_percall_without_a_gpu_records_only() -> None:
    result = powerccl("run", "-q", "--policy", "per-call", "--", "env", LD_LIBRARY_PATH="")
    assert result.returncode == 0
    assert "recording only" in result.stderr
    assert "POWERCCL_POLICY=observe" in result.stdout


def environment_of_job(*options: str, **environment: str) -> dict[str, str]:
    result = powerccl("run", "-q", *options, "--", "env", **environment)
    assert result.returncode == 0, result.stderr
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)


def test_a_users_own_profiler_is_chained() -> None:
    job = environment_of_job(NCCL_PROFILER_PLUGIN="inspector")
    ours = job["NCCL_PROFILER_PLUGIN"]
    assert ours.endswith("libpowerccl-nccl.so")
    assert job["POWERCCL_CHAINED_PROFILER"] == "inspector"
    # In a run within a run ours is there already, and the user's stays behind it.
    nested = environment_of_job(NCCL_PROFILER_PLUGIN=ours, POWERCCL_CHAINED_PROFILER="inspector")
    assert nested["POWERCCL_CHAINED_PROFILER"] == "inspector"
    assert "POWERCCL_CHAINED_PROFILER" not in environment_of_job()
    refused = environment_of_job(NCCL_PROFILER_PLUGIN="x", POWERCCL_CHAINED_PROFILER="none")
    assert refused["POWERCCL_CHAINED_PROFILER"] == "none"


@pytest.mark.parametrize(("command", "code"), [(["no-such-program"], 127), (["./data"], 126)])
def test_a_command_that_cannot_start_exits_as_a_shell_would(command: list[str], code: int, work: Path) -> None:
    (work / "data").write_text("x")
    result = powerccl("run", "--", *command)
    assert result.returncode == code
    assert "error: cannot run" in result.stderr


def test_a_signal_ends_job_and_launcher_alike(work: Path) -> None:
    process = start("run", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "exit 143" in err
    assert json.loads((only_run(work) / "run.json").read_text())["signal"] == signal.SIGTERM


def test_a_killed_launcher_leaves_a_readable_folder_and_no_agent(work: Path) -> None:
    process = start("run", "--", "sh", "-c", "echo $$; sleep 60")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait(30)
    run = only_run(work)
    deadline = time.monotonic() + 20
    while not (run / "agent-is-gone").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (run / "agent-is-gone").exists()
    os.kill(child, signal.SIGKILL)
    process.stdout.close()
    info = json.loads((run / "run.json").read_text())
    assert info["exit_code"] is None
    assert info["end_ns"] == 0


def test_two_jobs_at_once_have_two_folders(work: Path) -> None:
    jobs = [start("run", "-q", "--name", "same", "--", "sleep", "0.3") for _ in range(3)]
    for job in jobs:
        job.communicate(timeout=60)
    assert [job.returncode for job in jobs] == [0, 0, 0]
    assert len(list((work / "runs").iterdir())) == 3


def test_ranks_of_one_job_share_folder_and_agent(work: Path) -> None:
    step = {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}
    arguments = ("run", "--", "sh", "-c", "echo $POWERCCL_RUN_FOLDER $POWERCCL_RUN_ID; sleep 0.3")
    ranks = [start(*arguments, **step, SLURM_PROCID=str(i), SLURM_LOCALID=str(i)) for i in range(3)]
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert len({out for out, _ in said}) == 1
    assert [bool(err) for _, err in said] == [True, False, False]  # rank 0 speaks for all
    run = only_run(work)
    assert run.name.startswith("slurm-9.0-sh-")
    run_id = json.loads((run / "run.json").read_text())["run_id"]
    assert len(run_id) == 32
    assert {out for out, _ in said} == {f"{run} {run_id}\n"}
    assert len((run / "agent-was-here").read_text().splitlines()) == 1


def test_a_run_folder_that_cannot_be_made(work: Path) -> None:
    (work / "runs").write_text("in the way")
    result = powerccl("run", "--", "sh", "-c", "echo ran; exit 3")
    assert (result.returncode, result.stdout) == (3, "ran\n")
    assert "cannot make a run folder in runs: File exists; the job runs unrecorded" in result.stderr


def test_a_run_folder_that_is_replaced_leaves_the_job_alone(work: Path) -> None:
    # The folder becomes a file while the job runs: nothing more can be written there.
    script = 'rm -r "$POWERCCL_RUN_FOLDER"; echo > "$POWERCCL_RUN_FOLDER"; exit 6'
    result = powerccl("run", "--", "sh", "-c", script)
    assert result.returncode == 6
    assert "is gone: Not a directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_agent_that_fails_is_told_and_the_job_runs(work: Path, tmp_path: Path) -> None:
    fakes.write_program(
        tmp_path / "native/bin/powerccl-agent", "#!/bin/sh\necho 'powerccl-agent: broken' >&2; exit 1\n"
    )
    result = powerccl("run", "-q", "--", "sh", "-c", "exit 5")
    assert result.returncode == 5
    assert "cannot sample power and clocks: powerccl-agent: broken" in result.stderr


def test_summary_as_json(work: Path) -> None:
    assert json.loads(powerccl("run", "--json", "-", "--", "true").stdout)["schema"] == 1


def test_runs_start_without_heavy_imports() -> None:
    code = (
        "import sys; from powerccl.commands import run; "
        "heavy = {'numpy', 'polars', 'rich', 'plotly', 'jinja2', 'msgspec'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_doctor_as_json_and_text() -> None:
    result = powerccl("doctor", "--json")
    document = json.loads(result.stdout)
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert states["native files"] == "ok"
    assert states["agent"] == "ok"
    assert states["NCCL plugin"] == "broken"  # the stand-in is an empty file
    assert not document["usable"]
    assert result.returncode == 1
    text = powerccl("doctor")
    assert text.returncode == 1
    assert "Does not work:" in text.stdout
    assert "→ reinstall powerccl" in text.stdout


def test_doctor_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "native/bin/powerccl-bench").unlink()
    result = powerccl("doctor", "--json")
    found = next(check for check in json.loads(result.stdout)["checks"] if check["name"] == "native files")
    assert ": bin/powerccl-bench" in found["found"]
    assert "make native" in found["advice"]


def test_bench_passes_arguments_and_code(tmp_path: Path) -> None:
    fakes.write_program(
        tmp_path / "native/bin/powerccl-bench", '#!/bin/sh\necho "$@"; env | grep -c EMULATOR; exit 4\n'
    )
    result = powerccl("bench", "all_reduce", "-b", "1M", "--json", "x")
    assert (result.returncode, result.stdout) == (4, "all_reduce -b 1M --json x\n0\n")
    result = powerccl("bench", "--emulate", "t4x8", "--", "scenario", "--help")
    assert (result.returncode, result.stdout) == (4, "scenario --help\n1\n")


PROFILE = ("profile", "--emulate", "t4x8", "--patterns", "all_reduce,gather", "--sizes", "1M:4M:2", "--out", "p.json")


@pytest.fixture
def two_gpus(work: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stand-ins for libnvidia-ml and powerccld answer nothing, so what would be asked of them is put in its place.

    Profiles through leases are in tests/e2e/test_profile_leases.py.
    """
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import json, powerccl.launch.gpus as g\n"
        f"g.query_gpus_in = lambda _: g.Gpus(**json.loads({fakes.GPUS_MODULE_JSON!r}))\n" + fakes.SWEPT_CLOCKS
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}:{PACKAGE}")


@pytest.mark.usefixtures("two_gpus")
def test_profile_end_to_end(work: Path) -> None:
    result = powerccl(*PROFILE, "--table", "p.table")
    assert result.returncode == 0, result.stderr
    made = json.loads((work / "p.json").read_text())
    assert made["gpu"] == "Tesla T4"
    assert made["emulated"]
    assert len(made["points"]) == 2 * 3 * 4
    assert {point["provenance"] for point in made["points"]} == {"emulated"}
    assert "emulated here" in result.stdout
    assert "published (8 x T4)" in result.stdout
    assert "min_clock_mhz all_reduce 1048576 inf 480" in (work / "p.table").read_text()
    # 20 us on 350, 700 and 1400 us: under 2 % from 4 MiB
    assert {point["pattern"]: point["size_bytes"] for point in made["overhead"]} == {
        "all_reduce": 4 << 20,
        "gather": 4 << 20,
    }
    assert "t4x8: platform profile" in (work / "p.html").read_text()
    assert not (work / "p.profiling").exists()


@pytest.mark.usefixtures("two_gpus")
def test_an_interrupted_profile_goes_on(work: Path) -> None:
    result = powerccl(*PROFILE, FAKE_BENCH_STOPS_AFTER="10")
    assert result.returncode == 1
    assert "powerccl-bench ended with exit code 4: powerccl-bench: a rank failed" in result.stderr
    assert "--resume" in result.stderr
    assert not (work / "p.json").exists()
    kept = (work / "p.profiling/points.jsonl").read_text()
    assert kept.count('"point"') == 10
    result = powerccl(*PROFILE, "--resume")
    assert result.returncode == 0, result.stderr
    assert len(json.loads((work / "p.json").read_text())["points"]) == 24


@pytest.mark.usefixtures("two_gpus")
def test_a_profile_begun_anew_says_so(work: Path) -> None:
    powerccl(*PROFILE, FAKE_BENCH_STOPS_AFTER="10")
    assert "starting a new profile" in powerccl(*PROFILE).stderr


@pytest.mark.usefixtures("two_gpus")
def test_a_profile_where_clocks_may_not_be_set(work: Path) -> None:
    result = powerccl(*PROFILE, POWERCCL_CLOCKS="dry")
    assert result.returncode == 0, result.stderr
    assert "profiling the present clock only" in result.stderr
    made = json.loads((work / "p.json").read_text())
    assert not made["clocks_set"]
    assert len(made["points"]) == 6


def test_profile_without_a_gpu_points_at_the_emulator() -> None:
    result = powerccl("profile", LD_LIBRARY_PATH="")
    assert result.returncode == 1
    assert "powerccl profile --emulate t4x8" in result.stderr


def test_a_fault_of_ours_exits_with_70(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr("powerccl.launch.native.find_native", broken)
    monkeypatch.setattr("powerccl.commands.bench.find_native", broken)
    monkeypatch.setattr(sys, "argv", ["powerccl", "bench", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == FAULT
    assert "unexpected: RuntimeError: surprise" in capsys.readouterr().err


@pytest.mark.usefixtures("two_gpus")
def test_a_profile_of_another_machine_than_the_emulated_one(tmp_path: Path, work: Path) -> None:
    (tmp_path / "mine.json").write_bytes(encode(profile()))
    arguments = ["run", "--emulate", "h200x4", "--policy", "per-call", "--platform", str(tmp_path / "mine.json")]
    result = powerccl(*arguments, "--", "sh", "-c", "echo ran")
    assert result.returncode == NOT_STARTED
    assert result.stdout == ""
    assert "'t4x8' was measured on 8 x Tesla T4; this machine has 2 of them" in result.stderr


@pytest.mark.parametrize("quiet", [True, False])
def test_a_job_without_ranks_does_not_wait_for_a_summary(work: Path, quiet: bool) -> None:
    """A third of a second of imports; the time itself is `make figures-first`'s."""
    options = ("-q",) if quiet else ()
    result = powerccl("run", *options, "--name", "brief", "--", "true", PYTHONPROFILEIMPORTTIME="1")
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time:")}
    assert "powerccl.launch.record" in loaded
    heavy = {"polars", "numpy", "plotly", "scipy", "powerccl.analysis.summary", "powerccl.leases.client"}
    assert not loaded & (heavy | ({"rich.console", "msgspec"} if quiet else set()))
    folder = only_run(work)
    assert (folder / "summary.json").exists() != quiet
    assert powerccl("report", "-q", str(folder)).returncode == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["command"], summary["exit_code"], summary["ranks"]) == (["true"], 0, 0)
    assert summary["wall_s"] > 0
    assert summary["energy"]["joules"] is None


EXTRAS_MISSING = """
import sys
from powerccl.commandline.extras import EXTRAS
sys.modules.update(dict.fromkeys(EXTRAS))
from powerccl.commands import main
main()
"""


def test_recording_needs_no_extra(work: Path) -> None:
    command = [sys.executable, "-c", EXTRAS_MISSING, "run", "--name", "bare", "--", "true"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (only_run(work) / "run.json").exists()


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("report", "."), "report"),
        (("top", "--once"), "live"),
        (("tune", "--from", "."), "tune"),
        (("export", "--otlp", "http://127.0.0.1:4318", "--once"), "otlp"),
    ],
)
def test_a_verb_whose_extra_is_missing_names_it(work: Path, words: tuple[str, ...], extra: str) -> None:
    command = [sys.executable, "-c", EXTRAS_MISSING, *words]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"pip install 'powerccl[{extra}]'" in done.stderr and "Traceback" not in done.stderr


def test_extras_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    sdk = ("opentelemetry_sdk", "opentelemetry_exporter_otlp_proto_http")
    renamed = {"nvidia_ml_py": "pynvml", **dict.fromkeys(sdk, "opentelemetry")}
    for extra in set(EXTRAS.values()):
        array = re.search(rf"^{extra} = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
        assert array is not None
        named = {name.replace("-", "_") for name in re.findall(r'"([a-z0-9-]+)[>=]', array[1])}
        assert {renamed.get(name, name) for name in named} == {name for name, of in EXTRAS.items() if of == extra}
