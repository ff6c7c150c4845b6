#!/usr/bin/env python3
"""Try PowerCCL on NVIDIA's nvml-mock, profile by profile: a flat map name -> {value, unit, low, high, n}.

The library and its profiles are not part of this project: https://github.com/NVIDIA/k8s-test-infra (Apache-2.0).
`make -C pkg/gpu/mocknvml NO_PADDING=1` there makes the library; that needs Go and a C compiler. The profiles are
pkg/gpu/mocknvml/configs/*.yaml and deployments/nvml-mock/helm/nvml-mock/profiles/*.yaml.

    figures-mocks.py LIBRARY PROFILE...

Each profile is tried as it is, and with faults: a GPU that is lost from the start or after 100 calls, MIG mode, no
power readings, no clocks either, and a copy of the library that lacks these functions. A profile has failed if one
thing of any of its cases is wrong; each is printed. Every case takes a quarter of a minute. The profiles' readings
stand still, so what they must give is known.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e"), str(ROOT / "tests")]

import yaml
from daemon_process import Daemon
from lease_client import NOT_ALLOWED, OK, SETTLED, SHOW_FILE, Client
from support.figures import count, show, write
from support.nvml_copies import OPTIONAL, copy_without

from powerccl.launch.native import find_native

Profile = dict[str, Any]
Case = Callable[[Profile], None]
AFTER_CALLS = 100


def lost(profile: Profile) -> None:
    """GPU 0 does not answer at all."""
    profile["devices"][0]["failure"] = {"mode": "lost"}


def lost_later(profile: Profile) -> None:
    """GPU 0 is lost while the job runs: an agent makes 100 calls in two seconds."""
    profile["devices"][0]["failure"] = {"mode": "fallen_off_bus", "after_calls": AFTER_CALLS, "xid": {"code": 79}}


def mig(profile: Profile) -> None:
    """All GPUs are in MIG mode."""
    profile["device_defaults"]["mig"] = {"mode_current": "enabled", "mode_pending": "enabled", "max_gpu_instances": 7}


def no_power(profile: Profile) -> None:
    """GPUs without power readings, energy counter and power limits."""
    del profile["device_defaults"]["power"]


def clocks_too(profile: Profile) -> None:
    """And without clocks and temperature."""
    no_power(profile)
    for name in ("clocks", "thermal"):
        del profile["device_defaults"][name]


def as_it_is(profile: Profile) -> None:
    """No fault."""


CASES: dict[str, Case] = {
    "as it is": as_it_is,
    "lost": lost,
    "lost later": lost_later,
    "MIG": mig,
    "no power": no_power,
    "no power, no clocks": clocks_too,
    "no functions": as_it_is,
}
# Of the last case: what the library then lacks is what profiles without power and clocks do not tell.
LACKED = [name for name in OPTIONAL if name not in ("nvmlDeviceGetName", "nvmlSystemGetDriverVersion")]


class Trial:
    """One profile with one case."""

    def __init__(self, library: Path, profile: Profile, case: str, folder: Path) -> None:
        self.case, self.profile = case, copy.deepcopy(profile)
        CASES[case](self.profile)
        self.folder = folder
        if case == "no functions":
            library = copy_without(library, LACKED, folder / "old")
            clocks_too(self.profile)  # as the checks below have it
        file = folder / "profile.yaml"
        file.write_text(json.dumps(profile if case == "no functions" else self.profile))  # JSON is YAML, quotes and all
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library.parent),
            "MOCK_NVML_CONFIG": str(file),
            "PYTHONPATH": str(ROOT / "python"),
            "COLUMNS": "200",
        }
        self.defaults = self.profile["device_defaults"]
        self.name = str(self.defaults["name"])
        self.uuids = [str(device["uuid"]) for device in self.profile["devices"]]
        power = self.defaults.get("power")
        self.watts = power["current_draw_mw"] / 1e3 if power else None
        self.clock_mhz = self.defaults["clocks"]["sm_current"] if "clocks" in self.defaults else None
        self.lost = {self.uuids[0]} if case.startswith("lost") else set()
        # Those without any reading; they have a name until the mock loses them, at the first reading.
        self.never = self.lost if case == "lost" else set(self.uuids) if case == "no functions" else set()
        self.wrong: list[str] = []
        self.partial = 0  # energies that are said to be a part

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Note that something is not as it must be."""
        if isinstance(wanted, float) and isinstance(found, (int, float)):
            good = abs(found - wanted) <= 0.03 * wanted
        else:
            good = found == wanted
        if not good:
            self.wrong.append(f"{what}: {found!r}, not {wanted!r}")

    def call(self, *arguments: str) -> str:
        """What powerccl prints; a traceback or a death by signal is a fault of every command."""
        done = subprocess.run(
            ["powerccl", *arguments], env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        self.expect(f"{arguments[0]}'s end", done.returncode, 0)
        self.expect(f"{arguments[0]}'s stderr names a traceback", "Traceback" in done.stderr, False)
        return done.stdout

    def doctor(self) -> None:
        """What `powerccl doctor` says of the GPUs."""
        checks = {each["name"]: each for each in json.loads(self.call("doctor", "--json"))["checks"]}
        self.expect("doctor's GPUs", checks["GPUs"]["found"].split(" (")[0], f"{len(self.uuids)} x {self.name}")
        # The profiles' energy counters stand still, and counters that do are none.
        state = "missing" if self.watts is None or self.never else "ok"
        self.expect("doctor's energy", checks["energy"]["state"], state)
        self.expect("doctor names an energy counter", "counter (exact" in checks["energy"]["found"], False)
        limit = f"{self.defaults['power']['enforced_limit_mw'] / 1e3:.0f} W" if self.watts is not None else None
        self.expect("doctor's limit", checks.get("power limit", {}).get("found"), limit)
        self.expect("doctor's clocks", checks["clocks"]["state"], "missing")  # the mock sets none

    def job(self) -> None:
        """A job that waits: what top and export say of it meanwhile, its records and its report."""
        started = subprocess.Popen(
            # At 100 ms a busy machine, on which the agent waits for a core, seldom leaves a gap.
            ["powerccl", "run", "--interval-ms", "100", "--runs-dir", "runs", "--json=summary.json", "--", "cat"],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(6)
        view = json.loads(self.call("top", "--once", "--json", "--runs-dir", "runs"))
        metrics = self.call("export", "--once", "--runs-dir", "runs")
        said = started.communicate(timeout=60)[1]
        self.expect("run's end", started.returncode, 0)
        self.expect("run's stderr names a traceback", "Traceback" in said, False)
        self.records()
        jobs = [job for job in view["jobs"] if Path(job["folder"]).parent == self.folder / "runs"]
        self.expect("jobs that top shows", len(jobs), 1)
        for gpu in jobs[0]["gpus"] if jobs else []:
            self.live(gpu)
        self.metrics(metrics)
        self.summary(json.loads((self.folder / "summary.json").read_text()))

    def records(self) -> None:
        """The agent's file."""
        files = list(self.folder.glob("runs/*/power-*.csv"))
        self.expect("files of samples", len(files), 1)
        lines = files[0].read_text().splitlines() if files else []
        about = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
        names = {key: value for key, value in about.items() if re.fullmatch(r"gpu\d+_name", key)}
        self.expect("names of GPUs", set(names.values()), {self.name})
        self.expect("GPUs with a name", len(names), len(self.uuids))
        self.expect("the platform", about.get("emulated"), "0")
        table = [line.split(",") for line in lines if not line.startswith("#")]
        rows = [dict(zip(table[0], row, strict=False)) for row in table[1:]] if table else []
        self.expect("rows without all fields", sum(len(row) != len(table[0]) for row in table), 0)
        for uuid in self.uuids:
            own = [row for row in rows if row["uuid"] == uuid]
            self.expect(f"{uuid} has rows", bool(own) or uuid in self.never, True)
            mw = {row["power_mw"] for row in own} - ({"-1", ""} if uuid in self.lost else set())
            self.expect(f"{uuid}'s power", mw, set() if uuid in self.never else {self.text(self.watts, 1e3)})
            mhz = {row["sm_clock_mhz"] for row in own} - ({"-1", ""} if uuid in self.lost else set())
            self.expect(f"{uuid}'s clock", mhz, set() if uuid in self.never else {self.text(self.clock_mhz, 1)})

    @staticmethod
    def text(value: float | None, unit: float) -> str:
        """A reading as the agent writes it."""
        return "-1" if value is None else str(round(value * unit))

    def live(self, gpu: dict[str, Any]) -> None:
        """One GPU of top."""
        uuid = gpu["gpu"]
        alive = uuid not in self.lost
        self.expect(f"top's power of {uuid}", gpu["power_w"], self.watts if alive else None)
        self.expect(f"top's clock of {uuid}", gpu["clock_mhz"] if alive else None, self.clock_mhz if alive else None)
        if self.watts is None:
            self.expect(f"top's joules of {uuid}", (gpu["joules"], gpu["joules_at_least"]), (None, None))
        elif alive:
            self.expect(f"top knows joules of {uuid}", bool(gpu["joules"] or gpu["joules_at_least"]), True)
        else:
            self.expect(f"top's whole joules of {uuid}", gpu["joules"], None)

    def metrics(self, text: str) -> None:
        """What Prometheus reads: its linter, and each sample of a GPU."""
        linted = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        self.expect("promtool", (linted.returncode, linted.stdout + linted.stderr), (0, ""))
        own = "\n".join(line for line in text.splitlines() if f'run="{self.folder}/' in line)
        for name, uuid, value in re.findall(r'^(powerccl_gpu_\w+){[^}]*uuid="([^"]+)"[^}]*} (\S+)$', own, re.M):
            if name == "powerccl_gpu_power_watts":
                self.expect(f"export's power of {uuid}", float(value), self.watts if uuid not in self.lost else None)
            if name == "powerccl_gpu_energy_joules_total":
                self.expect(f"export's energy of {uuid} is more than 0", float(value) > 0, self.watts is not None)

    def summary(self, told: dict[str, Any]) -> None:
        """The run's report."""
        self.expect("platform of the run", (told["emulated"], told["platform"]), ("", ""))
        seconds, energy = told["wall_s"], told["energy"]
        for gpu in told["gpus"]:
            self.expect("a name in the report", gpu["name"], self.name)
            whole = None if self.watts is None or gpu["gpu"] in self.lost else self.watts * seconds
            self.joules(f"joules of {gpu['gpu']}", gpu, whole)
        whole = None if self.watts is None or self.lost else len(self.uuids) * self.watts * seconds
        self.joules("joules", energy, whole)
        self.expect("what the energy is of", energy["source"], "power" if self.watts is not None else "none")

    def joules(self, what: str, told: dict[str, Any], whole: float | None) -> None:
        """Energy, whole or said to be a part: the machine may be too busy to sample."""
        part = told["joules_at_least"]
        if whole and told["joules"] is None and part is not None:
            self.partial += 1
            self.expect(f"{what}, at least", 0 < part <= whole, True)
        else:
            self.expect(what, told["joules"], whole)

    def daemon(self) -> None:
        """The clock daemon refuses what the driver does not do, and names it."""
        if self.case == "no functions":
            return self.no_daemon()
        daemon = Daemon(find_native(), None)
        try:
            for minor in range(len(self.uuids)):
                (daemon.folder / f"gpu{minor}").touch()
            daemon.start(
                f'[access]\nheartbeat_ms = 120000\n[gpu]\ndevice_files = "{daemon.folder}/gpu%"\n',
                LD_LIBRARY_PATH=self.environment["LD_LIBRARY_PATH"],
                MOCK_NVML_CONFIG=self.environment["MOCK_NVML_CONFIG"],
            )
            self.expect("the daemon's GPUs", set(daemon.devices), set(self.uuids) - self.never)
            for uuid in daemon.devices[1:3]:
                self.refused(Client(daemon.socket), uuid)
            assert daemon.process
            self.expect("the daemon runs", daemon.process.poll(), None)
            code = daemon.kill(signal.SIGTERM)
            log = daemon.log.read_text()
            self.expect(f"the daemon's end ({log[-600:] if code else ''})", code, 0)
            self.expect("a clock that the daemon would restore", "restoring" in log, False)
        finally:
            daemon.end()

    def no_daemon(self) -> None:
        """The clock daemon does not start without the functions that set clocks."""
        command = [str(find_native().path("bin/powerccld")), "--socket", f"{self.folder}/d.sock"]
        command += ["--state", f"{self.folder}/leases"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        self.expect("the daemon's end", done.returncode, 1)
        self.expect("its reason", "this NVML has no nvmlDeviceSetGpuLockedClocks" in done.stderr, True)

    def refused(self, client: Client, uuid: str) -> None:
        """A lease of a GPU, and a clock on it."""
        reply = client.acquire(uuid)
        if reply.status == SHOW_FILE:
            with Path(reply.text).open("r+b") as file:
                reply = client.acquire(uuid, file.fileno())
        if self.case == "MIG" or self.clock_mhz is None:
            self.expect(f"a lease of {uuid} is refused", reply.status < 0 and bool(reply.text), True)
            return
        self.expect(f"a lease of {uuid}", reply.status, OK)
        answer = client.set(reply.lease, self.clock_mhz + 100)
        while answer.status == OK and answer.type != SETTLED:
            answer = client.hear()  # the daemon answers before the driver has
        self.expect(f"a clock of {uuid} is refused", answer.status not in (OK, NOT_ALLOWED), True)
        self.expect(f"the reason for {uuid}", "not supported" in answer.text, True)

    def run(self) -> None:
        """All of it."""
        for step in (self.doctor, self.job, self.daemon):
            self.attempt(step)

    def attempt(self, step: Callable[[], None]) -> None:
        """One part. A part that fails is counted, and the others tell more."""
        try:
            step()
        except Exception as error:
            self.wrong.append(f"{step.__name__}: {type(error).__name__}: {error}")


def tried(library: Path, file: Path, case: str) -> Trial:
    """A profile with a case, after its trial."""
    with tempfile.TemporaryDirectory(prefix="mocks-") as folder:
        trial = Trial(library, yaml.safe_load(file.read_text()), case, Path(folder))
        trial.run()
        return trial


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="nvml-mock's libnvidia-ml.so.1")
    parser.add_argument("profiles", type=Path, nargs="+", help="its profiles")
    parser.add_argument("--case", action="append", choices=CASES, help="only these cases")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    library = chosen.library.absolute()
    of = [(file, case) for file in chosen.profiles for case in chosen.case or CASES]
    failed: dict[Path, int] = dict.fromkeys(chosen.profiles, 0)
    with ThreadPoolExecutor(chosen.jobs) as beside:
        for (file, case), trial in zip(of, beside.map(lambda each: tried(library, *each), of), strict=True):
            failed[file] += bool(trial.wrong)
            shown = "; ".join(trial.wrong) or "as it must be"
            partial = f" ({trial.partial} energies in part)" if trial.partial else ""
            print(f"{'/'.join(file.parts[-2:])}, {case}: {shown}{partial}", flush=True)
    figures = {
        "mock.profiles.failed": count(sum(map(bool, failed.values())), len(failed)),
        "mock.cases.failed": count(sum(failed.values()), len(of)),
    }
    show(figures)
    write(chosen.out, figures)


if __name__ == "__main__":
    main()
