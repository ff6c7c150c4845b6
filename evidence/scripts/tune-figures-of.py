#!/usr/bin/env python3
"""Figures of what `prove-tune-on-gpus` left, as evidence/results keeps them: tune-figures-of.py DIR... > FILE.

Of several DIRs (calls of one session) each search's latest that was confirmed counts.
value: what the confirmed ratio comes to, low and high its 95 % interval, n the interleaved rounds.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, confirmed, size_name, spread, text_of


def of_search(stem: str, result: dict[str, object]) -> Figures:
    """Speed-up and energy of each case that was put to the proof."""
    found: Figures = {}
    profile = result["profile"]
    assert isinstance(profile, dict)
    for each in profile["confirmed"]:
        found |= confirmed(f"{stem}.{each['pattern']}.{size_name(each['size_bytes'])}", each)
    return found


def seconds_of(folder: Path, pattern: str, words: str) -> list[float]:
    """Numbers that logs give behind these words."""
    texts = [path.read_text(errors="replace") for path in sorted(folder.glob(pattern))]
    return [float(match[1]) for text in texts if (match := re.search(words + r"\s*([\d.]+)", text))]


def main() -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    figures: Figures = {}
    trials_a_minute: list[float] = []
    rounds_a_minute: list[float] = []
    for folder in parser.parse_args().folders:
        for path in sorted(folder.glob("*/result.json")):
            result = json.loads(path.read_text())
            kind = "nvlink" if "nvlink" in result["profile"]["links"] else "sockets"
            stem = f"tune.{path.parent.name}" if path.parent.name in ("train", "nvlink-energy") else f"tune.{kind}"
            figures.update(of_search(stem, result))
            outcomes = [each for each in result["outcomes"] if each["stage"] != "defaults"]
            rounds_a_minute.append(sum(each["rounds"] for each in outcomes) * 60 / result["search_seconds"])
            trials_a_minute.append(float(result["trials_per_minute"]))
        before, after = (seconds_of(folder, f"train-{way}-*.log", "seconds") for way in ("default", "tuned"))
        if before and after:
            figures["tune.sockets.train.default_s"] = spread(before, "s, 40 steps", 3)
            figures["tune.sockets.train.tuned_s"] = spread(after, "s, 40 steps", 3)
            pairs = [100 * (1 - b / a) for a, b in zip(before, after, strict=False)]
            figures["tune.sockets.train.step_saved_pct"] = spread(pairs, "%", 2)
        processes = seconds_of(folder, "process-*.log", "real\\s+0m")
        if processes:
            figures["tune.process_per_trial.trials_per_minute"] = spread([60 / each for each in processes], "1/min", 1)
    figures["tune.trials_per_minute"] = spread(trials_a_minute, "1/min", 1)
    figures["tune.rounds_per_minute"] = spread(rounds_a_minute, "1/min", 1)
    sys.stdout.write(text_of({"figures": figures}))


if __name__ == "__main__":
    main()
