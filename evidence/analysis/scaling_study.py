# SPDX-License-Identifier: Apache-2.0
"""Study E as figures: of a study's findings, and of the emulated one that docs/guides/scaling-study.md quotes.

python3 -m evidence.analysis.scaling_study FOLDER runs the emulated study in FOLDER and writes
results/scaling-emulated.json and the guide's tables; --guide only renews the tables from the results, such as after
scripts/eight-gpus.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from support.figures import ROOT, Figures, about, figure_of, write

from powerccl.quantities import number
from powerccl.study.report import markdown
from powerccl.study.worlds import ScalingFindings

RESULTS = ROOT / "evidence/results/scaling-emulated.json"
GUIDE = ROOT / "docs/guides/scaling-study.md"
MEASURED = sorted(
    path for kind in ("analysis", "eight") for path in (ROOT / "evidence/results").glob(f"{kind}-h200x*.json")
)
SCALING_FIGURE = re.compile(r"analysis\.h200\.scaling(?:-(1\.3b))?\.(\w+)\.(\d+)\.(.+)")
MEASURED_CELLS = {
    "iteration_s": " ms",
    "communication_pct": " %",
    "exposed_pct": " %",
    "tokens_per_s": "",
    "scaling_pct": " %",
    "joules_per_iteration": "",
}
MEASURED_BEGIN, MEASURED_END = "<!-- what lent GPUs gave, written from here -->\n", "<!-- to here: measured -->\n"
BEGIN, END = "<!-- evidence.analysis.scaling_study writes from here -->\n", "<!-- to here -->\n"
PLATFORMS = ("a100x4", "a100x8-two-nodes")
COMMAND = ("powerccl-bench", "scenario", "examples/gpt350m.scn", "-g", "{gpus}", "--json", "{json}")
MIB = 1 << 20


def figures(findings: ScalingFindings, stem: str) -> Figures:
    """`<stem>.<links>.<gpus>.<what>`; what is not known is left out. Times of an iteration: median and quartiles."""
    found: Figures = {}
    for world in findings.worlds:

        def one(what: str, value: float | None, unit: str, low: float | None = None, high: float | None = None) -> None:
            if value is not None:
                place = f"{stem}.{world.links}.{world.gpus}.{what}"  # noqa: B023 - called at once
                found[place] = figure_of(value, unit, low, high, world.iterations)  # noqa: B023

        one("iteration_s", world.iteration_s, "s", world.iteration_low_s, world.iteration_high_s)
        one("tokens_per_s", world.tokens_per_s, "1/s")
        one("scaling_pct", world.scaling_pct, "%")
        one("communication_pct", world.communication_pct, "%")
        one("exposed_pct", world.exposed_pct, "%")
        one("joules_per_iteration", world.joules_per_iteration, "J")
        for each in world.collectives:
            if each.size_bytes >= MIB:
                one(f"{each.pattern}.s", each.time_s, "s")
                one(f"{each.pattern}.busbw_gbs", each.busbw_gbs, "GB/s")
                one(f"{each.pattern}.waiting_s", each.waiting_s, "s")
                one(f"{each.pattern}.transfer_busbw_gbs", each.transfer_busbw_gbs, "GB/s")
                one(f"{each.pattern}.sweep_busbw_gbs", each.sweep_busbw_gbs, "GB/s")
    return found


def guide_text(findings: ScalingFindings) -> str:
    """The guide's tables."""
    return f"{BEGIN}\n{markdown(findings)}\n{END}"


def measured_text(kept: list[dict[str, Any]]) -> str:
    """What was measured on lent GPUs, of the files of evidence/results: a table each."""
    parts = []
    for each in kept:
        found: dict[tuple[str, ...], Figures] = {}  # of a model, its links and its GPUs
        for name, one in each["figures"].items():
            if place := SCALING_FIGURE.fullmatch(name):
                found.setdefault((place[1] or "350m", place[2], place[3]), {})[place[4]] = one
        rows = [
            "| model | links | GPUs | iteration | communication | exposed | tokens/s | scaling | J an iteration "
            "| reduce-scatter, its GB/s, sweep | all-gather, its GB/s, sweep |",
            "|---|---|" + "---:|" * 9,
        ]
        for world, own in found.items():
            cells = [_cell(own, name, unit) for name, unit in MEASURED_CELLS.items()]
            for name in ("reduce_scatter", "all_gather"):
                told = [_cell(own, f"{name}.s", " ms"), *(_cell(own, f"{name}.{b}busbw_gbs") for b in ("", "sweep_"))]
                cells.append(", ".join(filter(None, told)))
            rows.append("| " + " | ".join([*world, *cells]) + " |")
        if found:
            about = f"{each['machine']}, {each['date']}, commit {each['commit']}:"
            parts += [about, "\n".join(rows)]
    return "\n".join([MEASURED_BEGIN, "\n\n".join(parts), "", MEASURED_END])


def _cell(own: Figures, name: str, unit: str = "") -> str:
    value = own.get(name, {}).get("value")
    if not isinstance(value, (int, float)):
        return ""
    return (f"{value:,.0f}" if value >= 1000 else number(value * (1e3 if unit == " ms" else 1))) + unit


def write_guide() -> None:
    """Renew the guide's tables from evidence/results."""
    study = json.loads(RESULTS.read_text())["study"]
    measured = [json.loads(path.read_text()) for path in MEASURED]
    page = GUIDE.read_text()
    for begin, end, text in (
        (MEASURED_BEGIN, MEASURED_END, measured_text(measured)),
        (BEGIN, END, guide_text(msgspec.convert(study, ScalingFindings))),
    ):
        head, found, rest = page.partition(begin)
        if not found:
            raise SystemExit(f"{GUIDE} has no line {begin.strip()}")
        page = head + text + rest.partition(end)[2]
    GUIDE.write_text(page)


def main() -> None:
    """Run the emulated study, keep its figures, renew the guide."""
    if sys.argv[1:] == ["--guide"]:
        return write_guide()
    folder = Path(sys.argv[1])
    files = ",".join(str(Path("native/testbed/emulator/platforms") / f"{name}.conf") for name in PLATFORMS)
    study = ["powerccl", "study", "scaling", "--gpus", "1,2,4,8", "--emulate", files]
    subprocess.run(
        [sys.executable, "-m", *study, "--out", str(folder), "--json", str(folder / "found.json"), "--", *COMMAND],
        cwd=ROOT,
        check=True,
    )
    findings = msgspec.json.decode((folder / "found.json").read_bytes(), type=ScalingFindings)
    made = about(
        "python3 -m evidence.analysis.scaling_study FOLDER",
        "everything is emulated: links calibrated on study E, computation and power modelled",
        f"emulated {' and '.join(PLATFORMS)} on {platform.system()} {platform.release()}",
    )
    write(RESULTS, figures(findings, "analysis.emulated.scaling"), **made, study=msgspec.to_builtins(findings))
    return write_guide()


if __name__ == "__main__":
    main()
