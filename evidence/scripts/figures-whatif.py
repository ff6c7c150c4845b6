"""What `powerccl whatif` predicts of runs under the real-time emulator, beside what the simulator makes of the jobs.

figures-whatif.py [--out FILE] [--rows PLATFORM/SCENARIO ...] [--seconds S] [--machines N]. POWERCCL_NATIVE names the
built programs. `--machines`: instead, of random jobs on random machines of real boards, and of H100s that differ,
recorded by the simulator.
The recording is all that whatif knows. The simulator knows the scenario and the whole platform file;
evidence/scripts/figures-sim.py compares it with the real-time emulator. The machine should be idle.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness.jobs import built_in, job, names_for
from evidence.robustness.machines import built_in as platform_of
from evidence.robustness.machines import machine
from support.figures import Figures, about, bare, show, write

from powerccl.launch.native import find_native
from powerccl.whatif.simulator import SIMULATOR, simulate

PLATFORMS = ("t4x8", "a100x4", "h200x4", "h100x8")
LEARNING_S, MANAGED_S = 60.0, 60.0  # as in whatif
BEFORE_S, RECORDED_S = 20.0, 10.0
FIRST_MACHINE, MOST_GPUS = 1000, 8  # behind those of figures-robustness.py; of a prediction in half a minute
# Shares by which four H100s at their power limit draw more or less than usual, in FSDP2. Recorded ones were 6 % apart.
APART = ("0.02", "0.06", "0.10")
# Recorded on the first number of ranks, and predicted for the second.
SCALED = (("t4x8", "fsdp", 4, 8), ("t4x8", "ddp", 2, 8), ("a100x4", "ddp", 2, 4))


def powerccl(*options: str) -> None:
    """Run a verb quietly."""
    environment = os.environ | {"POWERCCL_KERNEL_EVENTS": "all"}  # messages between ranks need them
    command = [sys.executable, "-m", "powerccl", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600, env=environment)


def predicted(platform: str, scenario: str, seconds: float, folder: Path) -> tuple[dict[str, float], float]:
    """Figures of `auto` by a recording, and how long the prediction took."""
    native, runs, out = find_native(), folder / "runs", folder / "found.json"
    bench = ("--", f"{native.root}/bin/powerccl-bench", "scenario", str(ROOT / "bench/scenarios" / f"{scenario}.scn"))
    record = ("run", "-q", "--emulate", platform, "--policy", "observe", "--runs-dir", str(runs))
    powerccl(*record, *bench, "--seconds", f"{seconds:g}")
    began = time.monotonic()
    powerccl("whatif", "--runs-dir", str(runs), "--platform", "none", "--json", str(out))
    took_s = time.monotonic() - began
    told = json.loads(out.read_text())
    auto = told["policies"][-1]
    found = {"recorded_ms": told["recorded_ms"], "replayed_ms": told["simulated_ms"]}
    for name in ("saved_pct", "slowdown_pct"):
        found |= {name: auto[name]["value"], f"{name}.low": auto[name]["low"], f"{name}.high": auto[name]["high"]}
    return found, took_s


def simulated(conf: str, text: str) -> tuple[float, float, float, float] | None:
    """Energy saved by `auto`, percent, of a job on a machine: predicted, the range, and known. None: not predicted."""
    native = find_native()
    with tempfile.TemporaryDirectory() as name:
        platform, scenario, run, out = (str(Path(name) / each) for each in ("conf", "job.scn", "run", "found.json"))
        Path(platform).write_text(conf)
        Path(scenario).write_text(text)
        times = ("--seconds", f"{RECORDED_S:g}", "--warm-up", f"{BEFORE_S:g}", "--run-folder", run)
        command = [str(native.path(SIMULATOR)), "--platform", platform, scenario, *times]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        try:
            powerccl("whatif", run, "--platform", "none", "--json", out)
        except subprocess.CalledProcessError:
            return None
        told = json.loads(Path(out).read_text())["policies"][-1]["saved_pct"]
    plain, managed = (
        simulate(native.path(SIMULATOR), conf, [text], policy, MANAGED_S, LEARNING_S) for policy in ("observe", "auto")
    )
    return told["value"], told["low"], told["high"], managed.against(plain)[0]


def on_a_machine(number: int) -> tuple[float, float, float, float] | None:
    """That of a random job on a random machine."""
    made = machine("reported", number)
    return simulated(made.conf, job("reported", number, made.gpus).text)


def figures_of_apart() -> Figures:
    """Of GPUs that differ at their power limit."""
    figures: Figures = {}
    for spread in APART:
        made = platform_of("", "h100x8", {"gpus": "4", "gpu_spread": spread})
        predicted = simulated(made.conf, built_in("h100/llama-fsdp").text)
        if not predicted:
            raise SystemExit(f"GPUs {spread} apart: not predicted")
        value, low, high, known_pct = predicted
        print(f"GPUs {spread} apart: {value:.1f} % ({low:.1f} to {high:.1f}), known {known_pct:.1f} %", flush=True)
        name = f"whatif.h100x4_apart.{float(spread):g}"
        bounds = {"value": round(value, 3), "low": round(low, 3), "high": round(high, 3)}
        figures[f"{name}.predicted_saved_pct"] = bounds | {"unit": "%", "n": 1}
        figures[f"{name}.known_saved_pct"] = bare(round(known_pct, 3), "%")
        figures[f"{name}.error_points"] = bare(round(value - known_pct, 3), "points")
    return figures


def figures_on_machines(count: int) -> Figures:
    """How often the range holds, and how wide it is."""
    errors: list[float] = []
    widths: list[float] = []
    holds = 0
    numbers = (each for each in itertools.count(FIRST_MACHINE) if machine("reported", each).gpus <= MOST_GPUS)
    together = max(1, (os.cpu_count() or 1) // 2)  # each prediction simulates several machines at once
    with ThreadPoolExecutor(together) as pool:
        while len(errors) < count:
            some = list(itertools.islice(numbers, min(together, count - len(errors))))
            for number, predicted in zip(some, pool.map(on_a_machine, some), strict=True):
                if not predicted:
                    continue
                value, low, high, known_pct = predicted
                print(f"machine {number}: {value:.1f} % ({low:.1f} to {high:.1f}), known {known_pct:.1f} %", flush=True)
                errors.append(abs(value - known_pct))
                widths.append(high - low)
                holds += low <= known_pct <= high
    return {
        "whatif.in_range_pct": bare(round(100 * holds / count, 1), "%", count),
        "whatif.range_points_median": bare(round(median(widths), 2), "points", count),
        "whatif.machines_error_points_median": bare(round(median(errors), 2), "points", count),
    }


def scaled(platform: str, scenario: str, few: int, many: int, seconds: float) -> tuple[float, float]:
    """Milliseconds of an iteration on `many` ranks: predicted from a recording on few, and recorded."""
    file = str(ROOT / "bench/scenarios" / f"{scenario}.scn")
    bench = f"{find_native().root}/bin/powerccl-bench"
    told = []
    with tempfile.TemporaryDirectory() as name:
        for ranks, more in ((few, ("--ranks", str(many))), (many, ())):
            runs, out = f"{name}/{ranks}", Path(name) / f"{ranks}.json"
            record = ("run", "-q", "--emulate", platform, "--policy", "observe", "--runs-dir", runs, "--", bench)
            powerccl(*record, "scenario", file, "--seconds", f"{seconds:g}", "-g", str(ranks))
            powerccl("whatif", "--runs-dir", runs, "--platform", "none", "--json", str(out), *more)
            told.append(json.loads(out.read_text()))
    return told[0]["more_ms"], told[1]["recorded_ms"]


def known(platform: str, scenario: str) -> tuple[float, float]:
    """Energy saved and time added by `auto`, percent, if everything is known."""
    native = find_native()
    conf = (native.root / f"share/platforms/{platform}.conf").read_text()
    plain, managed = (
        simulate(native.path(SIMULATOR), conf, [built_in(scenario).text], policy, MANAGED_S, LEARNING_S)
        for policy in ("observe", "auto")
    )
    return managed.against(plain)


def main() -> None:
    """Print a row each, and write figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    every = [f"{platform}/{name}" for platform in PLATFORMS for name in names_for(platform)]
    parser.add_argument("--rows", nargs="*", default=every)
    parser.add_argument("--seconds", type=float, default=10, help="of each recording")
    parser.add_argument("--machines", type=int, default=0, help="number of random machines")
    options = parser.parse_args()
    figures: Figures = {}
    if options.machines:
        figures = figures_on_machines(options.machines) | figures_of_apart()
        show(figures)
        conditions = (
            f"simulated: recordings of {RECORDED_S:g} s of random jobs on random machines of real boards, 4 or 8 GPUs; "
            "what is known: the second minute under auto"
        )
        command = f"evidence/scripts/figures-whatif.py --machines {options.machines}"
        return write(options.out, figures, **about(command, conditions))
    errors, within, times = [], 0, []
    for row in options.rows:
        platform, _, scenario = row.partition("/")
        with tempfile.TemporaryDirectory() as folder:
            try:
                found, took_s = predicted(platform, scenario, options.seconds, Path(folder))
            except subprocess.CalledProcessError:
                print(f"{row}: not predicted", flush=True)
                continue
        saved, slower = known(platform, scenario)
        error = found["saved_pct"] - saved
        errors.append(abs(error))
        within += found["saved_pct.low"] - 0.5 <= saved <= found["saved_pct.high"] + 0.5
        times.append(took_s)
        span = f"{found['saved_pct.low']:.1f} to {found['saved_pct.high']:.1f}"
        slow = f"slower {found['slowdown_pct']:.2f} and {slower:.2f} %"
        ms = f"recorded {found['recorded_ms']:.1f}, replayed {found['replayed_ms']:.1f} ms; {took_s:.0f} s"
        print(f"{row}: predicted {found['saved_pct']:.2f} % ({span}), known {saved:.2f} %; {slow}; {ms}", flush=True)
        key = f"whatif.{platform}.{scenario.replace('/', '.')}"
        value = {"value": found["saved_pct"], "low": found["saved_pct.low"], "high": found["saved_pct.high"]}
        figures[f"{key}.predicted_saved_pct"] = value | {"unit": "%", "n": 1}
        figures[f"{key}.known_saved_pct"] = bare(round(saved, 3), "%")
        figures[f"{key}.error_points"] = bare(round(error, 3), "points")
        figures[f"{key}.slowdown_error_points"] = bare(round(found["slowdown_pct"] - slower, 3), "points")
    for platform, scenario, few, many in () if options.rows != every else SCALED:
        said, was = scaled(platform, scenario, few, many, options.seconds)
        print(
            f"{platform}/{scenario} from {few} to {many} ranks: predicted {said:.1f}, recorded {was:.1f} ms", flush=True
        )
        name = f"whatif.scaled.{platform}.{scenario}.{few}_to_{many}"
        figures[f"{name}.predicted_ms"], figures[f"{name}.recorded_ms"] = (
            bare(round(ms, 3), "ms") for ms in (said, was)
        )
        figures[f"{name}.error_pct"] = bare(round(100 * (said / was - 1), 2), "%")
    if not errors:
        raise SystemExit("no row was predicted")
    p95 = sorted(errors)[min(len(errors) - 1, round(0.95 * len(errors)) - 1)]
    figures["whatif.error_points_p95"] = bare(round(p95, 3), "points", len(errors))
    figures["whatif.rows_in_range_pct"] = bare(round(100 * within / len(errors), 1), "%", len(errors))
    figures["whatif.seconds"] = bare(round(max(times), 1), "s", len(times))
    print(f"95 % of rows within {p95:.2f} points, {within} of {len(errors)} in their range, at most {max(times):.0f} s")
    conditions = f"recordings of {options.seconds:g} s under the real-time emulator, {os.cpu_count()} cores"
    write(options.out, figures, **about("make figures-whatif", conditions))


if __name__ == "__main__":
    main()
