# SPDX-License-Identifier: Apache-2.0
"""`powerccl fleet`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from powerccl.commandline.options import json_option
from powerccl.commandline.output import write_out
from powerccl.commandline.since import parse_since, since_option
from powerccl.errors import PowercclError, UsageError
from powerccl.quantities import plural

BY = ("user", "group", "program", "node", "gpu", "day", "name")
TITLES = {
    "user": "energy by user",
    "group": "energy by group",
    "program": "energy by program",
    "node": "energy by node",
    "gpu": "energy by GPU",
    "day": "energy by day",
    "name": "energy by name",
    "waiting-gpu": "GPUs that others wait for",
    "waiting-node": "nodes whose GPUs others wait for",
    "savings": "what next steps would have saved",
    "regressions": "names that use more than in the 30 days before",
    "sql": "answer",
}
FEWEST = 2  # runs of a period, for a variance
LEAST_PCT = 1.0  # repetitions of a job differ by as much; at half, noise is shown, and at double a real loss is not


@click.command("fleet")
@click.argument("root", default="runs", type=click.Path(path_type=Path), metavar="[INDEX]")
@click.option("--by", type=click.Choice(BY), help="Runs, hours, energy and exposed communication of each of these.")
@click.option("--waiting", is_flag=True, help="GPUs that others waited for, and what that cost; also with --by node.")
@click.option("--savings", is_flag=True, help="What next steps would have saved, by the runs' own findings.")
@click.option("--regressions", is_flag=True, help="Names whose runs changed against the 30 days before.")
@click.option("--sql", metavar="SQL", help="SQL of your own, or a file with it.")
@since_option
@click.option("--emulated", is_flag=True, help="Ask for emulated and simulated runs instead of real ones.")
@json_option("the rows")
@click.option(
    "--csv", "csv_file", default="", metavar="FILE", help="Write the rows of one question to FILE (-: stdout)."
)
@click.option("--print-sql", is_flag=True, help="Print the SQL, views included, and ask nothing.")
def command(
    root: Path,
    by: str | None,
    waiting: bool,
    savings: bool,
    regressions: bool,
    sql: str | None,
    since: str,
    emulated: bool,
    json_file: str,
    csv_file: str,
    print_sql: bool,
) -> int:
    """Ask all runs of an index where energy went.

    INDEX is a folder that `powerccl index` made, or the directory of runs that it indexed. Without a question, four
    are answered: users, late GPUs, savings and regressions. Emulated runs are never mixed with real ones.

    \b
    powerccl fleet /data/powerccl --by user --since 30d
    powerccl fleet --waiting --csv late.csv
    powerccl fleet --sql "SELECT name, sum(joules) FROM chosen GROUP BY name"
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.fleet.ask import ask, connect, duckdb_source, query_of, views
    from powerccl.fleet.store import FOLDER, INDEX_FILE, open_index

    asked = _questions(by, waiting, savings, regressions, sql)
    if csv_file and len(asked) > 1:
        raise UsageError("--csv is for one question: add --by, --waiting, --savings, --regressions or --sql")
    if csv_file == json_file == "-":
        raise UsageError("--json and --csv cannot both go to stdout")
    first = datetime.fromtimestamp(parse_since(since, datetime.now())).date() if since else None
    index = root / FOLDER if not (root / INDEX_FILE).exists() and (root / FOLDER).exists() else root
    open_index(index)
    own = _text(sql) if sql else ""
    if print_sql:
        queries = [own or query_of(question) for question in asked]
        write_out("-", ";\n".join([*views(duckdb_source(index), first, emulated), *queries]) + ";\n")
        return 0

    from powerccl.console import Console
    from powerccl.fleet import report

    connection = connect(index, first, emulated)
    answers = [ask(connection, question, own if question == "sql" else "") for question in asked]
    answers = [report.regressions(each, _judge) if each.question == "regressions" else each for each in answers]
    overview = ask(connection, "overview").dicts()[0]
    if json_file:
        about: dict[str, Any] = {"since": first, "emulated": emulated, "overview": overview}
        write_out(json_file, report.as_json(answers, about))
    if csv_file:
        write_out(csv_file, report.as_csv(answers[0]))
    if "-" in (json_file, csv_file):
        return 0
    console = Console()
    if sql is not None:
        report.print_answer(console, answers[0], TITLES["sql"], [] if answers[0].rows else ["no rows"])
        return 0
    counts = (
        "SELECT sum(CASE WHEN modelled = '' THEN 0 ELSE 1 END), sum(CASE WHEN error = '' THEN 0 ELSE 1 END) FROM runs"
    )
    modelled, failed = ask(connection, "sql", counts).rows[0]
    report.print_overview(console, overview, int(modelled or 0), int(failed or 0), emulated)
    for answer in answers:
        notes = _notes(answer, overview)
        if answer.question == "regressions":
            answer.rows = [row for row in answer.rows if _has_risen(row)]
        most = report.MOST_ROWS if len(answers) == 1 else report.FEW_ROWS
        report.print_answer(console, answer, TITLES[answer.question.removeprefix("by-")], notes, most)
    return 0


def _questions(by: str | None, waiting: bool, savings: bool, regressions: bool, sql: str | None) -> list[str]:
    """The shipped questions that are asked, by name; `sql`: the user's own."""
    wanted = [waiting, savings, regressions, sql is not None]
    if sum(wanted) > 1 or (by and any(wanted[1:])) or (by and waiting and by not in ("gpu", "node")):
        raise UsageError("one question at a time; --waiting goes with --by gpu or --by node")
    if waiting:
        return [f"waiting-{by or 'gpu'}"]
    if sql is not None:
        return ["sql"]
    if savings or regressions:
        return ["savings" if savings else "regressions"]
    return [f"by-{by}"] if by else ["by-user", "waiting-gpu", "savings", "regressions"]


def _text(sql: str) -> str:
    """SQL, or what is in the file of that name."""
    path = Path(sql)
    try:
        return path.read_text("utf-8") if path.is_file() else sql
    except OSError as error:
        raise PowercclError(f"cannot read {sql}: {error.strerror}", "name another file") from error
    except UnicodeDecodeError as error:
        raise PowercclError(f"{sql} is no text", "name a file with SQL") from error


def _judge(old: dict[str, Any], new: dict[str, Any], figure: str) -> dict[str, Any] | None:
    """How a figure changed between two periods, with the 95 % interval; None: too few runs."""
    from powerccl.compare.significance import Moments, welch

    before, after = (Moments(*(row[f"{figure}_{part}"] for part in ("n", "mean", "variance"))) for row in (old, new))
    if min(before.n, after.n) < FEWEST:
        return None
    change = welch(before, after)
    return {"pct": change.pct, "low": change.low_pct, "high": change.high_pct, "verdict": change.verdict}


def _has_risen(row: tuple[Any, ...]) -> bool:
    """Whether a row of regressions is worth a look: no chance, and more than repetitions of a job differ."""
    return bool(row[-1] == "higher" and row[-4] >= LEAST_PCT)


def _notes(answer: Any, overview: dict[str, Any]) -> list[str]:
    """What a reader must know to read a table."""
    count = overview["runs_analysed"] or 0
    analysed = f"of {count:,} analysed runs" if count else "no run is analysed: `powerccl index ROOT --analyse`"
    if answer.question.startswith("waiting"):
        if not count:
            return [analysed]
        rough = sum(row["ranks_by_mean_power"] for row in answer.dicts())
        return [f"{analysed}: energy of the other GPUs of the node while they waited"] + (
            [f"peers of {plural(rough, 'rank')}: power in communication is not known, the run's mean is used"]
            if rough
            else []
        )
    if answer.question == "savings":
        return [f"{analysed}: gains of two rules are not added up"] if count else [analysed]
    if answer.question == "regressions":
        if not answer.rows:
            return ["no name has two runs that ended well in both of the last two periods of 30 days"]
        risen = sum(_has_risen(row) for row in answer.rows)
        rose = f"{risen:,} of {len(answer.rows):,} figures rose by {LEAST_PCT:.0f} % or more"
        return [f"{rose}, significant at 95 %: by chance alone, one in 40 rises"]
    return []
