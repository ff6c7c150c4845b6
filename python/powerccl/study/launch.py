# SPDX-License-Identifier: Apache-2.0
"""`powerccl study scaling`: a command recorded with each world size and kind of link, and the sweep beside it.

Everything is kept in one folder: `study.json`, and for each world a run folder, the job's own file and the sweep's
replies. `study.json` says what was asked, of which machine, and which run folder is whose. What is there is not run
again; what failed is.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from powerccl.bench.server import BenchServer
from powerccl.errors import PowercclError, UsageError, choose
from powerccl.files import read_bytes, read_json, write_whole
from powerccl.launch.child import ChildNotStartedError
from powerccl.launch.emulation import Emulation, emulated_platform, platform_name
from powerccl.launch.native import BENCH, NativeFiles, find_native
from powerccl.launch.record import record
from powerccl.launch.request import Request
from powerccl.machine import machine_of, refuse_other
from powerccl.quantities import plural
from powerccl.study import worlds as of_worlds

STUDY_FILE = "study.json"
STUDY_SCHEMA = 1
LINKS: dict[str, dict[str, str]] = {
    "default": {},  # whatever NCCL chooses
    "nvlink": {"NCCL_P2P_LEVEL": "NVL"},  # GPUs see each other over NVLink or not at all
    "shm": {"NCCL_P2P_DISABLE": "1"},  # through the host's memory
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"},  # stands in for a network
}
GPUS, JOB_FILE = "{gpus}", "{json}"
MIB = 1 << 20
PUBLISHED_SIZES = tuple(size * MIB for size in range(16, 193, 16))  # of study E's table of all-reduces
SWEEP_ITERATIONS, SWEEP_WARMUP, SWEEP_LEAST_S = 5, 2, 0.2
SWEEP_LIMIT_S = 300
MACHINE_LIMIT_S = 20.0  # for powerccl-bench to name the machine
LAST_WORDS = 12  # lines of a failed job's output


class Asked(msgspec.Struct, kw_only=True):
    """The study; what of it may not change when it goes on is what `same` compares."""

    command: list[str]
    gpus: list[int]
    links: list[str]
    emulate: list[str] = []  # platforms; each world runs on the first that has enough GPUs
    tokens: int | None = None  # of an iteration, a GPU
    all_reduce: bool = True  # sweep study E's sizes, too


class WorldFailedError(Exception):
    """The job failed at one world size; says why, and where its output is."""


class Study(msgspec.Struct, kw_only=True):
    """`study.json`. `runs` names the run folder of each finished world, `<links>-<gpus>`; `failed`, why one has none.

    `machine`: of each emulated platform by its name, of real GPUs by "". None: an older version made the study.
    """

    schema: int = STUDY_SCHEMA
    asked: Asked
    host: str = ""
    started_at: str = ""
    runs: dict[str, str] = {}
    failed: dict[str, str] = {}
    machine: dict[str, dict[str, str]] | None = None


def parse_links(text: str) -> list[str]:
    """Kinds of link of `--links`.

    Raises:
        UsageError: one of them is not known, or there is none.
    """
    names = [each.strip() for each in text.split(",") if each.strip()]
    return list(dict.fromkeys(choose("link", each, LINKS) for each in names or [""]))


def parse_gpus(text: str) -> list[int]:
    """World sizes of `--gpus`, rising.

    Raises:
        PowercclError: they are no numbers above 0.
    """
    try:
        sizes = sorted({int(each) for each in text.split(",")})
    except ValueError as error:
        raise UsageError(f"--gpus {text}: not a list of world sizes", "list them, such as 1,2,4,8") from error
    if sizes[0] < 1:
        raise UsageError(f"--gpus {text}: a world has at least one GPU", "list world sizes, such as 1,2,4,8")
    return sizes


def run_study(asked: Asked, folder: Path, say: Callable[[str], None], sweep: bool = True, nccl: str = "") -> Study:
    """Run what is not there yet, one world after another. `nccl`: the libnccl.so.2 to sweep.

    A world that fails is noted in `failed`, and the others run.

    Raises:
        PowercclError: something to mend before any world can run; what has run is kept, and the same command goes on.
    """
    _check(asked)
    native = find_native()
    platforms = _platforms(native, asked)
    study = _open(native, asked, platforms, folder, nccl)
    for links in asked.links:
        for gpus in asked.gpus:
            name = f"{links}-{gpus}"
            platform = _platform_for(platforms, gpus)
            alone = next((f"{other}-1" for other in asked.links if f"{other}-1" in study.runs), "") if gpus == 1 else ""
            if name not in study.runs and alone:  # one GPU has no links: its run is of all kinds
                study.runs[name] = study.runs[alone]
                if (folder / f"{alone}.job.json").exists():
                    shutil.copyfile(folder / f"{alone}.job.json", folder / f"{name}.job.json")
                _save(study, folder)
            if name not in study.runs:
                say(f"{_words(gpus, links, platform, asked)}: running")
                study.failed.pop(name, None)
                try:
                    study.runs[name] = _run(native, asked, folder, gpus, links, platform, say)
                except WorldFailedError as error:  # the other worlds may do well: it is said, and shown with them
                    study.failed[name] = str(error)
                    say(f"{_words(gpus, links, platform, asked)}: {error}")
                _save(study, folder)
            if name not in study.runs:
                continue
            if sweep and gpus > 1 and not (folder / f"{name}.sweep.jsonl").exists():
                world = _world(study, folder, gpus, links, platform)
                sizes = of_worlds.to_sweep(world)
                if not sizes:  # what the job communicated by is not NCCL: there is nothing to set beside it
                    continue
                sizes += [("all_reduce", size) for size in PUBLISHED_SIZES if asked.all_reduce]
                say(f"{_words(gpus, links, platform, asked)}: sweep of {plural(len(sizes), 'size')}")
                try:
                    _sweep(native, folder / f"{name}.sweep.jsonl", gpus, links, platform, sizes, nccl)
                except PowercclError as error:  # worlds are dearer than sweeps: go on, and print what there is
                    say(f"{error.message} ({error.hint})")
    return study


def read_study(folder: Path) -> Study:
    """The study in a folder.

    Raises:
        PowercclError: there is none, or another version's.
    """
    path = folder / STUDY_FILE
    try:
        study = read_json(path, Study)
    except OSError as error:
        raise PowercclError(f"no study in {folder}", "name the folder of --out") from error
    except msgspec.MsgspecError as error:
        raise PowercclError(f"{path}: {error}", "run the study again in another folder") from error
    if study.schema > STUDY_SCHEMA:
        raise PowercclError(f"{path}: schema {study.schema}; this powerccl reads {STUDY_SCHEMA}", "update powerccl")
    return study


def findings(study: Study, folder: Path) -> of_worlds.ScalingFindings:
    """What the worlds that have run come to."""
    worlds, missing = [], []
    for links in study.asked.links:
        for gpus in study.asked.gpus:
            name = f"{links}-{gpus}"
            if name not in study.runs:
                if name not in study.failed:
                    missing.append(name)
                continue
            world = _world(study, folder, gpus, links, None)
            world.sweep = of_worlds.read_sweep(folder / f"{name}.sweep.jsonl")
            of_worlds.beside_sweep(world)
            worlds.append(world)
    of_worlds.scale(worlds)
    failed = {name: why for name, why in study.failed.items() if name not in study.runs}
    notes = [f"{name} failed: {why}" for name, why in failed.items()]
    notes += [f"not run yet: {', '.join(missing)}"] if missing else []
    return of_worlds.ScalingFindings(
        command=words_of(study.asked.command),
        started_at=study.started_at,
        host=study.host,
        worlds=worlds,
        failed=failed,
        notes=notes,
    )


def words_of(command: list[str]) -> str:
    """A command as it was typed: the braces of {gpus} and {json} need no quotes."""
    return " ".join(word if word in (GPUS, JOB_FILE) else shlex.quote(word) for word in command)


def _check(asked: Asked) -> None:
    if not asked.command:
        raise UsageError(
            "no command to run",
            f"write it after `--`, with {GPUS} for the world size: -- torchrun --nproc-per-node {GPUS} train.py",
        )
    if len(asked.gpus) > 1 and not any(GPUS in word for word in asked.command):
        raise UsageError(
            f"the command is the same for every world size: {GPUS} is not in it",
            f"write {GPUS} where the number of GPUs belongs: torchrun --nproc-per-node {GPUS} train.py",
        )


def _platforms(native: NativeFiles, asked: Asked) -> list[tuple[int, str, Path]]:
    """(GPUs, name, file) of the emulated platforms, as they were named.

    Raises:
        PowercclError: one is not known, or none has enough GPUs.
    """
    platforms = []
    for name in asked.emulate:
        path = emulated_platform(native, name)
        platforms.append((_gpus_of(path), name, path))
    most = max((gpus for gpus, _, _ in platforms), default=asked.gpus[-1])
    if most < asked.gpus[-1]:
        raise UsageError(
            f"{plural(asked.gpus[-1], 'GPU')} needed, but the emulated platforms have at most {most}",
            "add another platform after a comma: --emulate a100x4,a100x8-two-nodes",
        )
    if len(asked.links) > 1 and platforms:
        raise UsageError(
            "--links does not apply to emulated platforms",
            "emulate a platform with other links: --emulate h200x4-sockets",
        )
    return platforms


def _gpus_of(path: Path) -> int:
    file, _, changes = str(path).partition(".conf:")
    text = read_bytes(f"{file}.conf" if changes else file).decode("utf-8", "replace")
    for line in [*changes.split(","), *text.splitlines()]:
        key, _, value = line.partition("#")[0].partition("=")
        if key.strip() == "gpus":
            return int(value)
    return 0


def _platform_for(platforms: list[tuple[int, str, Path]], gpus: int) -> tuple[str, Path] | None:
    return next(((name, path) for count, name, path in platforms if count >= gpus), None)


def _words(gpus: int, links: str, platform: tuple[str, Path] | None, asked: Asked) -> str:
    where = f"emulated {platform_name(platform[0])}" if platform else "" if len(asked.links) == 1 else links
    return plural(gpus, "GPU") + (f", {where}" if where else "")


def _machine(native: NativeFiles, platforms: list[tuple[int, str, Path]], nccl: str) -> dict[str, dict[str, str]]:
    """The machine of each platform, as powerccl-bench names it; the host alone where no GPU can be used."""
    machines = {}
    served: list[tuple[str, Path | None]] = [(name, path) for _, name, path in platforms]
    for name, path in served or [("", None)]:
        with contextlib.ExitStack() as stack:
            environment: Mapping[str, str] = os.environ
            if path:
                environment = stack.enter_context(Emulation(native, path, None)).environment(environment)
            server = BenchServer(native, environment, 0, MACHINE_LIMIT_S, Path(os.devnull), nccl)
            try:
                machines[name] = machine_of(stack.enter_context(server).about)
            except PowercclError:
                machines[name] = machine_of({"host": os.uname().nodename})
    return machines


def _open(native: NativeFiles, asked: Asked, platforms: list[tuple[int, str, Path]], folder: Path, nccl: str) -> Study:
    """The study that goes on, or a new one.

    Raises:
        PowercclError: another study is there, or one of another machine, or the folder cannot be written.
    """
    if (folder / STUDY_FILE).exists():
        study = read_study(folder)
        before = study.asked
        same = (before.command, before.emulate, before.tokens) == (asked.command, asked.emulate, asked.tokens)
        if not same:
            raise PowercclError(
                f"{folder} holds another study: {words_of(before.command)}",
                f"name another folder with --out, or print that study: powerccl study scaling --from {folder}",
            )
        hint = f"name another folder with --out, or print that study: powerccl study scaling --from {folder}"
        here = _machine(native, platforms, nccl)
        for platform, machine in here.items():
            refuse_other(f"the study in {folder}", (study.machine or {}).get(platform), machine, hint)
        # More worlds may be asked for than before; those that are there stay.
        asked.gpus = sorted({*before.gpus, *asked.gpus})
        asked.links = list(dict.fromkeys([*before.links, *asked.links]))
        study.asked = asked
    else:
        study = Study(asked=asked, host=os.uname().nodename, started_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        _save(study, folder)
        study.machine = _machine(native, platforms, nccl)
    _save(study, folder)
    return study


def _save(study: Study, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / STUDY_FILE, msgspec.json.format(msgspec.json.encode(study), indent=1) + b"\n")
    except OSError as error:
        raise PowercclError(f"cannot write in {folder}: {error.strerror}", "name another folder with --out") from error


def _run(
    native: NativeFiles,
    asked: Asked,
    folder: Path,
    gpus: int,
    links: str,
    platform: tuple[str, Path] | None,
    say: Callable[[str], None],
) -> str:
    """The run folder's name of this world.

    Raises:
        PowercclError: the job could not be started.
        WorldFailedError: it failed.
        SystemExit: it was interrupted, and so are we.
    """
    job_file = folder / f"{links}-{gpus}.job.json"
    job_file.unlink(missing_ok=True)
    command = [word.replace(GPUS, str(gpus)).replace(JOB_FILE, str(job_file.resolve())) for word in asked.command]
    if command[0] == "powerccl-bench" and shutil.which(command[0]) is None:
        command[0] = str(native.path(BENCH))
    request = Request(
        command=command,
        policy="observe",
        emulate=platform[0] if platform else "",
        name=f"{links}-{gpus}",
        runs=folder,
        environment=LINKS[links],
        output="output.log",
    )
    words: list[str] = []
    try:
        done = record(request, words.append)
    except ChildNotStartedError as error:
        raise PowercclError(str(error), "check the command's name and PATH") from error
    if done.folder is None:
        raise WorldFailedError("; ".join(["nothing was recorded", *words]))
    if done.ended.code - 128 in (signal.SIGINT, signal.SIGTERM):
        say(f"interrupted; run the same command to continue in {folder}")
        raise SystemExit(done.ended.code)
    if done.ended.code:
        output = done.folder / "output.log"
        last = output.read_text(errors="replace").splitlines()[-LAST_WORDS:] if output.exists() else []
        say("\n".join([f"on {plural(gpus, 'GPU')} the job ended with exit code {done.ended.code}", *last]))
        raise WorldFailedError(f"exit code {done.ended.code}, see {output}")
    return done.folder.name


def _world(study: Study, folder: Path, gpus: int, links: str, platform: tuple[str, Path] | None) -> of_worlds.World:
    from powerccl.traces.folder import read_run

    name = f"{links}-{gpus}"
    run_folder = folder / study.runs[name]
    emulated = platform_name(platform[0]) if platform else ""
    if not run_folder.is_dir():
        raise PowercclError(
            f"no run folder {run_folder}", f"remove `{name}` from {folder / STUDY_FILE} to run it again"
        )
    if not platform:
        info = read_run(run_folder).info
        emulated = info.emulated if info else ""
    world = of_worlds.World(gpus=gpus, links=links, emulated=emulated, folder=run_folder.name)
    return of_worlds.examine(world, run_folder, folder / f"{name}.job.json", study.asked.tokens)


def _sweep(
    native: NativeFiles,
    out: Path,
    gpus: int,
    links: str,
    platform: tuple[str, Path] | None,
    sizes: list[tuple[str, int]],
    nccl: str,
) -> None:
    """powerccl-bench on the same GPUs over the same links; its replies, one a line, into `out`.

    Raises:
        PowercclError: it failed.
    """
    how = f"iterations={SWEEP_ITERATIONS} warmup={SWEEP_WARMUP} min_time_s={SWEEP_LEAST_S} dtype=float16 check=0"
    requests = [f"measure {pattern} {size} {how} energy=1" for pattern, size in dict.fromkeys(sizes)]
    lines = "\n".join(["open 1", *requests, "close", "quit", ""])
    command = [str(native.path(BENCH)), "serve", "-g", str(gpus), *(["--nccl", nccl] if nccl else [])]
    environment: Mapping[str, str] = {**os.environ, **LINKS[links]}
    if platform:
        with Emulation(native, platform[1], None) as emulation:
            done = _serve(command, lines, emulation.environment(environment))
    else:
        done = _serve(command, lines, environment)
    points = sum(1 for line in done.stdout.splitlines() if line.startswith('{"type": "point"'))
    if done.returncode or points < len(requests):
        last = "\n".join((done.stderr or done.stdout).splitlines()[-LAST_WORDS:])
        raise PowercclError(
            f"the sweep with {plural(gpus, 'GPU')} ended after {points} of {plural(len(requests), 'size')}:\n{last}",
            "run the same command to try again, or add --no-sweep",
        )
    write_whole(out, done.stdout)


def _serve(command: list[str], lines: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=lines,
            env=dict(environment),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SWEEP_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PowercclError(
            f"the sweep did not end within {SWEEP_LIMIT_S} s", "run the same command to try again, or add --no-sweep"
        ) from error
