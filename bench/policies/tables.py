# SPDX-License-Identifier: Apache-2.0
"""Figures as a person reads them: in the terminal, and as the page of the documentation."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerccl.aliases import current_policy

from .checks import all_faults, cases_in, faults_of
from .figures import ORACLES, Figure, value_of
from .kept import Rows
from .platforms import PLATFORMS
from .runs import MODEL_CASE

COLUMNS = ("auto", "phase", "job", "percall")
FAILS = "✗"
NOTHING = "–"


def _number(value: float | None, signed: bool = False) -> str:
    if value is None:
        return NOTHING
    value = 0.0 if abs(value) < 0.05 else value
    return f"{value:+.1f}" if signed else f"{value:.1f}"


def _pair(figures: Mapping[str, Figure], name: str) -> tuple[str, str] | None:
    """Energy saved and slowdown; None where the run is missing."""
    saved, slower = (value_of(figures, f"{name}.{what}") for what in ("energy_saved_pct", "slowdown_pct"))
    return None if saved is None or slower is None else (_number(saved), _number(slower, signed=True))


def _oracle(figures: Mapping[str, Figure], name: str) -> str:
    """What a schedule saves, up to the bound."""
    figure = figures.get(f"{name}.energy_saved_pct")
    if not figure:
        return NOTHING
    value, high = (_number(figure[key]) for key in ("value", "high"))  # type: ignore[arg-type]
    return value if value == high else f"{value}-{high}"


def _shown(figures: Mapping[str, Figure]) -> list[str]:
    """Policies of which there is a figure."""
    return [p for p in COLUMNS if any(n.startswith("policies.") and f".{p}.slowdown_pct" in n for n in figures)]


def _platforms(figures: Mapping[str, Figure]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for platform, case in cases_in(figures):
        found.setdefault(platform, []).append(case)
    return found


def _runtime(figures: Mapping[str, Figure]) -> str:
    """The sentence on what the library itself costs."""
    share = value_of(figures, "policies.runtime.core_share_pct")
    worst = value_of(figures, "policies.runtime.core_share_worst_pct")
    return "" if share is None else f"clock thread: {share:.2f} % of a core a rank (median), {worst:.2f} % at most"


def print_tables(console: Console, figures: Mapping[str, Figure], missing: Sequence[str] = ()) -> None:
    """A table a platform, then what does not hold and what is missing."""
    policies = _shown(figures)
    for platform, cases in _platforms(figures).items():
        title = f"{platform}: energy saved % / slowdown %"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
        table.add_column("", no_wrap=True)
        for column in ("step ms", "oracle", "in comm.", *map(current_policy, policies), "what-if off"):
            table.add_column(column, justify="right", no_wrap=True)
        for case in cases:
            name = f"policies.{platform}.{case}"
            row: list[str | Text] = [case, _number(value_of(figures, f"{name}.observe.step_ms"))]
            row += [_oracle(figures, f"{name}.{oracle}") for oracle in ORACLES]
            failing = {fault.on for fault in faults_of(figures, platform, case)}
            for policy in policies:
                pair = _pair(figures, f"{name}.{policy}")
                marked = failing if policy == "auto" else set()
                row.append(_cell(pair, marked) if pair else Text("missing", style="yellow"))
            row.append(_number(value_of(figures, f"{name}.whatif.error_points")))
            table.add_row(*row)
        console.print()
        console.print(table)
    console.print()
    if _runtime(figures):
        console.print(_runtime(figures))
    for fault in all_faults(figures):
        console.print(Text(f"{FAILS} {fault.platform} {fault.case}: {fault.text}", style="red"))
    for line in missing:
        console.print(Text(f"missing: {line}", style="yellow"))


def _cell(pair: tuple[str, str], failing: set[str]) -> Text:
    saved, slower = pair
    text = Text(saved + (FAILS if "energy" in failing else ""), style="red" if "energy" in failing else "")
    text.append(" / ", style="dim")
    return text.append(
        slower + (FAILS if "slowdown" in failing else ""), style="red" if "slowdown" in failing else "default"
    )


def markdown(figures: Mapping[str, Figure], about: Mapping[str, object], source: str) -> str:
    """The page of the documentation; about: command, date, commit, machine, conditions and rows, where kept."""
    policies = _shown(figures)
    rows: Rows = about.get("rows", {})  # type: ignore[assignment]
    lines = [
        "# Policies, measured",
        "",
        f"<!-- made by `scripts/figures-policies-emulated --table {source} --markdown FILE`; do not edit -->",
        f"From [{source}](../../{source}): everything here is emulated.",
    ]
    said = [f"{key}: {about[key]}" for key in ("date", "commit", "conditions") if about.get(key)]
    lines += [f"{'; '.join(said)}."] if said else []
    lines += [
        "",
        "Energy saved % / slowdown % against `observe`. oracle: what a clairvoyant schedule saves within 1 % of time,",
        "up to the proven bound; in comm.: the same without slowing computation",
        f"([0009](../decisions/0009-oracle.md)). {FAILS}: a demand on `auto` that fails, listed below. what-if: how",
        "many points `powerccl whatif` was off, of per-call or auto the worse. –: not measured.",
    ]
    if rows:
        lines += [
            "code: the commit that auto was measured with, and on how many cores; of the others it is in the file."
        ]
    for platform, cases in _platforms(figures).items():
        heading = ["scenario", "step ms", "oracle", "in comm.", *map(current_policy, policies), "what-if"]
        aligned = ["---"] + ["--:"] * (len(heading) - 1) + (["---"] if rows else [])
        lines += ["", f"## {platform}", f"`--emulate {PLATFORMS.get(platform, platform)}`", ""]
        lines += [_row(heading + (["code"] if rows else [])), _row(aligned)]
        for case in cases:
            name = f"policies.{platform}.{case}"
            failing = {fault.on for fault in faults_of(figures, platform, case)}
            row = [case.removeprefix(MODEL_CASE), _number(value_of(figures, f"{name}.observe.step_ms"))]
            row += [_oracle(figures, f"{name}.{oracle}") for oracle in ORACLES]
            for policy in policies:
                pair = _pair(figures, f"{name}.{policy}")
                marks = [f" {FAILS}" if policy == "auto" and on in failing else "" for on in ("energy", "slowdown")]
                row.append(f"{pair[0]}{marks[0]} / {pair[1]}{marks[1]}" if pair else NOTHING)
            row.append(_number(value_of(figures, f"{name}.whatif.error_points")))
            row += [rows.get(f"{platform}.{case}", {}).get("auto", NOTHING)] if rows else []
            lines.append(_row(row))
    faults = all_faults(figures)
    lines += ["", "## What does not hold", ""]
    lines += [f"- {fault.platform}, {fault.case}: {fault.text}" for fault in faults] or ["Nothing."]
    if _runtime(figures):
        lines += ["", "## What it costs the processor", "", f"{_runtime(figures)[0].upper()}{_runtime(figures)[1:]}."]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
