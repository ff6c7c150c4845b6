# SPDX-License-Identifier: Apache-2.0
"""powerccl-bench in the terminal: its lines become tables, and the clocks that it asks for are leased."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from powerccl.bench.clocks import SweptClocks
from powerccl.bench.tables import Tables
from powerccl.errors import PowercclError
from powerccl.launch.child import run_child, start_thread
from powerccl.launch.native import NativeFiles
from powerccl.launch.plan import decide_clocks

_LOOK_S = 0.2  # how soon the thread that attends to clocks notices the program's end
_DRAIN_S = 5.0  # after the program's end, for lines of processes that it has left behind
_CLOCKS = ("--clock", "--clocks")
_GPUS = ("-g", "--ngpus", "--gpus")


def measure(
    native: NativeFiles,
    program: list[str],
    options: list[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> int:
    """Run `program` with these options to its end, print its tables, and return its exit code as a shell gives it.

    Two options are not the program's: `--json-lines -` prints its lines, and `--set-clocks` is consent to set clocks.

    Raises:
        ChildNotStartedError: it could not be executed.
        PowercclError: the clocks cannot be leased.
    """
    rest, as_lines = _without(options, "--json-lines", "-")
    set_clocks = "--set-clocks" in rest
    rest = [word for word in rest if word != "--set-clocks"]
    with contextlib.ExitStack() as stack:
        # Behind the first word: an option at the end that lacks its value must not take one of these for it.
        rest[1:1] = stack.enter_context(_leased(native, rest, environment, set_clocks, say))
        printed = _Printed() if as_lines else stack.enter_context(_tables())
        code = run_child([*program, *rest], environment, say=say).code
    # Whether the program itself has noticed depends on what it had left to write.
    if isinstance(printed.failed, BrokenPipeError):
        return code or 128 + signal.SIGPIPE
    if printed.failed:
        say(f"cannot print the tables: {printed.failed}")
        return code or 1
    return code


def _without(options: list[str], name: str, value: str) -> tuple[list[str], bool]:
    """The options less this one with this value, and whether it was among them."""
    rest = [word for word in options if word != f"{name}={value}"]
    for place, pair in enumerate(pairwise(rest)):
        if pair == (name, value):
            rest[place : place + 2] = []
            break
    return rest, len(rest) < len(options)


def _value(options: list[str], names: tuple[str, ...]) -> str | None:
    """The value of the option that has one of these names; None if it was not given."""
    for place, word in enumerate(options):
        name, _, value = word.partition("=")
        if name in names:
            return value or "".join(options[place + 1 : place + 2])
    return None


@contextlib.contextmanager
def _leased(
    native: NativeFiles,
    options: list[str],
    environment: Mapping[str, str],
    set_clocks: bool,
    say: Callable[[str], None],
) -> Iterator[list[str]]:
    """Hold leases on the GPUs while the program runs, if it may set clocks. Gives the options that tell it so."""
    emulated = bool(environment.get("POWERCCL_EMULATOR_SOCKET"))
    mode, why = decide_clocks("per-call", emulated, set_clocks, environment)
    if _value(options, _CLOCKS) is None or mode != "lease":
        if set_clocks and why:
            say(why)
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="powerccl-bench-") as folder, contextlib.ExitStack() as stack:
        asked = _value(options, _GPUS) or ""
        gpus = int(asked) if asked.isdecimal() else 0  # anything else the program refuses
        clocks = SweptClocks(native, Path(folder), environment, emulated, say, gpus)
        stack.callback(clocks.close)
        if clocks.dry:
            say("powerccld on this host sets no clocks (it runs dry)")
            clocks.release()
            yield []
            return
        over = threading.Event()
        with clocks.connect_bench() as program_socket:
            os.set_inheritable(program_socket.fileno(), True)
            thread = start_thread(partial(_attend, clocks, over, say), "clocks")
            stack.callback(thread.join)
            stack.callback(over.set)
            yield ["--clock-socket", str(program_socket.fileno())]


def _attend(clocks: SweptClocks, over: threading.Event, say: Callable[[str], None]) -> None:
    """Set the clocks that the program asks for. It ends when powerccld no longer answers."""
    try:
        while not over.is_set():
            clocks.attend(_LOOK_S)
    except PowercclError as error:
        say(f"lost control of the clocks: {error}")
        clocks.release()


@dataclass
class _Printed:
    """What became of the tables."""

    failed: OSError | None = None


@contextlib.contextmanager
def _tables() -> Iterator[_Printed]:
    """Print tables of what processes that start meanwhile write to standard output."""
    shown = os.dup(1)
    lines, written = os.pipe()
    os.dup2(written, 1)
    os.close(written)
    printed = _Printed()
    thread = start_thread(partial(_print, lines, shown, printed), "tables")
    try:
        yield printed
    finally:
        os.dup2(shown, 1)
        thread.join(_DRAIN_S)
        os.close(shown)


def _print(lines: int, shown: int, printed: _Printed) -> None:
    tables = Tables()
    # A reader that goes away ends this. The program notices that its lines have no reader, and ends too.
    try:
        with open(lines, "rb") as source, open(shown, "wb", closefd=False) as target:
            for line in source:
                target.write(tables.feed(line))
                target.flush()
    except OSError as error:
        printed.failed = error
