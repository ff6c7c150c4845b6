"""Figures of what scripts/prove-ways-on-gpus left: figures-ways.py OUT [--out FILE]."""

import argparse
import json
from pathlib import Path
from statistics import median

from powerccl.launch.ways_profile import table_of
from powerccl.platforms.ways import PLAIN, WAYS, compare


def spread(values: list[float], unit: str) -> dict[str, object]:
    """A figure with its least and its greatest value."""
    return {"value": round(median(values), 3), "low": round(min(values), 3), "high": round(max(values), 3)} | {
        "unit": unit,
        "n": len(values),
    }


def saved(rounds: list[Path], folder: Path) -> dict[str, dict[str, object]]:
    """What each way saves against plain, round by round: of time and energy alone, and of time beside computation."""
    found: dict[str, list[tuple[float, str]]] = {}
    for path in rounds:
        whole = json.loads(path.read_text())
        points = [{"type": "point", **point} for point in whole.pop("results")]
        lines = folder / f".{path.stem}.jsonl"
        lines.write_text("".join(json.dumps(each) + "\n" for each in ({"type": "header", **whole}, *points)))
        table = table_of([lines], "", "")
        lines.unlink()
        for way in WAYS:
            if way == PLAIN:
                continue
            for each in compare(table, way):
                name = f"{each.pattern}.{each.size_bytes >> 20}MiB.{way.replace('-', '_')}"
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
    options = parser.parse_args()
    figures = saved(sorted(options.folder.glob("ways-*.json")), options.folder)
    step = options.folder / "step.json"
    if step.exists():
        for name, value in json.loads(step.read_text())["figures"].items():
            figures[name.replace("nccl.fsdp2.ways", "ways.fsdp2").replace("nccl.fsdp2", "ways.fsdp2")] = value
    for name, value in figures.items():
        print(name, json.dumps(value))
    if options.out:
        options.out.write_text(json.dumps({"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
