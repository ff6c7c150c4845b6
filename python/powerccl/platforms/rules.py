# SPDX-License-Identifier: Apache-2.0
"""The tuner table: which algorithm, protocol and channels a collective gets (docs/reference/tuner-table.md).

The format is that of the CSV of NVIDIA's example tuner plugin. What is taken and refused here is what the plugin in
native/job/adapters/nccl/tuner_table.cpp takes and refuses; tests/native/adapters/tuner_cases.txt holds both to it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

import msgspec

from powerccl.errors import PowercclError

ANY = -1
NO_LIMIT = 2**64 - 1  # bytes; written as -1
MAX_RULES, MAX_LINE_BYTES, MAX_TEXT_BYTES, MAX_CHANNELS = 256, 255, 128 * 1024, 64
MAX_COUNT = 2**31 - 1

COLUMNS = (
    "collective_type",
    "min_bytes",
    "max_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nNodes",
    "nRanks",
    "numPipeOps",
    "regBuff",
)
LEAST_COLUMNS = 8
PATTERNS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")  # NCCL asks about no other
ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
PROTOCOLS = ("ll", "ll128", "simple")

_COLLECTIVES = {pattern.replace("_", ""): pattern for pattern in PATTERNS}  # NCCL's spelling -> ours
_BLANK = " \t\r"
_WHOLE = re.compile(r"[0-9]+")
_COMMENT_WIDTH = 100  # NVIDIA's plugin takes what is past 255 characters for another line
HINT = "the format is in docs/reference/tuner-table.md"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What collectives of min_bytes <= size <= max_bytes get where the last four match; ANY matches everything.

    `channels`: ANY leaves them to NCCL. `nodes` and `ranks` are the communicator's; `pipe_ops`: collectives of
    a group for each of the communicator's channels; `registered`: whether the rank's buffers are.
    """

    pattern: str
    algorithm: str
    protocol: str
    min_bytes: int = 0
    max_bytes: int = NO_LIMIT
    channels: int = ANY
    nodes: int = ANY
    ranks: int = ANY
    pipe_ops: int = ANY
    registered: int = ANY


class _LineError(Exception):
    """Why a line is none."""


def read_rules(text: str, source: str = "tuner table") -> list[Rule]:
    """The rules of a table, in its order; `source` names it in messages.

    Raises:
        PowercclError: a line is wrong, or there are too many; then the plugin takes none of them.
    """
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise PowercclError(f"{source}: larger than {MAX_TEXT_BYTES} bytes", HINT)
    rules: list[Rule] = []
    begun = False
    for number, raw in enumerate(text.split("\n" if "\n" in text else ";"), 1):
        line = raw.strip(_BLANK)
        if not line or line.startswith("#"):
            continue
        try:
            fields = _fields(line)
            if begun or fields[0] != COLUMNS[0]:  # else a spreadsheet's first line
                if len(rules) == MAX_RULES:
                    raise _LineError(f"more than {MAX_RULES} rules")
                rules.append(_rule(fields))
        except _LineError as error:
            raise PowercclError(f"{source}, line {number}: {error}", HINT) from None
        begun = True
    return rules


def write_rules(rules: Iterable[Rule], header_comments: Sequence[str] = ()) -> str:
    """A table with these rules below these comments, as a file: NVIDIA's plugin reads it, too.

    Raises:
        PowercclError: a rule has what no table may have, or there are too many.
    """
    lines: list[str] = []
    for comment in header_comments:
        for part in comment.splitlines():
            lines += [f"# {line}".rstrip() for line in textwrap.wrap(part, _COMMENT_WIDTH) or [""]]
    lines.append(f"# {','.join(COLUMNS)}")
    written = list(map(_line, rules))
    return _checked("".join(f"{line}\n" for line in [*lines, *written]), len(written))


def inline_rules(rules: Iterable[Rule]) -> str:
    """The same without comments or newlines, for the environment: some launchers lose what follows a newline.

    Raises:
        PowercclError: as write_rules.
    """
    written = list(map(_line, rules))
    return _checked(";".join(written), len(written))


def _checked(text: str, count: int) -> str:
    if len(read_rules(text, "tuner table to be written")) != count:
        raise PowercclError("tuner table to be written: a rule contains a newline", HINT)
    return text


def _line(rule: Rule) -> str:
    collective = next((word for word, pattern in _COLLECTIVES.items() if pattern == rule.pattern), rule.pattern)
    most = ANY if rule.max_bytes == NO_LIMIT else rule.max_bytes
    fields = (collective, rule.min_bytes, most, rule.algorithm, rule.protocol, rule.channels)
    return ",".join(map(str, (*fields, rule.nodes, rule.ranks, rule.pipe_ops, rule.registered)))


def _fields(line: str) -> list[str]:
    if len(line.encode(errors="replace")) > MAX_LINE_BYTES:
        raise _LineError(f"longer than {MAX_LINE_BYTES} characters")
    fields = [field.strip(_BLANK) for field in line.split(",")]
    if not LEAST_COLUMNS <= len(fields) <= len(COLUMNS):
        count = f"{len(fields)} fields; a rule has {len(COLUMNS)}, of which the last 2 may be missing"
        raise _LineError(count)
    return fields


def _rule(fields: list[str]) -> Rule:
    collective, least, most, algorithm, protocol, channels, nodes, ranks, *optional = fields
    pipe_ops, registered = (*optional, "-1", "-1")[:2]
    min_bytes = _whole("min_bytes", least, 0, NO_LIMIT)
    max_bytes = NO_LIMIT if most == "-1" else _whole("max_bytes", most, 0, NO_LIMIT, "-1 or ")
    if max_bytes < min_bytes:
        raise _LineError("max_bytes is below min_bytes")
    return Rule(
        pattern=_COLLECTIVES[_word("collective", collective, tuple(_COLLECTIVES))],
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        algorithm=_word("algorithm", algorithm, ALGORITHMS),
        protocol=_word("protocol", protocol, PROTOCOLS),
        channels=_number("channels", channels, 0, MAX_CHANNELS) or ANY,
        nodes=_number("nNodes", nodes, 1, MAX_COUNT),
        ranks=_number("nRanks", ranks, 1, MAX_COUNT),
        pipe_ops=_number("numPipeOps", pipe_ops, 1, MAX_COUNT),
        registered=_number("regBuff", registered, 0, 1),
    )


def _word(what: str, text: str, words: tuple[str, ...]) -> str:
    if text not in words:
        raise _LineError(f"unknown {what} '{text}'; known: {', '.join(words)}")
    return text


def _number(what: str, text: str, least: int, most: int) -> int:
    return ANY if text == "-1" else _whole(what, text, least, most, "-1 or ")


def _whole(what: str, text: str, least: int, most: int, otherwise: str = "") -> int:
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise _LineError(f"{what} must be {otherwise}a whole number from {least} to {most}, not '{text}'")
    return int(text)
