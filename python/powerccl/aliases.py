# SPDX-License-Identifier: Apache-2.0
"""Names that users typed before 0.1: they work for one release, and one line on stderr gives the new name.

The tables below are the only list of them in Python: `commands.old_options` makes hidden options from the first. The
native runtime accepts the old variables and policies too, silently (native/base/environment.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from powerccl.errors import PowercclError

# Verb -> old option -> new option.
OPTIONS = {
    "run": {"--slowdown": "--max-slowdown", "--budget": "--mpi-max-delay"},
    "whatif": {"--budget": "--max-slowdown"},
}
VARIABLES = {"POWERCCL_BUDGET": "POWERCCL_MAX_SLOWDOWN", "POWERCCL_MPI_BUDGET": "POWERCCL_MPI_MAX_DELAY"}
POLICIES = {"percall": "per-call", "exposed": "auto", "fixed": "auto", "phase": "auto", "job": "auto"}

Say = Callable[[str], None]

_said: set[str] = set()  # a study records several jobs in one process, and names each old name once


def current_policy(name: str) -> str:
    """The present name of a policy in a file. Policies that no longer exist keep theirs: `auto` is another one."""
    return "per-call" if name == "percall" else name


def figure_policy(name: str) -> str:
    """The policy's name in names of figures (`demo.opt.percall.slowdown_pct`): the old one, so that series go on."""
    return "percall" if name == "per-call" else name


def figure_name(name: str) -> str:
    """A figure's name (`per-call.slowdown_pct`) with the policy as kept figures have it."""
    policy, dot, rest = name.partition(".")
    return f"{figure_policy(policy)}{dot}{rest}"


def current_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """A recorded environment with the present names of variables; where it has both, the new one counts."""
    found = {VARIABLES.get(name, name): value for name, value in environment.items()}
    return {**found, **{name: environment[name] for name in VARIABLES.values() if name in environment}}


def policy(name: str, say: Say) -> str:
    """The policy that runs where the user typed `name`; says so if that was an old name."""
    current = POLICIES.get(name, name)
    if current != name:
        announce(f"policy {name}", current, say)
    return current


def variables(environment: Mapping[str, str], say: Say) -> dict[str, str]:
    """The user's environment with the present names of variables; says which old ones it had.

    Raises:
        PowercclError: it has an old and a new name with different values.
    """
    for old, new in VARIABLES.items():
        value = environment.get(old)
        if not value:  # the runtime takes an empty variable for an unset one
            continue
        if environment.get(new, value) not in ("", value):
            raise PowercclError(
                f"{old}={value} and {new}={environment[new]} differ, and both name the same setting",
                f"unset {old}: it is the old name of {new}",
            )
        announce(old, new, say)
    # An empty new name must not hide the old one's value.
    return current_variables({name: value for name, value in environment.items() if value or name not in _EITHER})


_EITHER = {*VARIABLES, *VARIABLES.values()}


def announce(old: str, new: str, say: Say) -> None:
    """Give the new name of what the user typed, once a process."""
    if old not in _said:
        _said.add(old)
        say(f"{old} is now {new}; the old name works in 0.1 and goes in 0.2")
