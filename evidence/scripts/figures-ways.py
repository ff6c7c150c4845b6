"""Figures of what evidence/scripts/prove-ways-on-gpus left, and its table of ways.

figures-ways.py OUT [--out FILE] [--table FILE --made TEXT]: the table's FILE is named as the table is, such as
h200x2.json; TEXT says what measured it, and when.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, show, spread, write

from powerccl.platforms.schema import encode
from powerccl.platforms.ways import PLAIN, WAYS, compare
from powerccl.ways.profile import table_of


def saved(rounds: list[Path]) -> Figures:
    """What each way saves against plain, round by round: of time and energy alone, and of time beside computation."""
    found: dict[str, list[tuple[float, str]]] = {}
    for path in rounds:
        table = table_of([path], "", "")
        for each in (each for way in WAYS if way != PLAIN for each in compare(table, way)):
            name = f"{each.pattern}.{each.size_bytes >> 20}MiB.{each.way.replace('-', '_')}"
            found.setdefault(f"{name}.time_saved_pct", []).append((each.time_saved_pct, "%"))
            if each.energy_saved_pct is not None:
                found.setdefault(f"{name}.energy_saved_pct", []).append((each.energy_saved_pct, "%"))
            for beside, us in each.beside_saved_us.items():
                found.setdefault(f"{name}.beside_{beside}.saved_us", []).append((us, "us"))
    return {f"ways.{name}": spread([value for value, _ in all_of], all_of[0][1]) for name, all_of in found.items()}


JOBS = {"handmade-2048": "fsdp_2048", "handmade-1024": "fsdp_1024", "fully_shard-2048": "fsdp2"}


def of_job(folder: Path) -> Figures:
    """What a job saved in turns against itself alone, and how far what had been predicted is from it."""
    job = "ways." + JOBS.get(folder.name, f"jobs.{folder.name}")
    made = json.loads((folder / "step.json").read_text())
    several = len(made["raw_ms"]["nothing"][0]) > 1
    figures: Figures = {}
    for name, value in made["figures"].items():
        *model, figure = name.removeprefix("nccl.").split(".")
        way = [] if figure == "step_ms" else [each for each in [model.pop()] if each not in ("ways", "lines")]
        name = ".".join([job, *(model if several else []), *way])
        if figure == "step_ms":
            figures[f"{name}.{figure}"] = value
            continue
        what = "energy" if "energy" in figure else "time"
        saved = {"value": -value["value"], "low": -value["high"], "high": -value["low"]}
        figures[f"{name}.{what}_saved_pct"] = value | saved
    if (folder / "whatif.json").exists():
        predicted = json.loads((folder / "whatif.json").read_text())["forecasts"][0]
        for what in ("time", "energy"):
            least, most = predicted[f"{what}_saved_pct"]
            figures[f"{job}.whatif.{what}_saved_pct"] = spread([least, most], "%")
            measured = float(figures[f"{job}.{what}_saved_pct"]["value"])
            figures[f"{job}.whatif.{what}_error_points"] = spread(
                [max(least - measured, measured - most, 0.0)], "points"
            )
    return figures


def main() -> None:
    """Print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--made", default="")
    options = parser.parse_args()
    rounds = sorted(options.folder.glob("ways-*.jsonl"))
    figures = saved(rounds)
    for folder in sorted(options.folder.glob("*")):
        if (folder / "step.json").exists():
            figures |= of_job(folder)
    errors = [float(value["value"]) for name, value in figures.items() if name.endswith("_error_points")]
    if errors:
        figures["ways.whatif_error_points"] = spread([max(errors)], "points")
    show(figures)
    if options.table:
        options.table.write_bytes(encode(table_of(rounds, options.table.stem, options.made)))
    write(options.out, figures)


if __name__ == "__main__":
    main()
