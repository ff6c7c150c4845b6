# SPDX-License-Identifier: Apache-2.0
"""Which machine was measured: what a file, a folder or a search that goes on later is tied to.

powerccl-bench names the machine in each header and refuses to continue another machine's file
(check_same_machine in native/testbed/bench/report.h). Verbs that keep more than such a file keep the machine beside,
and compare it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from powerccl.errors import PowercclError

# Fields of powerccl-bench's header, and how messages call them.
FIELDS = {
    "host": "host",
    "gpu_models": "GPUs",
    "nvlinks": "NVLinks per GPU",
    "driver": "driver",
    "nccl_version": "NCCL",
    "nccl_variables": "NCCL's variables",
    "emulated_platform": "emulated platform",
}
HOST = FIELDS["host"]


def machine_of(header: Mapping[str, Any]) -> dict[str, str]:
    """The machine that powerccl-bench names in a header, by the names that messages use."""
    fields = {label: header.get(field) for field, label in FIELDS.items()}
    return {label: "not known" if value is None else str(value) or "none" for label, value in fields.items()}


def refuse_other(what: str, kept: Mapping[str, str] | None, here: Mapping[str, str], hint: str) -> None:
    """Refuse to go on with `what`, which holds measurements of `kept`, where `here` is anything else.

    Raises:
        PowercclError: it names all fields that differ.
    """
    if kept is None:
        raise PowercclError(f"{what} names no machine: an older powerccl made it", hint)
    names = dict.fromkeys([*kept, *here])
    differ = [name for name in names if kept.get(name) != here.get(name)]
    if differ:
        words = [f"{name}: {kept.get(name, 'none')} there, {here.get(name, 'none')} here" for name in differ]
        kind = "from another machine" if any(name in FIELDS.values() for name in differ) else "from other settings"
        raise PowercclError(f"{what} is {kind} ({'; '.join(words)})", hint)
