#!/usr/bin/env python3
"""Run the native tests and the wheel that were built for AArch64, by qemu-user; `make test-arm64` builds both.

The processor is emulated: its times mean nothing, and an order of memory accesses that only Arm has does not show.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, count, show, write

ARM = ROOT / "build/arm64"
EMULATOR = str(ROOT / "tools/run-arm64")
# What wheels of other packages are for, and the Python of the Debian that tools/fetch-arm64 unpacks.
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64")
PYTHON = "3.11"
# Tests that ask for what there is not under qemu-user in namespaces, as expressions for ctest.
LEFT_OUT = {
    "OwnDescriptors.*<0[12]": "seccomp filters",
    "AgentTest.OutlivesSignalsThatWereBlockedWhenItStarted": "blocked signals; 4, 8, 32, 34 and 35 end qemu",
    "NvmlClock.KnowsThatLockingTakesPrivilege": "a second user",
    "Nccl.AnAllReduceTakesWhatThePlatformSays": "data moved as fast as the emulated GPUs move it",
}
GPU_JOB = ("powerccl-bench", "all_reduce", "-g", "2", "-b", "8M", "-e", "8M", "-n", "20")
# The library by name: it is looked for beside the launcher, which is qemu as others see it.
MPI_JOB = ("mpiexec", "-n", "2", "powerccl-bench-mpi", "wait", "--wait-us", "200000", "--repeat", "3", "--library")


def failed_tests(jobs: int) -> tuple[list[str], int, int]:
    """Native tests that failed alone too, how many were run, and how many were left out."""
    ctest = ["ctest", "--test-dir", str(ARM / "test")]
    left_out = [*ctest, "--show-only=json-v1", "--tests-regex", "|".join(LEFT_OUT)]
    listed = json.loads(subprocess.run(left_out, text=True, stdout=subprocess.PIPE, check=True).stdout)["tests"]
    states = results([*ctest, "--exclude-regex", "|".join(LEFT_OUT), "--parallel", str(jobs)])
    if "fail" in states.values():  # those that measure time, beside others: again, one after another
        states |= results([*ctest, "--rerun-failed", "--repeat", "until-pass:3"])
    return [name for name, state in states.items() if state == "fail"], len(states), len(listed)


def results(command: Sequence[str]) -> dict[str, str]:
    """Names of tests and what became of each: `run` or `fail`. Those that skip themselves are not among them."""
    report = ARM / "tests.xml"
    subprocess.run([EMULATOR, *command, "--output-on-failure", "--output-junit", str(report)], cwd=ROOT, check=False)
    cases = ElementTree.parse(report).iter("testcase")
    states = {case.get("name", ""): case.get("status", "") for case in cases}
    return {name: state for name, state in states.items() if state != "notrun"}


def emulated(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command in the AArch64 Debian. What it prints is printed on, and kept."""
    line = [EMULATOR, "--root", str(ARM / "root"), *command]
    done = subprocess.run(line, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
    print(done.stdout, end="", flush=True)
    return done


def install(wheel: Path) -> Path:
    """A new environment of the AArch64 Python with the wheel and an MPI; the folder of its commands."""
    packages, environment = ARM / "packages", ARM / "venv"
    listed = [sys.executable, "tools/list-requirements.py", "pyproject.toml", "dependencies", "report"]
    needed = subprocess.run(listed, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    (ARM / "packages.txt").write_text(needed + "mpich\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    pip += [f"--platform={each}" for each in PLATFORMS]
    pip += ["--python-version", PYTHON, "--constraint", "requirements.lock", "--dest", str(packages)]
    subprocess.run([*pip, "--requirement", str(ARM / "packages.txt")], cwd=ROOT, check=True)
    emulated(["python3", "-m", "venv", "--clear", str(environment)]).check_returncode()
    offline = ["install", "--quiet", "--no-index", "--find-links", str(packages)]
    emulated([str(environment / "bin/pip"), *offline, f"{wheel}[report]", "mpich"]).check_returncode()
    return environment / "bin"


def record(commands: Path, name: str, options: Sequence[str], job: Sequence[str]) -> dict[str, Any]:
    """The summary of a recorded job; empty if there is none."""
    summary = ARM / f"{name}.json"
    summary.unlink(missing_ok=True)
    run = [str(commands / "powerccl"), "run", "--runs-dir", str(ARM / "runs"), "--name", name, "--json", str(summary)]
    emulated(["env", f"PATH={commands}:/usr/bin:/bin", *run, *options, "--", *job])
    found: dict[str, Any] = json.loads(summary.read_text()) if summary.exists() else {}
    return found


def wheel_faults(wheel: Path) -> dict[str, bool]:
    """What a user has of the wheel, and whether it is missing."""
    commands = install(wheel)
    gpus = record(commands, "gpus", ("--emulate", "t4x8"), GPU_JOB)
    calls = gpus.get("communication") or {"calls": 0}
    report = emulated([str(commands / "powerccl"), "report", str(gpus.get("folder")), "--json"])
    mpi = record(commands, "mpi", (), (*MPI_JOB, str(commands.parent / "lib/libmpi.so.12")))
    return {
        "a recorded job on emulated GPUs": (gpus.get("exit_code"), gpus.get("ranks")) != (0, 2),
        "a time of each collective": not calls["calls"] or calls["calls"] != calls["timed_calls"],
        "energy by the agent's samples": not (gpus.get("energy") or {}).get("joules"),
        "a report": report.returncode != 0 or '"summary"' not in report.stdout,
        "an MPI rank that slept while it waited": not (mpi.get("mpi") or {}).get("sleep_s"),
    }


def main() -> int:
    """Run both and write; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="tests at once")
    asked = parser.parse_args()
    failed, tests, left_out = failed_tests(asked.jobs)
    faults = wheel_faults(asked.wheel.resolve())
    missing = [name for name, fault in faults.items() if fault]
    found: Figures = {
        "arm.tests.failed": count(len(failed), tests),
        "arm.tests.left_out": count(left_out, tests + left_out),
        "arm.wheel.failed": count(len(missing), len(faults)),
    }
    show(found)
    for name in (*failed, *missing):
        print(f"failed: {name}")
    write(asked.out, found)
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
