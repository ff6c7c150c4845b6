#!/usr/bin/env python3
"""Measure an index of many runs: how long 10,000 folders take, and how long a question takes, of a million runs too.

The folders are copies of one recorded emulated run's run.json and summary.json, with other names, days, users and
places. Of a million runs only the Parquet is made. `--chdb` also asks ClickHouse (chdb), and counts different answers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT), str(ROOT / "tests")]

import numpy as np
import polars as pl
from support.figures import Figures, about, count, one, show, spread, write

from powerccl.fleet.ask import QUERIES, Answer, ask, connect, query_of, questions, views
from powerccl.fleet.schema import polars_schema
from powerccl.fleet.store import PART, About, known_runs

FOLDERS, RUNS, GPUS, DAYS = 10_000, 1_000_000, 8, 365
FIRST = datetime.date(2026, 1, 1)
REPEATS = 5
COMMAND = "make figures-fleet; different: evidence/scripts/figures-fleet.py --chdb"
TOLERANCE = 1e-9  # of a sum of a million figures, in another order; a variance has fewer digits


def record(folder: Path) -> Path:
    """A recorded emulated run."""
    command = ["run", "--emulate", "t4x8", "--policy", "observe", "--runs-dir", str(folder), "--"]
    job = ["powerccl-bench", "scenario", str(ROOT / "bench/scenarios/ddp.scn"), "--seconds", "8"]
    subprocess.run([sys.executable, "-m", "powerccl", *command, *job], check=True, capture_output=True)
    (made,) = (path for path in folder.iterdir() if (path / "summary.json").exists())
    return made


def copies(run: Path, into: Path, number: int) -> None:
    """Folders as a site has them: a hundred names of forty users over sixty days, each on a node of its own."""
    info = json.loads((run / "run.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    for at in range(number):
        day = FIRST + datetime.timedelta(days=at % 60)
        node, user = f"node{at % 200}", at % 40
        folder = into / f"user{user}" / f"{day:%Y%m%d}-{at:06d}"
        folder.mkdir(parents=True)
        info |= {"name": f"job{at % 100}", "host": node, "run_id": f"{at:032x}", "emulated": "", "platform": ""}
        info["started_at"] = f"{day.isoformat()}T{at % 24:02d}:00:00+0000"
        summary |= {"name": info["name"], "emulated": ""}
        for gpu in summary["gpus"]:
            gpu |= {"host": node, "gpu": f"GPU-{at % 200}-{gpu['index']}"}
        (folder / "run.json").write_text(json.dumps(info, indent=2))
        (folder / "summary.json").write_text(json.dumps(summary, indent=2))
        if os.geteuid() == 0:
            os.chown(folder, 20_000 + user, 20_000 + user % 4)


def powerccl(*arguments: str) -> tuple[float, float]:
    """How long a command takes, its start included, and its processor time."""
    began, used = time.monotonic(), processor_s()
    subprocess.run([sys.executable, "-m", "powerccl", *arguments], check=True, capture_output=True)
    return time.monotonic() - began, processor_s() - used


def processor_s() -> float:
    """Processor time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def asked() -> dict[str, list[str]]:
    """The options of `powerccl fleet` by the question that they ask."""
    made = {name: ["--by", name.removeprefix("by-")] for name in questions() if name.startswith("by-")}
    made |= {f"waiting-{by}": ["--waiting", "--by", by] for by in ("gpu", "node")}
    return made | {"savings": ["--savings"], "regressions": ["--regressions"]}


def million(index: Path, runs: int) -> None:
    """The tables of as many runs, a file a table and day."""
    (index / "index.json").parent.mkdir(parents=True)
    (index / "index.json").write_text(json.dumps({"schema": About().schema}))
    rng = np.random.default_rng(1)
    for at in range(DAYS):
        day, n = FIRST + datetime.timedelta(days=at), runs // DAYS + (at < runs % DAYS)
        run = np.arange(n, dtype=np.int64) * DAYS + at
        node = rng.integers(0, 1000, n)
        columns: dict[str, Any] = {
            "run": run,
            "name": rng.integers(0, 5000, n),
            "user_name": rng.integers(0, 500, n),
            "wall_s": rng.lognormal(8, 1, n),
            "joules": np.where(rng.random(n) < 0.05, np.nan, rng.lognormal(15, 1, n)),
            "working_s": rng.lognormal(7.9, 1, n),
            "exposed_pct": rng.uniform(0, 40, n),
            "iteration_s": rng.lognormal(-1, 0.1, n),
        }
        frame = pl.DataFrame(columns, nan_to_null=True).with_columns(
            folder=pl.format("/scratch/runs/{}", "run"),
            name=pl.format("job{}", "name"),
            group_name=pl.format("group{}", pl.col("user_name") % 40),
            program=pl.format("program{}", pl.col("name") % 300),
            user_name=pl.format("user{}", "user_name"),
            exit_code=pl.when(pl.col("run") % 10 == 0).then(1).otherwise(0),
            finished=True,
            modelled=pl.when(pl.col("run") % 100 == 1).then(pl.lit("t4x8")).otherwise(pl.lit("")),
            ranks=GPUS,
            nodes=1,
            gpus=GPUS,
            gpu_name=pl.lit("NVIDIA H100 80GB HBM3"),
            summarised=True,
            analysed=True,
            removed=False,
            error=pl.lit(""),
            stamp=pl.format("{}:900 {}:8000", "run", "run"),
            indexed_at=pl.lit(datetime.datetime(2027, 1, 1)),
        )
        put(index, "runs", day, frame)
        head = {"run": np.repeat(run, GPUS), "node": np.repeat(node, GPUS)}
        place = np.tile(np.arange(GPUS, dtype=np.int64), n)
        detail = pl.DataFrame({**head, "gpu_index": place}).with_columns(
            host=pl.format("node{}", "node"),
            gpu=pl.format("GPU-{}-{}", "node", "gpu_index"),
            modelled=pl.when(pl.col("run") % 100 == 1).then(pl.lit("t4x8")).otherwise(pl.lit("")),
        )
        size = len(detail)
        used = {"joules": rng.lognormal(13, 1, size), "watts": rng.uniform(300, 700, size)}
        put(index, "gpus", day, detail.with_columns(**{name: pl.Series(each) for name, each in used.items()}, ranks=1))
        late = {"last": rng.integers(0, 500, size), "waited_s": rng.exponential(5, size)}
        late["waited_joules"] = late["waited_s"] * 300
        more = {name: pl.Series(each) for name, each in late.items()}
        flags = {
            "rank": pl.col("gpu_index"),
            "collectives": 4000,
            "steady": place == 3,
            "waited_at_most": False,
            "watts_from": pl.lit("communication"),
        }
        flags["steady"] = pl.Series(place == 3)
        put(index, "ranks", day, detail.with_columns(**more, **flags))
        steps = frame.select("run", "modelled", rule=pl.lit("straggler"), of_what=pl.lit("time"), own=True)
        gains = {name: pl.Series(rng.uniform(1, 5, n)) for name in ("gain_pct", "low_pct", "high_pct")}
        put(index, "steps", day, steps.with_columns(**gains))
        for table in ("iterations", "collectives"):
            put(index, table, day, pl.DataFrame(schema={"run": pl.Int64}))


def put(index: Path, table: str, day: datetime.date, frame: pl.DataFrame) -> None:
    """Write a day of a table; columns that the frame lacks are not known, or empty."""
    schema = polars_schema(table)
    frame = frame.with_columns(day=pl.lit(day))
    empty = {name: pl.lit("" if kind == pl.String else None) for name, kind in schema.items() if name not in frame}
    path = index / table / f"day={day.isoformat()}" / PART
    path.parent.mkdir(parents=True)
    frame.with_columns(**empty).select(pl.col(name).cast(kind) for name, kind in schema.items()).write_parquet(path)


def by_chdb(index: Path, question: str) -> Answer:
    """The same question, asked of ClickHouse."""
    from chdb import session

    opened = session.Session()
    try:
        for statement in views(f"file('{index}/{{}}/day=*/part.parquet', Parquet)"):
            opened.query(statement)
        text = str(opened.query(query_of(question), "JSONCompact"))
    finally:
        opened.close()
    made = json.loads(text)
    return Answer(question, [column["name"] for column in made["meta"]], [tuple(row) for row in made["data"]])


def different(first: Answer, second: Answer) -> int:
    """Rows of two answers that differ by more than the order of a sum."""
    if first.columns != second.columns or len(first.rows) != len(second.rows):
        return max(len(first.rows), len(second.rows), 1)
    return sum(
        not all(alike(one_value, other) for one_value, other in zip(row, row_of, strict=True))
        for row, row_of in zip(sorted(first.rows, key=key), sorted(second.rows, key=key), strict=True)
    )


def key(row: tuple[Any, ...]) -> tuple[str, ...]:
    """The words of a row, which name it, with whole numbers."""
    return tuple(str(value) for value in row if isinstance(value, (str, datetime.date, int)))


def alike(first: Any, second: Any) -> bool:
    """Whether two values are the same; JSON has whole numbers of 64 bits and days as text."""
    if first is None or second is None or isinstance(first, str):
        return bool(first == second)
    if isinstance(first, datetime.date):
        return bool(first.isoformat() == second)
    return math.isclose(float(first), float(second), rel_tol=TOLERANCE, abs_tol=1e-11)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folders", type=int, default=FOLDERS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--like", type=Path, help="a recorded emulated run, instead of a new one")
    parser.add_argument("--chdb", action="store_true", help="also ask ClickHouse (pip install chdb: 557 MB)")
    options = parser.parse_args()
    made: Figures = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        run = options.like or record(work / "like")
        runs, index = work / "runs", work / "index"
        copies(run, runs, options.folders)
        made["scale.fleet.folders"] = count(options.folders, options.folders)
        made["scale.fleet.index_s"] = one(round(powerccl("index", str(runs), "--to", str(index))[0], 2), "s")
        made["scale.fleet.again_s"] = one(round(powerccl("index", str(runs), "--to", str(index))[0], 2), "s")
        assert len(known_runs(index)) == options.folders
        rounds = [[powerccl("fleet", str(index), *words) for words in asked().values()] for _ in range(3)]
        made["scale.fleet.query_s"] = spread([max(took for took, _ in each) for each in rounds], "s")
        # Other jobs of the machine do not change it much.
        made["scale.fleet.query_processor_s"] = spread([max(used for _, used in each) for each in rounds], "s")
        shutil.rmtree(runs)
        large = work / "million"
        million(large, options.runs)
        made["scale.fleet.million_mib"] = one(
            round(sum(path.stat().st_size for path in large.rglob("*.parquet")) / 2**20, 1), "MiB"
        )
        connection, times, wrong = connect(large), [], 0
        for question in questions():
            of_question = []
            for _ in range(REPEATS):
                began = time.monotonic()
                answer = ask(connection, question)
                of_question.append(time.monotonic() - began)
            print(
                f"{question:<16} {min(of_question):.2f} to {max(of_question):.2f} s, {len(answer.rows):,} rows",
                flush=True,
            )
            times.append(max(of_question))
            if options.chdb:
                wrong += different(answer, by_chdb(large, question))
        made["scale.fleet.million_s"] = one(round(max(times), 2), "s", REPEATS * len(times))
        if options.chdb:
            made["scale.fleet.different"] = count(wrong, len(times))
    show(made)
    conditions = (
        f"{options.folders:,} folders with run.json and summary.json of an emulated run with eight GPUs; questions "
        f"with the command's start, the slowest of {len(asked())}. {options.runs:,} generated runs of eight GPUs "
        f"over {DAYS} days, DuckDB with 4 GB, the slowest of {len(list(QUERIES.glob('*.sql')))} questions. "
        f"{os.getloadavg()[0]:.0f} processes shared {os.cpu_count()} processors in the last minute."
    )
    write(options.out, made, **about(COMMAND, conditions))


if __name__ == "__main__":
    main()
