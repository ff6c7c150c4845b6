# SPDX-License-Identifier: Apache-2.0
"""The exporter's metrics as OTLP over HTTP, which OpenTelemetry collectors take: the same samples as Prometheus gets.

Power, energy and utilization have the names of OpenTelemetry's conventions for hardware, as far as there are any.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family

from powerccl import __version__
from powerccl.errors import PowercclError, UsageError

SIGNAL = "/v1/metrics"
UNITS = {"seconds": "s", "bytes": "By", "joules": "J", "watts": "W", "hertz": "Hz", "celsius": "Cel", "ratio": "1"}
# Metrics that the conventions for hardware name, and the component that each is of.
HARDWARE = {
    "powerccl_gpu_energy_joules": ("hw.energy", "gpu"),
    "powerccl_gpu_power_watts": ("hw.power", "gpu"),
    "powerccl_gpu_utilization_ratio": ("hw.gpu.utilization", "gpu"),
    "powerccl_cpu_power_watts": ("hw.power", "cpu"),
}


def endpoint(url: str) -> str:
    """Where metrics are posted: a collector's address, with the path of metrics unless it has a path.

    Raises:
        PowercclError: it is no address.
    """
    match = re.fullmatch(r"(https?://[^/?#\s]+)(/[^\s]*)?", url)
    if not match:
        raise UsageError(f"--otlp {url}: not an address of HTTP", "--otlp http://localhost:4318, for instance")
    path = match[2] or ""
    return match[1] + (path if path.strip("/") else SIGNAL)


def otlp_name(name: str) -> str:
    """Of a metric that Prometheus knows by `name`, without `_total`."""
    return HARDWARE[name][0] if name in HARDWARE else name.replace("_", ".", 1)


class Push:
    """Posts the metrics of a collector. A run's counters begin when the run does; another start would mean a reset."""

    def __init__(self, url: str, families: Callable[[], Iterable[Family]], host: str) -> None:
        """`families`: the metrics now; `host`: of this exporter.

        Raises:
            PowercclError: the address is none.
        """
        self.url = endpoint(url)
        self.shown = re.sub(r"//[^/@]*@", "//", self.url).partition("?")[0]  # without what lets one in
        self._families = families
        about = {"service.name": "powerccl", "service.version": __version__, "host.name": host}
        self._resource = Resource.create(about)
        self._starts: dict[str, int] = {}  # of runs, Unix ns, as the first push had them; 0: not known
        self._reasons = _Reasons()
        self._exporter = OTLPMetricExporter(endpoint=self.url)

    def __call__(self) -> None:
        """Post them once.

        Raises:
            PowercclError: the collector did not take them.
        """
        try:
            done = self._exporter.export(self._data(list(self._families()), time.time_ns()))
        except OSError as error:  # of `requests`: exporters before 1.34 let it through
            done, self._reasons.last = MetricExportResult.FAILURE, str(error)
        if done is not MetricExportResult.SUCCESS:
            reason = (self._reasons.last or "no reason given").replace(self.url, self.shown)
            raise PowercclError(f"{self.shown} took no metrics: {reason}", "check that an OTLP collector listens there")

    def _data(self, families: list[Family], now_ns: int) -> MetricsData:
        for family in families:
            if family.name == "powerccl_job_start_time_seconds":
                for sample in family.samples:
                    # Clocks of hosts differ: no point may be older than its start.
                    self._starts.setdefault(sample.labels["run"], min(round(sample.value * 1e9), now_ns))
        by_name: dict[str, list[Family]] = {}
        for family in families:
            by_name.setdefault(otlp_name(family.name), []).append(family)
        metrics = [self._metric(name, each, now_ns) for name, each in by_name.items()]
        scope = ScopeMetrics(InstrumentationScope("powerccl", __version__), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, name: str, families: list[Family], now_ns: int) -> Metric:
        first = families[0]
        counts = first.type == "counter"
        points = [
            NumberDataPoint(
                attributes(family.name, sample.labels),
                self._starts.setdefault(sample.labels.get("run", ""), 0) if counts else 0,
                now_ns,
                sample.value,
            )
            for family in families
            for sample in family.samples
        ]
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if counts else Gauge(points)
        name = f"{name}_info" if first.type == "info" else name
        return Metric(name, first.documentation, UNITS.get(first.unit, ""), data)


def attributes(name: str, labels: dict[str, str]) -> dict[str, str]:
    """A sample's labels, and for metrics of hardware what the conventions want."""
    if name not in HARDWARE:
        return labels
    kind = HARDWARE[name][1]
    if kind == "cpu":
        return {**labels, "hw.type": "cpu", "hw.id": "packages"}
    rest = {label: text for label, text in labels.items() if label != "uuid"}
    return {**rest, "hw.type": "gpu", "hw.id": labels["uuid"], "hw.name": f"GPU {labels['gpu']}"}


class _Reasons(logging.Handler):
    """Keeps why a push failed: the SDK's exporter tells its log alone."""

    last = ""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        log = logging.getLogger("opentelemetry")
        log.addHandler(self)
        log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Take one line of the log."""
        self.last = " ".join(record.getMessage().split())[:300]
