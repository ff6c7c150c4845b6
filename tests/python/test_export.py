# SPDX-License-Identifier: Apache-2.0
"""`powerccl export`: counters that are right and only rise, and a dashboard that asks for what there is."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from lease_daemon import UUIDS, FakeDaemon
from prometheus_client.parser import text_string_to_metric_families
from synthetic import MS, TraceWriter, mpi_run, mpi_trace, training_run, uuid, write_info, write_power

from powerccl.commands import cli
from powerccl.errors import PowercclError
from powerccl.live.exporter import parse_listen, write_textfile
from powerccl.live.labels import LONGEST_LABEL, run_label
from powerccl.live.metrics import METRICS, JobCollector, as_text, exported_names
from powerccl.live.node import LiveNode

DASHBOARD = Path(__file__).parents[2] / "packaging/prometheus/grafana-powerccl.json"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def collector_of(*folders: Path) -> tuple[LiveNode, JobCollector]:
    node = LiveNode(folders, totals=True)
    return node, JobCollector(node.look, lambda: node.counts, named=True)


def scraped(text: bytes) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    values = [number for (of, own), number in samples.items() if of == name and wanted <= set(own)]
    assert len(values) == 1, (name, labels, values)
    return values[0]


def test_counts_are_the_truth(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", ranks=2, iterations=3)
    _, collector = collector_of(folder)
    samples = scraped(as_text(collector))
    for rank in ("0", "1"):
        own = {"run": str(folder), "rank": rank, "pattern": "all_reduce"}
        assert value(samples, "powerccl_collectives_total", **own) == 9
        assert value(samples, "powerccl_timed_collectives_total", **own) == 9
        assert value(samples, "powerccl_collective_bytes_total", **own) == 3 * (2 * 65_536_000 + 609_222_656)
        assert value(samples, "powerccl_collective_seconds_total", **own) == pytest.approx(3 * 0.450)
        assert value(samples, "powerccl_trace_dropped_records_total", run=str(folder), rank=rank) == 0
    energies = [number for (name, _), number in samples.items() if name == "powerccl_gpu_energy_joules_total"]
    assert sum(energies) == pytest.approx(2 * 3 * (0.45 * 45 + 0.15 * 70), rel=0.02)
    assert value(samples, "powerccl_gpu_sm_clock_hertz", gpu="0") in (1_100_000_000, 1_590_000_000)
    assert value(samples, "powerccl_job_running", run=str(folder)) == 0
    assert value(samples, "powerccl_job_exit_code", run=str(folder)) == 0


def test_counters_only_rise_while_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.live.metrics.LEAST_BETWEEN_S", 0.0)
    write_info(tmp_path, 0, exit_code=None)
    trace = TraceWriter(0, 1)
    trace.comm(MS)
    trace.write(tmp_path)
    node, collector = collector_of(tmp_path)
    before: Samples = {}
    for number in range(1, 6):
        trace.call(number, number * MS, 1 << 20, "all_gather", flags=0x40)
        trace.kernel(number, number * MS, number * MS + 400_000, 1 << 20, "all_gather")
        trace.clock(number, number * MS, 900, result=[0, 7, -100, 0, 0][number - 1], flags=8 if number == 5 else 0)
        trace.write(tmp_path)
        samples = scraped(as_text(collector))
        for key, old in before.items():
            if key[0].endswith("_total"):
                assert samples[key] >= old, key
        before = samples
    assert value(before, "powerccl_collectives_total", pattern="all_gather") == 5
    assert value(before, "powerccl_collective_seconds_total") == pytest.approx(5 * 0.0004)
    results = {
        dict(own)["result"]: number for (of, own), number in before.items() if of == "powerccl_clock_requests_total"
    }
    assert results == {"done": 2, "failed": 1, "no_lease": 1, "dry": 1}
    node.close()


def test_graphs_and_unknown_patterns(tmp_path: Path) -> None:
    trace = TraceWriter(0, 1)
    trace.call(1, MS, 64, flags=0x1)
    trace.call(2, MS, 64)
    trace.kernel(3, MS, 2 * MS, 64, pattern="of a later version")
    trace.write(tmp_path)
    samples = scraped(as_text(collector_of(tmp_path)[1]))
    assert value(samples, "powerccl_captured_collectives_total", pattern="all_reduce") == 1
    assert value(samples, "powerccl_collectives_total", pattern="all_reduce") == 1
    assert value(samples, "powerccl_timed_collectives_total", pattern="unknown") == 1


def test_mpi(tmp_path: Path) -> None:
    mpi_run(tmp_path / "run")
    samples = scraped(as_text(collector_of(tmp_path / "run")[1]))
    assert value(samples, "powerccl_mpi_calls_total", rank="0") == 3010
    assert value(samples, "powerccl_mpi_wait_seconds_total", rank="0") == pytest.approx(0.610)
    assert value(samples, "powerccl_mpi_sleep_seconds_total", rank="0") == pytest.approx(0.540)
    assert value(samples, "powerccl_mpi_function_calls_total", host="node1", function="MPI_Sendrecv") == 4000
    assert value(samples, "powerccl_mpi_cpu_seconds_total", rank="1") == pytest.approx(2.0)


def test_a_series_is_the_same_for_its_life(tmp_path: Path) -> None:
    """Another job with a folder of the same name comes and goes: no label changes, no series is of both."""
    first, second = (training_run(tmp_path / name / "run") for name in ("a", "b"))
    alone = {key for key in scraped(as_text(collector_of(first)[1])) if dict(key[1]).get("run")}
    both = {key for key in scraped(as_text(collector_of(first, second)[1])) if dict(key[1]).get("run")}
    assert alone < both
    assert {dict(labels)["run"] for _, labels in both} == {str(first), str(second)}


def test_a_long_path_is_cut_and_still_its_own() -> None:
    long = "/x" * 300
    assert len({run_label(long + end) for end in ("a", "b")} | {run_label("/y" * 300 + "a")}) == 3
    assert max(len(run_label(long + end)) for end in ("a", "b")) <= LONGEST_LABEL


def test_labels_are_bounded(tmp_path: Path) -> None:
    """Sizes, communicators and calls make no series: ten times the calls of other sizes, as many series."""
    counts = []
    for calls in (10, 1000):
        trace = TraceWriter(0, 1)
        for number in range(calls):
            trace.comm(MS, comm=number)
            trace.call(number + 1, number * MS, number + 1)
        folder = tmp_path / str(calls)
        folder.mkdir()
        trace.write(folder)
        counts.append(len(scraped(as_text(collector_of(folder)[1]))))
    assert counts[0] == counts[1]


def test_damaged_and_empty_folders_are_counted_as_problems(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    (folder / "rank-0.trace").write_bytes(b"junk" * 2000)
    empty = tmp_path / "empty"
    empty.mkdir()
    samples = scraped(as_text(collector_of(folder, empty)[1]))
    assert value(samples, "powerccl_exporter_problems") >= 2
    assert value(samples, "powerccl_collectives_total", rank="1") == 9


def test_metrics_of_the_daemon(busy: FakeDaemon, tmp_path: Path) -> None:
    samples = scraped(CliRunner().invoke(cli, ["export", "--once"]).stdout_bytes)
    assert [value(samples, "powerccl_lease_held", device=uuid) for uuid in UUIDS] == [1, 1, 0, 0]
    assert value(samples, "powerccl_lease_clock_max_hertz", device=UUIDS[1]) == 1200e6
    assert value(samples, "powerccl_lease_clock_max_hertz", device=UUIDS[0]) == 345e6
    assert value(samples, "powerccl_lease_restore_pending", device=UUIDS[2]) == 1
    assert value(samples, "powerccl_lease_sessions") == 1
    assert value(samples, "powerccl_lease_grants_total") == 8
    assert value(samples, "powerccl_lease_ends_total", how="silent") == 12
    assert value(samples, "powerccl_lease_driver_seconds_total") == pytest.approx(21e-6)
    busy.flags = 0  # not an administrator: clocks of others are not told, which is no zero
    samples = scraped(CliRunner().invoke(cli, ["export", "--once"]).stdout_bytes)
    told = {dict(labels)["device"] for name, labels in samples if name == "powerccl_lease_clock_max_hertz"}
    assert told == {UUIDS[0], UUIDS[2], UUIDS[3]}
    run = training_run(tmp_path / "run")
    assert "powerccl_lease" not in CliRunner().invoke(cli, ["export", "--once", str(run)]).stdout


def test_names_follow_the_conventions() -> None:
    units = ("seconds", "joules", "bytes", "watts", "hertz", "celsius", "ratio", "info")
    for name, kind, labels, text in METRICS:
        assert re.fullmatch(r"powerccl_[a-z_]+", name)
        assert not name.endswith("_total"), "the client adds it"
        assert text.endswith(".") and labels == tuple(dict.fromkeys(labels))
        for wrong in ("_ms", "_us", "_ns", "_mhz", "_mw", "_percent", "_pct"):
            assert not name.endswith(wrong)
        if any(word in name.split("_") for word in ("energy", "power", "elapsed", "age")):
            assert name.rsplit("_", 1)[1] in units
        assert kind == "info" if name.endswith("_info") else kind in ("counter", "gauge")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (package prometheus)")
def test_promtool_has_nothing_against_it(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    mpi_run(folder)
    text = as_text(collector_of(folder)[1])
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_the_dashboard_asks_for_what_is_exported() -> None:
    document = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in document["panels"] for target in panel.get("targets", [])]
    expressions += [variable["definition"] for variable in document["templating"]["list"] if "definition" in variable]
    named = {name for text in expressions for name in re.findall(r"\bpowerccl_\w+", text)}
    assert named <= exported_names(), named - exported_names()
    labels = {name: set(own) for name, _, own, _ in METRICS}
    for text in expressions:
        for metric, chosen in re.findall(r"\b(powerccl_\w+)\{([^}]*)\}", text):
            known = labels[metric.removesuffix("_total")] | {"instance", "job"}
            assert set(re.findall(r"(\w+)=~?", chosen)) <= known, text
    assert len(named) > 15
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))


def test_where_to_listen() -> None:
    assert parse_listen("") == ("127.0.0.1", 19487)
    assert parse_listen("9999") == ("127.0.0.1", 9999)
    assert parse_listen("0.0.0.0:9999") == ("0.0.0.0", 9999)
    assert parse_listen("[::1]:80") == ("::1", 80)
    for wrong in ("host", "1:2:3", "70000", "127.0.0.1:"):
        with pytest.raises(PowercclError):
            parse_listen(wrong)


def test_the_file_is_whole_readable_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "powerccl-jobs.prom"
    file.write_text("old")
    write_textfile(file, b"new\n")
    assert file.read_text() == "new\n"
    assert file.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(PowercclError, match="cannot write"):
        write_textfile(tmp_path / "none" / "x.prom", b"")


def test_command_line(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    runner = CliRunner()
    done = runner.invoke(cli, ["export", "--once", str(folder)])
    assert done.exit_code == 0, done.output
    assert value(scraped(done.stdout.encode()), "powerccl_collectives_total", rank="0") == 9
    file = tmp_path / "x.prom"
    done = runner.invoke(cli, ["export", "--once", "--textfile", str(file), str(folder)])
    assert done.exit_code == 0 and not done.stdout
    assert value(scraped(file.read_bytes()), "powerccl_collectives_total", rank="1") == 9
    for wrong in (["--textfile", "x.txt"], ["--listen", "1", "--textfile", "x.prom"], ["--listen", "1", "--once"]):
        assert runner.invoke(cli, ["export", *wrong]).exit_code == 2


def test_serving_and_stopping(tmp_path: Path) -> None:
    """A port of the system's choice, the address it says, metrics, and an end by SIGTERM."""
    folder = training_run(tmp_path / "run")
    child = subprocess.Popen(
        [sys.executable, "-m", "powerccl", "export", str(folder), "--listen", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stderr is not None
        said = child.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", said)
        assert found, said
        with urllib.request.urlopen(found[0], timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert value(scraped(answer.read()), "powerccl_collectives_total", rank="0") == 9
    finally:
        child.send_signal(signal.SIGTERM)
    assert child.wait(20) == 0


def test_textfile_is_written_again_and_taken_away_at_the_end(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    file = tmp_path / "x.prom"
    command = [sys.executable, "-m", "powerccl", "export", str(folder), "--textfile", str(file), "--interval", "1"]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        seen: set[int] = set()
        while len(seen) < 2 and time.monotonic() < deadline:
            if file.exists():
                seen.add(file.stat().st_mtime_ns)
                scraped(file.read_bytes())
            time.sleep(0.05)
        assert len(seen) == 2
    finally:
        child.send_signal(signal.SIGTERM)
    assert child.wait(20) == 0
    assert not file.exists()


BOOTS = {"node1": "a" * 32, "node2": "b" * 32, "pod-7": "b" * 32}
JOULES, WATTS, CALLS = "powerccl_gpu_energy_joules_total", "powerccl_gpu_power_watts", "powerccl_collectives_total"


def shared_run(folder: Path) -> Path:
    """A run of two machines, each with a rank and a GPU; on the second the rank is in a container."""
    folder.mkdir()
    for rank, host in enumerate(("node1", "pod-7")):
        trace = TraceWriter(rank, 2, host=host, boot_id=BOOTS[host])
        trace.comm(MS)
        for call in range(1, 11 + rank):
            trace.call(call, call * MS, 1 << 20)
        trace.write(folder)
        mpi = mpi_trace(rank, 2, host=host, boot_id=BOOTS[host])
        mpi.mpi_total(1000 * MS, "Allreduce", 5, 40 * MS, 0)
        mpi.mpi_total(1000 * MS, "Allreduce", 5, 40 * MS, 0, thread=10)
        mpi.write(folder, f"mpi-{rank}.trace")
        samples = write_power(folder, 2, 2000 * MS, 70.0 + 100 * rank, host=host)
        own = [line for line in samples.read_text().splitlines(True) if line[0] == "#" or uuid(1 - rank) not in line]
        samples.write_text(f"# boot_id: {BOOTS[host]}\n" + "".join(own))
    write_info(folder, 2000 * MS)
    return folder


def exported_by(host: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Samples:
    monkeypatch.setattr("powerccl.live.job.boot_id", lambda: BOOTS.get(host, "c" * 32))
    monkeypatch.setattr("powerccl.live.node.socket.gethostname", lambda: host)
    return scraped(as_text(collector_of(folder)[1]))


def summed(samples: Samples, name: str) -> float:
    return sum(number for (of, _), number in samples.items() if of == name)


def test_a_node_exports_its_own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two exporters of a shared run come to what one outside of it exports; a container is of its machine."""
    folder = shared_run(tmp_path / "run")
    first, second, outside = (exported_by(host, folder, monkeypatch) for host in ("node1", "node2", "login"))
    assert summed(first, WATTS) == pytest.approx(70, rel=0.02)
    assert summed(second, WATTS) == pytest.approx(170, rel=0.02)
    assert (summed(first, CALLS), summed(second, CALLS)) == (10, 11)
    for name in (WATTS, JOULES, CALLS, "powerccl_mpi_call_seconds_total", "powerccl_mpi_function_seconds_total"):
        assert summed(outside, name) > 0
        assert summed(first, name) + summed(second, name) == pytest.approx(summed(outside, name)), name
    assert {dict(own)["host"] for name, own in second if name == WATTS} == {"pod-7"}
    for samples in (first, second, outside):  # of the job as a whole
        assert value(samples, "powerccl_job_ranks_found") == value(samples, "powerccl_job_ranks_expected") == 2
    assert value(first, "powerccl_mpi_threads", rank="0") == 11


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (package prometheus)")
def test_the_dashboard_counts_a_watt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus' own engine answers the panels for two nodes, and for a second exporter on one of them."""
    folder = shared_run(tmp_path / "run")
    series = []
    for host, instance in (("node1", "node1:1"), ("node2", "node2:1"), ("node2", "node2:2")):
        for (name, labels), number in exported_by(host, folder, monkeypatch).items():
            number = 1 if name == "powerccl_job_running" else number
            text = ",".join(f"{key}={json.dumps(label)}" for key, label in (*labels, ("instance", instance)))
            series.append({"series": f"{name}{{{text}}}", "values": f"{number}x20"})
    panels = {panel["title"]: panel["targets"] for panel in reversed(json.loads(DASHBOARD.read_text())["panels"])
              if panel["type"] == "stat"}  # fmt: skip
    expected = {"Jobs": 1, "Power": 240, "Clocks leased": 0}
    tests = [
        {
            "expr": "round(" + panels[title][0]["expr"].replace("$run", ".*").replace("$instance", ".*") + ")",
            "eval_time": "10m",
            "exp_samples": [{"labels": "{}", "value": number}],
        }
        for title, number in expected.items()
    ]
    rules = tmp_path / "rules.yml"
    rules.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]}))
    done = subprocess.run(["promtool", "test", "rules", str(rules)], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_labels_of_a_gpu_and_its_model(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    write_info(folder, 1800 * MS, emulated="t4x8:gpus=2")
    live = scraped(as_text(collector_of(folder)[1]))
    gpus = {
        tuple(dict(own)[name] for name in ("run", "host", "gpu", "uuid")) for metric, own in live if metric == JOULES
    }
    assert gpus == {(str(folder), "node1", str(gpu), uuid(gpu)) for gpu in range(2)}
    assert value(live, "powerccl_job_info", emulated="t4x8") == 1
