# SPDX-License-Identifier: Apache-2.0
"""The command line: one file a verb; a verb's module is imported when it is used.

Exit codes: 0 done; 1 something the user can mend (`error:` and `hint:` say how); 2 a wrong command line; 70 a fault of
ours. A verb of several runs shows the complete ones if some of them failed, names those, and ends with 1.
`powerccl run` and `powerccl bench` end with the exit code of what they started. If signal n ended it, they end with
128 + n. If it could not be found or executed, they end with 127 or 126, like a shell. If `powerccl run` cannot start
the job for another reason than a wrong command line, it ends with 125. `powerccl compare --fail-above` ends with 3 if
B needs too much energy. docs/reference/commands.md says why.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import io
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click

from powerccl import __version__
from powerccl.commandline.extras import extra_of, not_installed
from powerccl.commandline.output import fail, flush_output, say
from powerccl.errors import FAILED, FAULT, NOT_STARTED, USAGE, JobBegunError, PowercclError, choose, one_line

# Where each verb lives: features have their own; the others put several rooms together.
VERBS = {
    "run": "powerccl.commands.run",
    "demo": "powerccl.demo.command",
    "profile": "powerccl.commands.profile",
    "prove": "powerccl.prove.command",
    "whatif": "powerccl.commands.whatif",
    "runs": "powerccl.runs.command",
    "report": "powerccl.commands.report",
    "compare": "powerccl.compare.command",
    "tune": "powerccl.tune.command",
    "study": "powerccl.study.command",
    "collect": "powerccl.commands.collect",
    "index": "powerccl.commands.index",
    "fleet": "powerccl.commands.fleet",
    "top": "powerccl.live.top_command",
    "export": "powerccl.live.export_command",
    "clocks": "powerccl.commands.clocks",
    "config": "powerccl.commands.config",
    "doctor": "powerccl.doctor.command",
    "bench": "powerccl.commands.bench",
    "admin": "powerccl.admin.command",
    "completion": "powerccl.commands.completion",
}


class Verbs(click.Group):
    """Commands by name, imported when used, with errors and exit codes as this package promises them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, from its own module."""
        if cmd_name not in VERBS:
            return None
        gc.disable()  # modules make no garbage: looking for it takes a tenth of the start
        try:
            command: click.Command = import_module(VERBS[cmd_name]).command
        finally:
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that `args` begin with; of an unknown one, the nearest is suggested.

        Raises:
            UsageError: there is no such verb.
        """
        if not ctx.resilient_parsing:
            choose("verb", args[0], VERBS)
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run, print errors as `error:` and `hint:`, and exit."""
        extra["standalone_mode"] = False
        try:
            result = super().main(*args, **extra)
            code = result if isinstance(result, int) else 0
            _flush(code)
            gc.freeze()  # the interpreter's end would look through all modules, as long as a short job takes
            sys.exit(code)
        except PowercclError as error:
            fail(error.message, error.hint, _failed() if error.exit_code == FAILED else error.exit_code)
        except JobBegunError as error:
            _after_the_job(error)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx else "")
            sys.exit(0)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "powerccl"
            fail(error.format_message(), f"`{where} --help` lists what it takes", USAGE)
        except click.ClickException as error:
            fail(error.format_message(), code=_failed())
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        except BrokenPipeError:
            _discard_output()
            sys.exit(1)
        except ModuleNotFoundError as error:
            if extra_of(error) is None:
                raise
            fail(*not_installed(error, next((word for word in sys.argv[1:] if word in VERBS), "")), _failed())
        except OSError as error:
            if error.filename is None and error.errno in _UNWRITABLE:
                _cannot_print(error, 1)
            if error.errno == errno.ENOENT and "temporary directory" in str(error.strerror):  # as tempfile says it
                _think_of_the_job(error)
                fail(
                    "no folder takes temporary files", "make room in /tmp, or name another folder in TMPDIR", _failed()
                )
            _unexpected(error)
        except Exception as error:
            _unexpected(error)
        finally:
            _let_go_of_errors()


# What writing to a descriptor fails with; of a file that was opened by its name, the error has the name.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _failed() -> int:
    """Exit code of a failure. `powerccl run` fails only before the job begins; later the job's own code counts."""
    return NOT_STARTED if sys.argv[1:2] == ["run"] else FAILED


def _flush(code: int) -> None:
    """Have standard output written. Where that fails, end with an error, or with `code` if that is not 0."""
    try:
        flush_output()
    except BrokenPipeError:
        raise
    except OSError as error:
        _cannot_print(error, code or 1)


def _discard_output() -> None:
    """What is left to be printed goes nowhere, so that leaving does not fail again."""
    _send_nowhere(sys.stdout)


def _let_go_of_errors() -> None:
    """What standard error does not take goes nowhere: leaving with it would make Python end with code 120."""
    try:
        if sys.stderr:
            sys.stderr.flush()
    except OSError:
        _send_nowhere(sys.stderr)


def _send_nowhere(stream: TextIO | None) -> None:
    if stream:  # None: it was closed when we began
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _cannot_print(error: OSError, code: int) -> NoReturn:
    _discard_output()
    _think_of_the_job(error)
    fail(f"standard output cannot be written: {error.strerror}", code=code)


def _unexpected(error: Exception) -> NoReturn:
    """A fault of ours: a job is not to suffer from it; for the rest it ends us."""
    _trace(error)
    _think_of_the_job(error)
    _fail_unexpected(error)


def _fail_unexpected(error: BaseException) -> NoReturn:
    fail(f"unexpected: {one_line(error)}", "POWERCCL_DEBUG=1 shows where; please report it", FAULT)


def _trace(error: BaseException) -> None:
    if os.environ.get("POWERCCL_DEBUG", "0") != "0":
        import traceback

        traceback.print_exception(error)


def _after_the_job(error: JobBegunError) -> NoReturn:
    """Exit as the job did, if it has ended."""
    cause = error.__cause__ or error
    _trace(cause)
    if isinstance(cause, OSError):
        _discard_output()
    if error.code is None:
        _fail_unexpected(cause)
    with contextlib.suppress(Exception):
        say(f"{one_line(cause)}; the job has ended before")
    sys.exit(error.code)


def _think_of_the_job(error: Exception) -> None:
    """Of a fault of ours in `powerccl run -- JOB` before the job has begun: become the job."""
    arguments = sys.argv[1:]
    if arguments[:1] != ["run"]:
        return
    if "--" not in arguments or any(each.startswith("--emulate") for each in arguments[: arguments.index("--")]):
        return
    command = arguments[arguments.index("--") + 1 :]
    with contextlib.suppress(Exception):
        say(f"{one_line(error)}; the job runs unrecorded")
    with contextlib.suppress(OSError, ValueError, IndexError):
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)


# For terminals that cannot show them. Others are taken apart (é is e and an accent), or become a question mark.
_PLAIN = {
    "×": "x",
    "±": "+-",
    "µ": "u",
    "…": "...",
    "→": "->",
    "–": "-",
    "—": "-",
    "≥": ">=",
    "≤": "<=",
    "·": "*",
    "█": "#",
}


def _in_other_letters(error: UnicodeError) -> tuple[str, int]:
    """What a stream's encoding lacks, written with what it has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import unicodedata

    spelled = []
    for letter in error.object[error.start : error.end]:
        parts = _PLAIN.get(letter) or unicodedata.normalize("NFKD", letter)
        spelled.append(parts.encode("ascii", "ignore").decode() or "?")
    return "".join(spelled), error.end


def _write_what_can_be_shown() -> None:
    codecs.register_error("powerccl", _in_other_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="powerccl")


def _undo_locale_coercion() -> None:
    """Take back what Python has added to the environment where the locale is C (PEP 538): a job must not see it."""
    with contextlib.suppress(OSError):
        if "LC_CTYPE" in os.environ and b"\0LC_CTYPE=" not in b"\0" + Path("/proc/self/environ").read_bytes():
            del os.environ["LC_CTYPE"]


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="powerccl")
def cli() -> None:
    """Make distributed jobs (PyTorch over NCCL, MPI) use less energy at the same speed.

    \b
    powerccl demo                        see the savings on an emulated server
    powerccl run -- torchrun train.py    record energy and time of a job
    powerccl run -- mpiexec -n 4 ./app   the same for MPI; waiting ranks sleep
    powerccl whatif RUN                  predict what clock policies would save
    powerccl runs                        list the recorded runs
    powerccl report RUN --html FILE      show where time and energy went
    powerccl compare A B                 compare runs or sweeps
    powerccl top                         watch the jobs on this node
    powerccl fleet                       ask all recorded runs
    powerccl tune --from RUN             tune NCCL for the collectives of a run
    powerccl doctor                      check this machine
    """  # noqa: D301 - click's mark for text that is not to be wrapped


def main() -> NoReturn:
    """Entry point of the `powerccl` command."""
    try:
        _undo_locale_coercion()
        _write_what_can_be_shown()
        cli.main(prog_name="powerccl")
    except Exception as error:
        _unexpected(error)
