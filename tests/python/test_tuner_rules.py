# SPDX-License-Identifier: Apache-2.0
"""The tuner table as Python reads and writes it; tests/native/adapters/tuner_table_test.cpp has the plugin's side."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerccl.errors import PowercclError
from powerccl.platforms import rules
from powerccl.platforms.rules import ANY, NO_LIMIT, Rule, inline_rules, read_rules, write_rules

CASES = Path(__file__).parents[1] / "native/adapters/tuner_cases.txt"


@dataclass(frozen=True)
class Case:
    """One of tuner_cases.txt; `number`: of rules, or of the line that is wrong."""

    name: str
    good: bool
    number: int
    text: str


def cases() -> list[Case]:
    found = []
    for part in CASES.read_text().split("\n===")[1:]:
        head, _, text = part.partition("\n")
        kind, number, name = head.split(maxsplit=2)
        # The split has taken a case's last newline; the file's own end has it still.
        text = text.rstrip("\n") if name.startswith("inline") else text.removesuffix("\n") + "\n"
        found.append(Case(name, kind == "good", int(number), text))
    return found


def random_rules(dice: random.Random, count: int) -> list[Rule]:
    """Rules of all kinds that a table may have."""
    found = []
    for _ in range(count):
        least = dice.choice([0, 1, dice.getrandbits(dice.randrange(1, 64))])
        found.append(
            Rule(
                pattern=dice.choice(rules.PATTERNS),
                algorithm=dice.choice(rules.ALGORITHMS),
                protocol=dice.choice(rules.PROTOCOLS),
                min_bytes=least,
                max_bytes=dice.choice([least, least + dice.getrandbits(40), NO_LIMIT]),
                channels=dice.choice([ANY, *range(1, 65)]),
                nodes=dice.choice([ANY, 1, 2, 2**31 - 1]),
                ranks=dice.choice([ANY, 1, 8, 2**31 - 1]),
                pipe_ops=dice.choice([ANY, 1, 4]),
                registered=dice.choice([ANY, 0, 1]),
            )
        )
    return found


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_takes_and_refuses_what_the_plugin_does(case: Case) -> None:
    if case.good:
        assert len(read_rules(case.text)) == case.number
        return
    with pytest.raises(PowercclError, match=rf"^here, line {case.number}: ") as refused:
        read_rules(case.text, "here")
    assert refused.value.hint


def test_there_are_cases_of_both_kinds() -> None:
    assert len([case for case in cases() if case.good]) >= 10
    assert len([case for case in cases() if not case.good]) >= 30


def test_every_field_is_read() -> None:
    full, open_ended = read_rules(
        "reducescatter,7,131072,collnet_chain,ll128,12,3,24,2,1\nbroadcast,0,-1,nvls_tree,simple,0,-1,-1\n"
    )
    assert full == Rule(
        pattern="reduce_scatter",
        min_bytes=7,
        max_bytes=131072,
        algorithm="collnet_chain",
        protocol="ll128",
        channels=12,
        nodes=3,
        ranks=24,
        pipe_ops=2,
        registered=1,
    )
    assert open_ended == Rule(pattern="broadcast", algorithm="nvls_tree", protocol="simple")


def test_limits_are_the_plugins() -> None:
    rule = "allreduce,0,1024,ring,ll,-1,-1,"
    assert len(read_rules((rule + "-1\n") * 256 + "# a comment is no rule\n")) == 256
    with pytest.raises(PowercclError, match="line 257: more than 256 rules"):
        read_rules((rule + "-1\n") * 257)
    assert len(read_rules(rule + " " * (255 - len(rule) - 2) + "-1")) == 1
    with pytest.raises(PowercclError, match="longer than 255"):
        read_rules(rule + " " * (256 - len(rule) - 2) + "-1")
    assert read_rules("#" * (128 * 1024)) == []
    with pytest.raises(PowercclError, match="larger than 131072 bytes"):
        read_rules("#" * (128 * 1024 + 1))


def test_only_newlines_end_lines() -> None:
    assert read_rules("# one\x0btwo\u2028three\n\r\n") == []
    with pytest.raises(PowercclError, match="line 1"):
        read_rules("allreduce,0,1024,ring,ll,-1,-1,-1\x0c\n")


def test_what_is_written_is_read_back() -> None:
    dice = random.Random(6)
    for count in (0, 1, 2, 256):
        table = random_rules(dice, count)
        assert read_rules(write_rules(table, ["found by powerccl tune; on a machine", "two\nlines", ""])) == table
        assert read_rules(inline_rules(table)) == table
        assert "\n" not in inline_rules(table)


def test_a_written_table_is_this() -> None:
    table = [
        Rule(pattern="all_gather", algorithm="pat", protocol="simple", max_bytes=65536, nodes=4, ranks=32),
        Rule(pattern="all_reduce", algorithm="ring", protocol="ll128", min_bytes=65537, channels=8, registered=0),
    ]
    assert write_rules(table, ["mine"]) == (
        "# mine\n"
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n"
        "allgather,0,65536,pat,simple,-1,4,32,-1,-1\n"
        "allreduce,65537,-1,ring,ll128,8,-1,-1,-1,0\n"
    )
    assert inline_rules(table).splitlines() == [
        "allgather,0,65536,pat,simple,-1,4,32,-1,-1;allreduce,65537,-1,ring,ll128,8,-1,-1,-1,0"
    ]


def test_comments_never_become_rules() -> None:
    text = write_rules([], ["allreduce,0,1,ring,ll,-1,-1,-1\nallreduce,0,1,ring,ll,-1,-1,-1", "word " * 200])
    assert read_rules(text) == []
    assert all(line.startswith("#") and len(line) < 255 for line in text.splitlines())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pattern": "all_to_all"}, "unknown collective 'all_to_all'"),
        ({"pattern": "allreduce,0,1,ring,ll,-1,-1,-1\nallreduce"}, "contains a newline|a rule has"),
        ({"algorithm": "auto"}, "unknown algorithm 'auto'; known: ring, tree"),
        ({"protocol": "LL"}, "unknown protocol"),
        ({"min_bytes": -1}, "min_bytes must be a whole number"),
        ({"min_bytes": 2, "max_bytes": 1}, "max_bytes is below min_bytes"),
        ({"max_bytes": 2**64}, "max_bytes must be -1 or a whole number"),
        ({"channels": 65}, "channels must be -1 or a whole number from 0 to 64, not '65'"),
        ({"nodes": 0}, "nNodes"),
        ({"ranks": 2**31}, "nRanks"),
        ({"pipe_ops": 0}, "numPipeOps"),
        ({"registered": 2}, "regBuff"),
    ],
)
def test_what_no_table_may_have_is_not_written(fields: dict[str, str | int], words: str) -> None:
    rule = Rule(**{"pattern": "all_reduce", "algorithm": "ring", "protocol": "ll", **fields})  # type: ignore[arg-type]
    for write in (write_rules, inline_rules):
        with pytest.raises(PowercclError, match=words):
            write([rule])


def test_too_many_rules_are_not_written() -> None:
    with pytest.raises(PowercclError, match="more than 256 rules"):
        write_rules(random_rules(random.Random(1), 257))
