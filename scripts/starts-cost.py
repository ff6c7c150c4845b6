"""Measure what PowerCCL changes of a job's step, from many starts of the job.

A job that waits for its hosts differs from itself by more than PowerCCL changes: from start to start, and from second
to second, as the host's cores do. So this script starts the job by itself and under PowerCCL many times. `--pairs`
starts of each way live side by side, which is one generation. All of them are stopped but one, which trains for a short
turn. Starts of one pair have their turns one after the other, and each turn reverses their order.
The figure of a pair is the median over its turns of the difference between its two starts. The result is the mean over
all pairs with its 95 % interval (Student's t). With `quiet`, the figure is of undisturbed steps, see `of_pairs`.

Run it with `--out FILE`. Then `--starts FILE...` makes figures from the starts of several files, such as those of two
pairs of GPUs that worked at once. The ways are those of scripts/step-cost.py, whose jobs these are. Limit: on a job
that was stopped, PowerCCL's timing marks have their whole allowance again, so short turns have more marks than a job
that never stops.
"""

import argparse
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

_spec = importlib.util.spec_from_file_location("step_cost", Path(__file__).parent / "step-cost.py")
assert _spec and _spec.loader
step_cost = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(step_cost)

BASE = "nothing"  # the way that the other one is compared with
Start = dict[str, Any]  # file, generation, pair, way; of each turn and model ms of a step, and of each step


def interval(values: list[float]) -> dict[str, object]:
    """Return the mean with its 95 % interval by Student's t, whose quantile is Cornish and Fisher's series."""
    mean, n = statistics.fmean(values), len(values)
    if n < 3:
        return {"value": round(mean, 3), "low": None, "high": None, "unit": "%", "n": n}
    z, free = statistics.NormalDist().inv_cdf(0.975), n - 1
    quantile = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    half = quantile * statistics.stdev(values) / math.sqrt(n)
    return {"value": round(mean, 3), "low": round(mean - half, 3), "high": round(mean + half, 3), "unit": "%", "n": n}


def of_pairs(starts: list[Start], way: str, model: str, quiet: bool) -> list[float]:
    """What each start of that way saved against its neighbour's: percent, negative where it was slower.

    Of logarithms: a mean of quotients of noisy times would make whatever stands above look slower. The median over the
    turns. `quiet`: instead, of the single steps (of tp: tokens) of all turns, what the tenth
    percentile is apart. That is how long they take where nothing else on the host disturbs them.
    """
    found: dict[tuple[object, ...], dict[str, Start]] = {}
    for start in starts:
        found.setdefault((start["file"], start["generation"], start["pair"]), {})[start["way"]] = start
    key, saved = "each" if quiet else "ms", []
    for alone, other in ((pair[BASE], pair[way]) for pair in found.values() if BASE in pair and way in pair):
        mine, its = ([turn[model] for turn in start[key] if model in turn] for start in (other, alone))
        if not mine or not its:
            continue
        if quiet:
            least = [statistics.quantiles([ms for turn in turns for ms in turn], n=10)[0] for turns in (mine, its)]
            saved.append(100 * math.log(least[1] / least[0]))
        else:
            saved.append(statistics.median(100 * math.log(two / one) for one, two in zip(mine, its, strict=False)))
    return saved


def figures(starts: list[Start]) -> dict[str, dict[str, object]]:
    """Figures of each model: a step, and what each way saves."""
    made: dict[str, dict[str, object]] = {}
    ways = [way for way in dict.fromkeys(start["way"] for start in starts) if way != BASE]
    for key, quiet in (("ms", ""), ("each", ".quiet")):
        for model in dict.fromkeys(name for start in starts for turn in start[key] for name in turn):
            if not quiet:
                steps = [
                    statistics.median(turn[model] for turn in start["ms"])
                    for start in starts
                    if start["way"] == BASE and start["ms"] and model in start["ms"][0]
                ]
                if not steps:
                    continue
                spread = (statistics.median(steps), min(steps), max(steps))
                made[f"{model}.step_ms"] = dict(
                    zip(("value", "low", "high"), (round(ms, 3) for ms in spread), strict=True)
                )
                made[f"{model}.step_ms"] |= {"unit": "ms", "n": len(steps)}
            for way in ways:
                name = model if len(ways) == 1 else f"{model}.{way}"
                if saved := of_pairs(starts, way, model, bool(quiet)):
                    made[f"{name}{quiet}.time_saved_pct"] = interval(saved)
    return made


def show(starts: list[Start]) -> None:
    """Print the figures: of all starts, and of those of each file."""
    print("all")
    for name, value in figures(starts).items():
        print(name, json.dumps(value))
    for file in dict.fromkeys(start["file"] for start in starts):
        print(file)
        for name, value in figures([start for start in starts if start["file"] == file]).items():
            print(name, json.dumps(value))


def generation(number: int, until_s: float, options: argparse.Namespace) -> Iterable[Start]:
    """Start pairs of jobs, let them train in turns, and give what each turn took."""
    turns = options.out.parent / "turns"
    go = turns / "go"
    go.unlink(missing_ok=True)
    jobs: list[tuple[Any, int, str]] = []  # each with its pair and way
    ways = options.ways.split(",")
    for pair in range(options.pairs):
        for way in ways:
            port = options.port + 7 * (len(jobs) + number * len(ways) * options.pairs)
            # The variable makes the start's name one of its own.
            jobs.append((step_cost.Job(f"{way}+START={port}", port, options), pair, way))
    starts: dict[str, Start] = {
        job.way: {"file": options.out.stem, "generation": number, "pair": pair, "way": way, "ms": [], "each": []}
        for job, pair, way in jobs
    }
    try:
        for job, _, _ in jobs:
            job.wait_for("ready", 1, 200)
        for job, _, _ in jobs:
            job.everyone(SIGSTOP)
        print(f"generation {number}: ready with {until_s - time.monotonic():.0f} s left", flush=True)
        turn = 0
        while turn == 0 or time.monotonic() < until_s:
            turn += 1
            for at in range(options.pairs):
                first = len(ways) * ((at + turn) % options.pairs)
                pair_of = jobs[first : first + len(ways)]
                for job, _, _ in pair_of if turn % 2 else pair_of[::-1]:
                    job.everyone(SIGCONT)
                    go.write_text(f"{job.way} {turn}")
                    line = job.wait_for("turn", turn, 60)
                    starts[job.way]["ms"].append(line["ms"])
                    starts[job.way]["each"].append(line["each"])
                    job.everyone(SIGSTOP)
        for job, _, _ in jobs:
            job.everyone(SIGCONT)
        go.write_text("all -1")
        for job, _, _ in jobs:
            job.wait_for("end", 1, 30)
            job.process.wait(60)
    finally:
        for job, _, _ in jobs:
            job.everyone(SIGCONT)
            if job.process.poll() is None:
                job.everyone(SIGKILL)
    return starts.values()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--generations", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=2, help="of starts that are there at a time")
    parser.add_argument("--limit", type=float, default=480, metavar="SECONDS", help="for all generations together")
    parser.add_argument("--seconds", type=float, default=0.9, help="of each model and turn")
    parser.add_argument("--ways", default=f"{BASE},ways", help=f"those of scripts/step-cost.py, one of them {BASE}")
    parser.add_argument("--table", default="auto", help="what --ways of `powerccl run` is given")
    parser.add_argument("--port", type=int, default=29600, help="where the jobs' own ports begin")
    parser.add_argument("--worker", default="", help="further options of step-worker.py")
    parser.add_argument("--starts", nargs="*", type=Path, default=[], help="only make figures of these files")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.platform = options.tuned = ""
    starts: list[Start] = [start for path in options.starts for start in json.loads(path.read_text())["starts"]]
    began_s = time.monotonic()
    if options.out and not options.starts:
        (options.out.parent / "turns").mkdir(parents=True, exist_ok=True)
        lock = options.out.parent / "turns" / "warm-up"
        options.worker += f" --each --warm-up-lock {lock}"
        for number in range(options.generations):
            try:
                starts += generation(number, began_s + options.limit * (number + 1) / options.generations, options)
            except SystemExit as error:  # one of its jobs failed
                print(f"generation {number}: {error}", flush=True)
            options.out.write_text(json.dumps({"starts": starts}) + "\n")
    if options.out:
        options.out.write_text(json.dumps({"figures": figures(starts), "starts": starts}) + "\n")
    show(starts)


if __name__ == "__main__":
    main()
