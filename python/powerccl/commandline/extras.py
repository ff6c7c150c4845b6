# SPDX-License-Identifier: Apache-2.0
"""What is installed. Recording needs click and msgspec alone, other verbs the extras of pyproject.toml."""

from __future__ import annotations

EXTRAS = {
    **dict.fromkeys(("jinja2", "numpy", "perfetto", "plotly", "polars", "rich", "scipy", "threadpoolctl"), "report"),
    **dict.fromkeys(("prometheus_client", "pynvml", "textual"), "live"),
    "optuna": "tune",
    **dict.fromkeys(("duckdb", "fsspec"), "fleet"),
    "s3fs": "s3",
    "opentelemetry": "otlp",
}
OF_VERBS = {"tune": "tune", "top": "live", "export": "live", "index": "fleet", "fleet": "fleet"}


def extra_of(error: ModuleNotFoundError) -> str | None:
    """Which extra brings the package that is missing; None: it is none of an extra."""
    return EXTRAS.get((error.name or "").partition(".")[0])


def not_installed(error: ModuleNotFoundError, verb: str = "") -> tuple[str, str]:
    """A sentence on a missing package of an extra, and what to do. An extra of the verb brings what all of it needs."""
    of_package = extra_of(error)
    extra = of_package if of_package == "otlp" else OF_VERBS.get(verb) or of_package
    hint = f"pip install 'powerccl[{extra}]', or powerccl[all] for all verbs"
    return f"this needs {error.name}, which is not installed", hint
