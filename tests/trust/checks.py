# SPDX-License-Identifier: Apache-2.0
"""Checkers of output: figures that cannot be, and parts that exceed their whole.

Each returns what is wrong, a line each; nothing: all is sound. They know JSON's fields by name, and text by its units.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

ROUNDING = 1e-6  # of the whole: sums of doubles in another order
SECONDS = 2e-6  # clocks of host and GPU are matched to a microsecond or two

# Changes and differences, which may be below zero. All other figures are amounts.
SIGNED = re.compile(
    r"saved|slowdown|change|difference|delta|cost|behind|_error|rank$|root|peer|exit_code|code|unexplained|low$|score"
)
AMOUNT = re.compile(
    r"(_s|_us|_ns|_ms|_bytes|_mhz|_gbs|_w|_mw|_c|_ipc)$|joules|watts|seconds|bytes|calls|kernels|count|operations"
    r"|iterations|energy|power|bandwidth|time"
)
SHARE = re.compile(r"(^|_)(share|exposed|communication|idle|matched|last|low_clock)_pct$")
RATIO = re.compile(r"(_share|_ratio|^share)$")
POWER_LIMIT_W = 1500.0  # of one GPU: a GB300 may draw 1,400, those emulated and recorded here at most 700

UNIT = r"(?:[kMGTP]?J|[mµu]J|[kM]?W|mW|s|ms|µs|us|ns|min|h|[GMT]B/s|MHz|GHz|[KMGT]iB|B|calls|ranks|GPUs)"
TEXT = {
    "exponent": re.compile(r"(?<![\w./:=#-])[+-]?\d+(?:\.\d+)?[eE][+-]?\d{1,3}(?![\w./-])"),
    "not a number": re.compile(r"(?<![\w./=-])[+-]?(?:nan|inf|infinity)(?![\w./-])", re.IGNORECASE),
    "negative amount": re.compile(rf"(?<![\w.,)\d-])[-\u2212]\d[\d.,]*\s?{UNIT}(?!\w)"),
    "no bandwidth": re.compile(r"(?<![\w.,])0(?:\.0+)?\s?GB/s"),
    "share above 100 %": re.compile(r"(?<![\w.,+±×-])(?:[1-9]\d{3,}|1(?:0[1-9]|[1-9]\d)|[2-9]\d\d)(?:\.\d+)?\s?%"),
}


def text_faults(text: str, differences: bool = False) -> list[str]:
    """Figures in a page that cannot be. With `differences` (compare, a baseline) amounts may fall and rise at will."""
    found = []
    for line in text.splitlines():
        for kind, pattern in TEXT.items():
            if differences and kind in ("negative amount", "share above 100 %"):
                continue
            found += [f"{kind}: {hit.group().strip()!r} in {line.strip()[:160]!r}" for hit in pattern.finditer(line)]
    return found


def html_text(page: str) -> str:
    """What a page shows: no script, style or picture, whose coordinates are no figures."""
    page = re.sub(r"(?is)<(script|style|svg)\b.*?</\1>", " ", page)
    page = re.sub(r"(?s)<[^>]*>", "\n", page)
    for name, sign in (("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&quot;", '"'), ("&amp;", "&")):
        page = page.replace(name, sign)
    return page


def strict_json(text: str) -> Any:
    """JSON as RFC 8259 has it: no NaN, no Infinity, no key twice.

    Raises:
        ValueError: it is none.
    """

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ValueError("a key stands twice in one object")
        return found

    return json.loads(text, parse_constant=refuse, object_pairs_hook=pairs)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, str, float]]:
    """Path, key and value of every number in a document; elements of a list have their list's key."""

    def walk(item: Any, where: str, key: str) -> Iterator[tuple[str, str, float]]:
        if isinstance(item, bool):
            return
        if isinstance(item, (int, float)):
            yield where, key, float(item)
        elif isinstance(item, dict):
            for name, each in item.items():
                yield from walk(each, f"{where}.{name}", str(name) if name not in ("value", "high") else key)
        elif isinstance(item, list):
            for at, each in enumerate(item):
                yield from walk(each, f"{where}[{at}]", key)

    return walk(value, path, "")


def number_faults(document: Any, link_gbs: float | None = None) -> list[str]:
    """Numbers of a document that cannot be."""
    found = []
    for path, key, value in numbers(document):
        if not math.isfinite(value):
            found.append(f"{path}: {value} is not finite")
        elif SHARE.search(key) and not -ROUNDING <= value <= 100 + 1e-4:
            found.append(f"{path}: a share of {value:g} %")
        elif RATIO.search(key) and not -ROUNDING <= value <= 1 + 1e-6:
            found.append(f"{path}: a share of {value:g}")
        elif AMOUNT.search(key) and value < 0 and not SIGNED.search(key):
            found.append(f"{path}: {value:g} is below zero")
        elif key.endswith("_gbs") and key != "busbw_gbs" and value == 0:
            found.append(f"{path}: a bandwidth of 0")
        elif link_gbs and key.endswith("_gbs") and value > link_gbs * 1.02:
            found.append(f"{path}: {value:g} GB/s over a link of {link_gbs:g}")
        elif re.search(r"saved_pct", path) and value > 100:
            found.append(f"{path}: {value:g} % of the energy saved")
        elif re.search(r"slowdown_pct", path) and value < -100:
            found.append(f"{path}: {value:g} % slower is less than no time")
    for path, item in _objects(document):
        low, high = item.get("low"), item.get("high")
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
            found.append(f"{path}: an interval from {low:g} to {high:g}")
    return found


def _objects(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
        for name, each in value.items():
            yield from _objects(each, f"{path}.{name}")
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from _objects(each, f"{path}[{at}]")


def _above(what: str, part: float | None, whole: float | None, slack: float = 0.0) -> list[str]:
    """A part that exceeds its whole; one of them not known: nothing to say."""
    if part is None or whole is None or part <= whole + abs(whole) * ROUNDING + slack:
        return []
    return [f"{what}: {part:.9g} of {whole:.9g}"]


def _sum(values: Sequence[float | None]) -> float:
    return sum(each for each in values if each is not None)


def _time_parts(where: str, row: dict[str, Any]) -> list[str]:
    """Parts of a span: a rank's, or an iteration's."""
    found = []
    get = row.get
    for part, whole in (
        ("communication_s", "span_s"),
        ("waiting_s", "communication_s"),
        ("transfer_s", "communication_s"),
        ("exposed_s", "communication_s"),
        ("overlapped_s", "communication_s"),
        ("exposed_waiting_s", "exposed_s"),
        ("exposed_waiting_s", "waiting_s"),
        ("computation_s", "span_s"),
        ("idle_s", "span_s"),
        ("rest_s", "span_s"),
    ):
        found += _above(f"{where}: {part} above {whole}", get(part), get(whole), SECONDS)
    for parts, whole in (
        (("waiting_s", "transfer_s"), "communication_s"),
        (("exposed_s", "overlapped_s"), "communication_s"),
        (("communication_s", "stalled_s", "rest_s"), "span_s"),
    ):
        if all(get(each) is not None for each in parts):
            found += _above(f"{where}: {' + '.join(parts)} above {whole}", _sum([get(each) for each in parts]),
                            get(whole), SECONDS)  # fmt: skip
    return found


def summary_parts(summary: dict[str, Any]) -> list[str]:
    """Parts above their whole in a summary.json."""
    energy, talk = summary["energy"], summary["communication"]
    wall_s = summary.get("wall_s")
    gpus, patterns = summary.get("gpus", []), summary.get("patterns", [])
    found = _above("communication's joules above the run's", talk.get("joules"), energy.get("joules"))
    found += _above("communication's time above the run's", talk.get("time_s"), wall_s, SECONDS)
    found += _above("covered time above the run's", energy.get("covered_s"), wall_s, SECONDS)
    found += _above("GPUs' joules above the run's", _sum([each.get("joules") for each in gpus]), energy.get("joules"))
    found += _above(
        "GPUs' communication joules above communication's",
        _sum([each.get("communication_joules") for each in gpus]),
        talk.get("joules"),
    )
    for gpu in gpus:
        name = f"GPU {gpu['gpu']}"
        found += _above(f"{name}: communication's joules", gpu.get("communication_joules"), gpu.get("joules"))
        found += _above(f"{name}: communication's time", gpu.get("communication_s"), wall_s, SECONDS)
        for key in ("average_watts", "communication_watts", "other_watts"):
            found += _above(f"{name}: {key} above what a GPU can draw", gpu.get(key), POWER_LIMIT_W)
    # A captured call is timed at each replay.
    calls = None if talk.get("captured_calls") else talk.get("calls")
    found += _above("timed calls above all calls", talk.get("timed_calls"), calls)
    found += _above("untimed calls above all calls", talk.get("untimed_calls"), calls)
    found += _above("classes' calls above all calls", _sum([each.get("calls") for each in patterns]), calls)
    for row in patterns:
        name = f"{row['pattern']} from {row['size_class_bytes']}"
        replayed = bool(row.get("captured_calls"))
        found += _above(f"{name}: timed above calls", row.get("timed"), None if replayed else row.get("calls"))
        found += _above(f"{name}: time above the run's", row.get("time_s"), wall_s, SECONDS)
    if (outcome := summary.get("policy_outcome")) is not None:
        for name, row in [
            ("policy", outcome),
            *((f"policy of rank {each['rank']}", each) for each in outcome["ranks"]),
        ]:
            found += _above(f"{name}: managed above all iterations", row.get("managed"), row.get("iterations"))
    if (mpi := summary.get("mpi")) is not None:
        found += mpi_parts(mpi)
    return found


def mpi_parts(mpi: dict[str, Any]) -> list[str]:
    """Parts above their whole in what MPI came to."""
    found = []
    ranks = [(f"MPI rank {each['rank']}", each) for each in mpi["by_rank"]]
    rows = [(f"MPI {each['function']} {each['size_class_bytes']}", each) for each in mpi["rows"]]
    for name, row in [("MPI", mpi), *ranks, *rows]:
        found += _above(
            f"{name}: waiting and transfer", _sum([row["wait_s"], row["transfer_s"]]), row["time_s"], SECONDS
        )
        found += _above(f"{name}: sleep above waiting", row["sleep_s"], row["wait_s"], SECONDS)
        found += _above(f"{name}: execution above its span", row.get("execution_s"), row.get("span_s"), SECONDS)
    for name, group in (("ranks'", ranks), ("functions'", rows)):
        found += _above(f"MPI: {name} time above all", _sum([each["time_s"] for _, each in group]), mpi["time_s"], 1e-5)
    return found


def report_parts(report: dict[str, Any]) -> list[str]:
    """Parts above their whole in `report --json`."""
    summary = report["summary"]
    found = summary_parts(summary)
    wall_s = summary.get("wall_s")
    for row in report.get("ranks", []):
        name = f"rank {row['rank']}"
        found += _time_parts(name, row)
        found += _above(f"{name}: span above the run's", row.get("span_s"), wall_s, 1e-3)
        if row.get("per_iteration"):
            found += _time_parts(f"{name}, an iteration", row["per_iteration"])
    talk_s = {gpu["gpu"]: gpu.get("communication_s") for gpu in summary.get("gpus", []) if len(gpu["ranks"]) == 1}
    for row in report.get("ranks", []):
        found += _above(f"rank {row['rank']}: communication above its GPU's", row.get("communication_s"),
                        talk_s.get(row["gpu"]), 1e-5)  # fmt: skip
    for host in report.get("iterations", []):
        rows = host.get("rows", [])
        for row in rows:
            found += _time_parts(f"iteration {row.get('first')}", row)
        joules = _sum([(row.get("joules") or 0) * row.get("count", 1) for row in rows])
        hosts = len(report.get("iterations", []))
        if hosts == 1:
            found += _above("iterations' joules above the run's", joules, summary["energy"].get("joules"))
        span_s = _sum([row["span_s"] * row.get("count", 1) for row in rows])
        found += _above("iterations' time above the run's", span_s, wall_s, 1e-3)
    for row in (report.get("peers") or {}).get("ranks", []):
        found += _above(f"rank {row['rank']}: came last in more than all", row.get("last"), row.get("collectives"))
    found += attributed_parts(report.get("energy") or {}, summary)
    return found


def attributed_parts(energy: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    """Parts above their whole in the energy by regression."""
    found = []
    whole = energy.get("joules_total")
    found += _above("energy by cause above the run's", whole, summary["energy"].get("joules"))
    for part in ("communication", "computation", "idle"):
        found += _above(f"energy by cause: {part}", energy.get(f"joules_{part}"), whole)
    kinds = _sum([each.get("joules") for each in energy.get("kinds", [])])
    found += _above("classes' energy above communication's", kinds, energy.get("joules_communication"))
    return found


def top_parts(top: dict[str, Any]) -> list[str]:
    """Parts above their whole in `top --json`."""
    found = []
    for job in top["jobs"]:
        gpus = job.get("gpus") or []
        found += _above(f"{job['run']}: GPUs' power above the job's", _sum([each.get("power_w") for each in gpus]),
                        job.get("power_w"), 1.0)  # fmt: skip
        found += _above(f"{job['run']}: GPUs' joules above the job's", _sum([each.get("joules") for each in gpus]),
                        job.get("joules"), 1.0)  # fmt: skip
    return found


def whatif_faults(page: dict[str, Any]) -> list[str]:
    """What a prediction may not say."""
    found = _above("exposed above all of the time", page.get("exposed_pct"), 100.0, 1e-3)
    for row in page.get("policies", []):
        found += _above(
            f"{row['policy']}: watts saved above watts drawn", row.get("saved_watts"), page["simulated_watts"]
        )
        for name in ("saved_pct", "slowdown_pct"):
            of = row[name]
            if not of["low"] <= of["value"] <= of["high"]:
                found.append(f"{row['policy']}: {name} {of['value']} is not in its range {of['low']} to {of['high']}")
        # The lowest clocks are a fifth of the highest: no job gets five times slower by a clock.
        saved, slow = row["saved_pct"]["value"], row["slowdown_pct"]["value"]
        if slow > 500 or not -500 <= saved <= 100:
            found.append(f"{row['policy']}: {slow} % slower, {saved} % saved")
    return found


def report_times(report: dict[str, Any]) -> list[str]:
    """Times in `report --json` that are shorter than what lies in them."""
    found = []
    for host in report.get("iterations", []):
        spans = [row for row in host.get("rows", []) if row.get("span_s") is not None]
        if any((row.get("span_s") or 0) <= 0 for row in spans):
            found.append("an iteration of no time")
        # By the medians: one call may wait for ranks that start late, and lie in front of all iterations.
        gpus, number = max(len(report["summary"]["gpus"]), 1), host.get("found")
        rows = report["summary"]["patterns"]
        talk_s = sum(row["calls"] * (row.get("median_us") or 0) / 1e6 for row in rows) / gpus
        of_rank = (report["summary"]["communication"].get("calls") or 0) / gpus
        most = number and number * (host.get("operations") or 0) >= 0.9 * of_rank
        if talk_s and most and host.get("mean_s") is not None and host["mean_s"] * number < 0.5 * talk_s:
            found.append(f"{number} iterations of {host['mean_s']:g} s hold {talk_s:g} s of communication")
    return found


def metric_faults(text: str) -> list[str]:
    """Values in the text exposition format that cannot be."""
    found = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[-1]
        try:
            number = float(value)
        except ValueError:
            found.append(f"{line[:160]}: no number")
            continue
        if not math.isfinite(number):
            found.append(f"{line[:160]}: not finite")
        elif number < 0 and "slowdown" not in name and "saved" not in name and "exit_code" not in name:
            found.append(f"{line[:160]}: below zero")
        elif name.endswith("_ratio") and number > 1 + 1e-6 and "slowdown" not in name:
            found.append(f"{line[:160]}: a share above 1")
    return found


def table_faults(text: str) -> list[str]:
    """Cells of a CSV table that cannot be, by their column's name."""
    rows = list(csv.reader(text.splitlines()))
    found = []
    for row in rows[1:]:
        for name, cell in zip(rows[0], row, strict=False):
            try:
                value = float(cell)
            except ValueError:
                continue
            found += [f"{name}: {each.lstrip(': ')}" for each in number_faults({name: value})]
    return found
