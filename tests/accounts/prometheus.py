# SPDX-License-Identifier: Apache-2.0
"""Two nodes with a shared run folder in a real Prometheus: each watt that a GPU draws is counted once.

Two hosts as namespaces run one step of emulated GPUs, and node1 an MPI job beside it. Each host has an exporter, and a
Prometheus scrapes both. The power that the dashboard shows is compared with the energy counters in the sample files,
in all and for each node, and so is the energy in the end. Each query of the dashboard has to have an answer.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.figures import ROOT, Figures, count, one
from support.hosts import Node, hosts
from support.namespaces import NetworksError
from trust import fault

from powerccl.launch.native import NativeFiles

DASHBOARD = ROOT / "packaging/prometheus/grafana-powerccl.json"
SCENARIO = ROOT / "bench/scenarios/ddp.scn"
RAPL = Path("/sys/class/powercap/intel-rapl:0")
NAMES = ("node1", "node2")
GPUS = 16
WATCHED_S = 20.0
WINDOW_S = 5.0  # an exported power is the mean of so long
END_S = 240.0
SCRAPED_S = 1
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_START_TIME": "1000", "SLURM_CLUSTER_NAME": "lab"}
QUERY = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[1], timeout=20).read())"
Floats = npt.NDArray[np.float64]


class Server:
    """A Prometheus on the first node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def ask(self, expression: str, **more: float) -> list[Any]:
        """The series of a query: at the server's present, or from `start` to `end`.

        Raises:
            RuntimeError: the server does not answer, or refuses the query.
        """
        path = "query_range" if more else "query"
        words = urllib.parse.urlencode({"query": expression, **more})
        program = [sys.executable, "-c", QUERY, f"http://{self.node.address}:9090/api/v1/{path}?{words}"]
        done = subprocess.run(self.node.enter(*program), capture_output=True, check=False, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{expression}: {done.stderr.decode()[-200:]}")
        found: list[Any] = json.loads(done.stdout)["data"]["result"]
        return found

    def values(self, expression: str, start: float, end: float) -> Floats:
        """The values of a query that has one series."""
        found = self.ask(expression, start=start, end=end, step=1)
        return np.array([float(value) for _, value in found[0]["values"]] if len(found) == 1 else [])

    def number(self, expression: str) -> float:
        """The one value of a query; 0: it has none, or nobody answers yet."""
        with contextlib.suppress(RuntimeError):
            found = self.ask(expression)
            return float(found[0]["value"][1]) if found else 0.0
        return 0.0


def panels(instance: str = ".*") -> list[tuple[str, str]]:
    """Title and expression of each query of the dashboard, as Grafana would ask it for all runs."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$run", ".*").replace("$instance", instance)
            text = text.replace("$__rate_interval", "10s").replace("$__range", "1m")
            found.append((panel["title"], text))
    return found


def counters(folder: Path) -> dict[str, list[tuple[Floats, Floats]]]:
    """Of each host the energy counters of its GPUs: s of CLOCK_MONOTONIC, and J."""
    found: dict[str, list[tuple[Floats, Floats]]] = {}
    for path in folder.glob("power-*.csv"):
        rows: dict[str, list[tuple[float, float]]] = {}
        with path.open() as file:
            for row in csv.DictReader(line for line in file if line[0] != "#"):
                if int(row["energy_uj"]) >= 0:
                    rows.setdefault(row["uuid"], []).append((int(row["time_ns"]) / 1e9, int(row["energy_uj"]) / 1e6))
        columns = [np.array(each).T for each in rows.values()]
        found[path.stem.removeprefix("power-")] = [(each[0], each[1]) for each in columns]
    return found


def watts(gpus: Sequence[tuple[Floats, Floats]], begin_s: float, end_s: float) -> float:
    """Mean of the power that an exporter would have told between two times: each is a mean of a window."""
    ends = np.arange(begin_s, end_s, 0.5)
    total = np.zeros(len(ends))
    for at_s, joules in gpus:
        total += np.interp(ends, at_s, joules) - np.interp(ends - WINDOW_S, at_s, joules)
    return float(total.mean() / WINDOW_S)


def started(
    node: Node, native: NativeFiles, place: Path, name: str, *words: str, **more: str
) -> subprocess.Popen[bytes]:
    """A process on a node; what it prints is in a file of that name."""
    clean = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    environment = {**clean, "POWERCCL_NATIVE": str(native.root), **more}
    with (place / f"{name}.out").open("wb") as out:
        return subprocess.Popen(node.enter(*words), env=environment, stdout=out, stderr=out, cwd=place)


@contextlib.contextmanager
def watched(nodes: Sequence[Node], native: NativeFiles, place: Path) -> Iterator[Server]:
    """An exporter on each node, and a Prometheus that scrapes them."""
    targets = [f"{node.address}:19487" for node in nodes]
    config = {"job_name": "powerccl", "static_configs": [{"targets": targets}]}
    about = {"global": {"scrape_interval": f"{SCRAPED_S}s"}, "scrape_configs": [config]}
    (place / "prometheus.yml").write_text(json.dumps(about))  # YAML has JSON in it
    powerccl = str(Path(sys.executable).parent / "powerccl")
    server = ("prometheus", f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data")
    running = [
        started(node, native, place, f"exporter-{node.name}", powerccl, "export", "--listen", target)
        for node, target in zip(nodes, targets, strict=True)
    ]
    listen = f"--web.listen-address={nodes[0].address}:9090"
    running.append(started(nodes[0], native, place, "prometheus", *server, listen))
    try:
        yield Server(nodes[0])
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait(END_S)


def jobs(nodes: Sequence[Node], native: NativeFiles, place: Path) -> list[subprocess.Popen[bytes]]:
    """A step of two nodes, and an MPI job on the first."""
    powerccl = str(Path(sys.executable).parent / "powerccl")
    run = (powerccl, "run", "--runs-dir", str(place / "runs"))
    bench = (str(native.path("bin/powerccl-bench")), "scenario", str(SCENARIO), "--iterations", "350", "-w", "2")
    found = []
    for number, node in enumerate(nodes):
        place_in_step = {"SLURM_PROCID": str(number), "SLURM_NODEID": str(number), "SLURM_LOCALID": "0"}
        words = (*run, "--emulate", "t4x8", "--name", "two-nodes", "--", *bench)
        step = {**STEP, **place_in_step, "SLURM_STEP_NUM_TASKS": str(len(nodes))}
        found.append(started(node, native, place, f"job-{node.name}", *words, **step))
    waits = (str(native.path("bin/powerccl-bench-mpi")), "wait", "--wait-us", "500000", "--repeat", "80")
    found.append(started(nodes[0], native, place, "mpi", *run, "--", "mpiexec.mpich", "-n", "2", *waits))
    return found


def measure(native: NativeFiles, folder: Path) -> Figures:
    """One step on two nodes; the error is the worst of power and energy, in all and of each node."""
    if shutil.which("prometheus") is None:
        raise RuntimeError("no prometheus here (package prometheus)")
    errors: dict[str, float] = {}
    with hosts(NAMES, folder) as nodes, watched(nodes, native, folder) as server:
        running = jobs(nodes, native, folder)
        deadline = time.monotonic() + END_S
        while server.number("count(count by (instance, host, uuid) (powerccl_gpu_power_watts))") < GPUS:
            if time.monotonic() > deadline:
                raise NetworksError(f"not all GPUs are in Prometheus within {END_S:.0f} s: see the .out files")
            time.sleep(0.5)
        time.sleep(WINDOW_S + 2)
        shift_s = time.time() - time.monotonic()
        begin_s = time.monotonic()
        time.sleep(WATCHED_S)
        end_s = time.monotonic()
        (run,) = (folder / "runs").glob("*two-nodes*")
        ends = {"start": begin_s + shift_s, "end": end_s + shift_s}
        raw = {host: watts(gpus, begin_s, end_s) for host, gpus in counters(run).items()}
        (power,) = {text for title, text in panels() if title == "Power" and text.startswith("sum(")}
        shown = {"both": server.values(power, **ends)}
        for node in nodes:
            own = power.replace('instance=~".*"', f'instance="{node.address}:19487"')
            shown[node.name] = server.values(own, **ends)
        for name, truth in {"both": sum(raw.values()), **raw}.items():
            told = float(shown[name].mean()) if len(shown[name]) else 0.0
            errors[f"power, {name}: {told:.1f} W of {truth:.1f} W"] = abs(told / truth - 1) * 100
        counted = server.number(dict(panels())["Jobs"])
        errors[f"jobs: {counted:.0f} of 2"] = abs(counted / 2 - 1) * 100
        asked = [each for each in panels() if RAPL.exists() or "cpu_power" not in each[1]]
        silent = [f"{title}: {text}" for title, text in asked if not server.ask(text, **ends, step=1)]
        codes = [process.wait(END_S) for process in running]
        time.sleep(3 * SCRAPED_S)
        joules = server.number("sum(powerccl_gpu_energy_joules_total)")
        gained = sum(float(each[-1] - each[0]) for gpus in counters(run).values() for _, each in gpus)
        errors[f"energy: {joules:.1f} J of {gained:.1f} J"] = abs(joules / gained - 1) * 100
    if any(codes):
        raise RuntimeError(f"exit codes {codes}: see the .out files")
    for text in silent:
        fault(f"no answer: {text}")
    for text, error in errors.items():
        print(f"{error:6.3f} %  {text}", file=sys.stderr)
        if error > 1:
            fault(text)
    return {
        "accounts.prometheus.error_pct": one(round(max(errors.values()), 3), "%", len(errors)),
        "accounts.prometheus.silent": count(len(silent), len(asked)),
    }
