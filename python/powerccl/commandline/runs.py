# SPDX-License-Identifier: Apache-2.0
"""Which run folder a verb is of: a path, `latest`, the name of a run, or the beginning of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.errors import PowercclError, nearest
from powerccl.traces.run_info import RUN_FILE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from powerccl.commandline.run_index import RunRow

LATEST = "latest"
MOST_LISTED = 5  # candidates of an ambiguous name: a line of a terminal has room for about so many


def _own(_context: click.Context, _option: click.Parameter, given: Path | None) -> Path:
    """The directory that was given, else the user's own, else the built-in one."""
    if given is not None:
        return given
    from powerccl.commandline.config import read_config, runs_dir

    return runs_dir(read_config())


# Of `powerccl run`, which a user's file that is broken must not stop.
given_runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of run folders.  [default: that of `powerccl config`, else runs]",
)
# Of the verbs that find runs by name.
runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    callback=_own,
    metavar="DIR",
    help="Directory of run folders.  [default: that of `powerccl config`, else runs]",
)


def last_runs(runs_dir: Path) -> list[Path]:
    """Run folders in `runs_dir`, the one that started last first."""
    from powerccl.commandline.run_index import run_rows

    return [runs_dir / row.folder for row in run_rows(runs_dir)]


def find_run(name: str, runs_dir: Path, quiet: bool = False, files: bool = False) -> Path:
    """The run folder that a user names; unless `quiet`, stderr says which it is where the name is no path.

    `name` is a path, a folder in `runs_dir`, `latest`, or the name of a run. A prefix of a folder's or of a run's name
    will do if it is unique. Of several runs of one name it is the latest; without a name, the latest of all. `files`:
    it may also be a file, here or in `runs_dir`.

    Raises:
        PowercclError: there is none, or several begin with `name`.
    """
    path, is_path = Path(name), "/" in name or not name.strip(".")
    if name and path.is_dir() and (is_path or (path / RUN_FILE).exists()):
        return path
    if name and (runs_dir / name).is_dir():
        return runs_dir / name
    if files and (file := next((each for each in (path, runs_dir / name) if each.is_file()), None)):
        return file
    if name in ("", LATEST):
        folder, which = _latest(name, runs_dir), f"the last run of {runs_dir}/"
    else:
        from powerccl.commandline.run_index import run_rows

        rows = [] if is_path else run_rows(runs_dir)
        row = _named(name, rows)
        if row is None and path.is_dir():  # of a job without run.json; the verb says if it is none
            return path
        if row is None:
            raise _no_run(f"no run {'and no file ' * files}{name}", name, runs_dir, rows)
        folder, which = runs_dir / row.folder, f"the last run {row.name} of {runs_dir}/"
    if not quiet:
        from powerccl.commandline.output import say

        say(f"{which}: {folder.name}")
    return folder


def _latest(name: str, runs_dir: Path) -> Path:
    if last := last_runs(runs_dir):
        return last[0]
    raise PowercclError(
        f"no run is named, and {runs_dir}/ has none" if not name else f"{runs_dir}/ has no run",
        "name a run folder, or record one: powerccl run -- COMMAND",
    )


def _named(name: str, rows: list[RunRow]) -> RunRow | None:
    """The row of a name or of a unique prefix; None: nothing begins with it. `rows`: the latest first.

    Raises:
        PowercclError: runs of several names, or several folders, begin with it.
    """
    exact = next((row for row in rows if row.name == name), None)
    if exact:
        return exact
    matches: dict[str, RunRow] = {}
    for row in rows:
        if row.folder.startswith(name):
            matches.setdefault(row.folder, row)
        elif row.name.startswith(name):
            matches.setdefault(f"/{row.name}", row)  # the latest of its name
    if len(matches) > 1:
        candidates = [row.folder if not key.startswith("/") else row.name for key, row in matches.items()]
        more = f" and {len(candidates) - MOST_LISTED:,} more" if len(candidates) > MOST_LISTED else ""
        raise PowercclError(
            f"{name} is ambiguous: {len(candidates):,} names of runs begin with it",
            f"write more of one: {', '.join(candidates[:MOST_LISTED])}{more}",
        )
    return next(iter(matches.values()), None)


def _no_run(message: str, name: str, runs_dir: Path, rows: list[RunRow]) -> PowercclError:
    near = nearest(name, dict.fromkeys(each for row in rows for each in (row.name, row.folder)))
    if near:
        return PowercclError(message, f"{near}`powerccl runs` lists all")
    last = last_runs(runs_dir)
    return PowercclError(message, f"name a run folder, such as {last[0] if last else f'{runs_dir}/…'}")


MOST_COMPLETED = 200  # words: a shell asks before it shows more than a screen of them
SHELL_SAFE = re.compile(r"[\w.@%+-]+")  # names that a shell takes without quotes


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs for a shell's completion: `latest`, names and folders in --runs-dir; paths where one is typed."""
    from click.shell_completion import CompletionItem

    from powerccl.commandline.run_index import run_rows

    before, comma, typed = incomplete.rpartition(",")  # A1,A2 of compare
    if "/" in typed:
        return complete_file(ctx, param, incomplete)
    rows = run_rows(Path(ctx.params.get("runs_dir") or "runs"))
    words = [LATEST, *(row.name for row in rows), *(row.folder for row in rows)] if rows else []
    fit = dict.fromkeys(word for word in words if word.startswith(typed) and SHELL_SAFE.fullmatch(word))
    chosen = [CompletionItem(before + comma + word) for word in list(fit)[:MOST_COMPLETED]]
    return chosen or complete_file(ctx, param, incomplete)


def complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Whatever files the shell finds."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]
