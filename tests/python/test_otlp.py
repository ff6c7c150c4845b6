# SPDX-License-Identifier: Apache-2.0
"""`powerccl export --otlp`: what a collector receives, decoded from protobuf, beside what Prometheus gets."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from synthetic import MS, TraceWriter, training_run, uuid, write_info
from test_export import collector_of, scraped, value

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from powerccl.errors import PowercclError
from powerccl.live.metrics import METRICS, as_text
from powerccl.live.otlp import HARDWARE, Push, endpoint, otlp_name

DOCS = Path(__file__).parents[2] / "docs/reference/otlp.md"


class Receiver(ThreadingHTTPServer):
    """A collector: it decodes what is posted to it, and answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Posted)
        self.status = 200
        self.posts: list[tuple[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Posted(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/x-protobuf"
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.posts.append((self.path, ExportMetricsServiceRequest.FromString(body)))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what fails."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def texts(attributes: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes}


def received(post: Any) -> dict[str, Any]:
    """Its metrics by name; of one resource and scope."""
    (resource,) = post.resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "powerccl"
    metrics = {each.name: each for each in scope.metrics}
    assert len(metrics) == len(scope.metrics), "a name twice"
    return metrics


def test_a_collector_receives_what_prometheus_does(receiver: Receiver, tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", ranks=2, iterations=3)
    node, collector = collector_of(folder)
    push = Push(receiver.url, collector.collect, node.host)
    push()
    push()
    samples = scraped(as_text(collector))
    (path, first), (_, second) = receiver.posts
    assert path == "/v1/metrics"
    about = texts(first.resource_metrics[0].resource.attributes)
    assert (about["service.name"], about["host.name"]) == ("powerccl", node.host)
    metrics = received(first)

    energy = metrics["hw.energy"]
    assert (energy.unit, energy.sum.is_monotonic, energy.sum.aggregation_temporality) == ("J", True, 2)
    for point in energy.sum.data_points:
        own = texts(point.attributes)
        assert own["hw.type"] == "gpu" and own["hw.id"] in (uuid(0), uuid(1)) and own["hw.name"] == f"GPU {own['gpu']}"
        joules = value(samples, "powerccl_gpu_energy_joules_total", uuid=own["hw.id"])
        assert point.as_double == joules > 0
        assert point.start_time_unix_nano == 0, "this run does not say when it began"
    assert len(energy.sum.data_points) == 2
    power = metrics["hw.power"]
    assert power.unit == "W" and power.WhichOneof("data") == "gauge"
    gpus = {texts(point.attributes)["hw.id"] for point in power.gauge.data_points}
    assert gpus >= {texts(point.attributes)["hw.id"] for point in energy.sum.data_points}

    calls = metrics["powerccl.collectives"].sum.data_points
    assert [point.as_double for point in calls] == [9, 9]
    assert metrics["powerccl.collective_seconds"].unit == "s"
    assert texts(metrics["powerccl.job_info"].gauge.data_points[0].attributes)["run"] == str(folder)
    count = sum(len(getattr(each, each.WhichOneof("data")).data_points) for each in metrics.values())
    assert count == len(samples)
    assert len(received(second)) == len(metrics)


def starts_of(receiver: Receiver) -> list[set[int]]:
    """Starts of all counters of the run, push by push."""
    pushes = []
    for _, post in receiver.posts:
        points = [point for metric in received(post).values() for point in metric.sum.data_points]
        assert points and all(point.start_time_unix_nano <= point.time_unix_nano for point in points)
        pushes.append({point.start_time_unix_nano for point in points if "run" in texts(point.attributes)})
    return pushes


@pytest.mark.parametrize("ended", [False, True])
def test_counters_begin_with_the_run_however_late_an_exporter_is(
    receiver: Receiver, tmp_path: Path, ended: bool
) -> None:
    """Nor does it matter on which host it runs: `elapsed` is known on the launcher's alone while the run lasts."""
    folder, end_ns = training_run(tmp_path / "run"), 1_800 * MS
    write_info(folder, end_ns if ended else 0, None, started_at="2026-03-01T12:00:00+0100", host="elsewhere")
    for _ in range(2):
        node, collector = collector_of(folder)
        push = Push(receiver.url, collector.collect, node.host)
        push()
        write_info(folder, end_ns, started_at="2026-03-01T12:00:00+0100", host="elsewhere")
        collector._looked_s = float("-inf")
        push()
    assert starts_of(receiver) == [{1_772_362_800 * 10**9}] * 4


def test_the_start_of_a_counter_stays_whatever_is_read_later(receiver: Receiver, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank, begun_s in enumerate((1_700_000_007, 1_700_000_005)):
        trace = TraceWriter(rank, 2, start_realtime_ns=begun_s * 10**9)
        trace.call(1, 10 * MS, 1 << 20)
        trace.write(folder)
    node, collector = collector_of(folder)
    push = Push(receiver.url, collector.collect, node.host)
    push()
    write_info(folder, 100 * MS, started_at="2020-01-01T00:00:00+0000")
    collector._looked_s = float("-inf")
    push()
    assert starts_of(receiver) == [{1_700_000_005 * 10**9}] * 2


def test_no_counter_begins_after_its_points(receiver: Receiver, tmp_path: Path) -> None:
    """A host whose clock is ahead wrote run.json."""
    folder = training_run(tmp_path / "run")
    write_info(folder, 1_800 * MS, started_at="2099-01-01T00:00:00+0000")
    node, collector = collector_of(folder)
    push = Push(receiver.url, collector.collect, node.host)
    push()
    push()
    (first,), (second,) = starts_of(receiver)
    assert first == second > 0


def test_a_collector_that_takes_nothing_is_named(receiver: Receiver, tmp_path: Path) -> None:
    node, collector = collector_of(training_run(tmp_path / "run"))
    receiver.status = 400
    with pytest.raises(PowercclError, match=r"/v1/metrics took no metrics: .*400"):
        Push(receiver.url, collector.collect, node.host)()


@pytest.mark.parametrize(
    ("url", "posted"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("http://collector:4318/", "http://collector:4318/v1/metrics"),
        ("https://x.example/otlp/v1/metrics", "https://x.example/otlp/v1/metrics"),
        ("collector:4318", ""),
        ("http://", ""),
        ("grpc://collector:4317", ""),
    ],
)
def test_where_it_is_posted(url: str, posted: str) -> None:
    if posted:
        assert endpoint(url) == posted
        return
    with pytest.raises(PowercclError, match="not an address of HTTP"):
        endpoint(url)


def test_the_command_pushes(receiver: Receiver, tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    command = [sys.executable, "-m", "powerccl", "export", str(folder), "--otlp", receiver.url]
    done = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "hw.energy" in received(receiver.posts[0][1])
    both = subprocess.run([*command, "--listen", "0"], capture_output=True, text=True, timeout=60)
    assert both.returncode == 2 and "one of them" in both.stderr


def test_names_of_the_page() -> None:
    page = DOCS.read_text()
    names = {name for name, *_ in METRICS}
    assert names >= HARDWARE.keys()
    for name in HARDWARE:
        shown = f"{name}_total" if name.endswith("joules") else name
        assert f"| `{otlp_name(name)}` |" in page and f"`{shown}`" in page
    others = names - HARDWARE.keys()
    assert len({otlp_name(name) for name in others}) == len(others)
