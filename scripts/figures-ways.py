"""Figures of what scripts/prove-ways-on-gpus left, and its table of ways.

figures-ways.py OUT [--out FILE] [--table FILE --made TEXT]: the table's FILE is named as the table is, such as
h200x2.json; TEXT says what measured it, and when.
"""

import argparse
import json
from pathlib import Path
from statistics import median

from powerccl.launch.ways_profile import table_of
from powerccl.platforms.schema import encode
from powerccl.platforms.ways import PLAIN, WAYS, compare


def spread(values: list[float], unit: str) -> dict[str, object]:
    """A figure with its least and its greatest value."""
    return {"value": round(median(values), 3), "low": round(min(values), 3), "high": round(max(values), 3)} | {
        "unit": unit,
        "n": len(values),
    }


def saved(rounds: list[Path]) -> dict[str, dict[str, object]]:
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
    step = options.folder / "step.json"
    if step.exists():
        for name, value in json.loads(step.read_text())["figures"].items():
            figures[name.replace("nccl.fsdp2.ways", "ways.fsdp2").replace("nccl.fsdp2", "ways.fsdp2")] = value
    for name, value in figures.items():
        print(name, json.dumps(value))
    if options.table:
        options.table.write_bytes(encode(table_of(rounds, options.table.stem, options.made)))
    if options.out:
        options.out.write_text(json.dumps({"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
