# SPDX-License-Identifier: Apache-2.0
"""Tuner tables that Python writes, as the plugin in libpowerccl-nccl.so decides by them, asked as NCCL asks."""

from __future__ import annotations

import ctypes
import random
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

import pytest
from test_tuner_rules import cases, random_rules
from tuning_bench import first_match

from powerccl.errors import PowercclError
from powerccl.launch.native import NCCL_ADAPTER, NativeFiles
from powerccl.platforms.rules import ANY, Rule, inline_rules, read_rules, write_rules

# NCCL's own order: ncclFunc_t, and rows and columns of the cost table.
COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
COST_US = 9.0


class TunerV6(ctypes.Structure):
    """NCCL 2.30, src/include/plugin/tuner/tuner_v6.h."""

    _fields_ = (
        ("name", c_char_p),
        (
            "init",
            ctypes.CFUNCTYPE(c_int, POINTER(c_void_p), c_uint64, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p),
        ),
        (
            "get_collective_info",
            ctypes.CFUNCTYPE(
                c_int, c_void_p, c_int, c_size_t, c_int, POINTER(c_float), c_int, c_int, c_int, POINTER(c_int)
            ),
        ),
        ("finalize", ctypes.CFUNCTYPE(c_int, c_void_p)),
        ("get_chunk_size", c_void_p),
    )


class Communicator:
    """One with this table, from the environment."""

    def __init__(self, native: NativeFiles, table: str, nodes: int, ranks: int) -> None:
        # Python's os.environ is libc's environment, which the plugin reads.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("POWERCCL_TUNER_TABLE", table)
            self.tuner = TunerV6.in_dll(ctypes.CDLL(str(native.path(NCCL_ADAPTER))), "ncclTunerPlugin_v6")
            self.context = c_void_p()
            assert self.tuner.init(ctypes.byref(self.context), 1, ranks, nodes, None, None, None) == 0

    def decision(self, pattern: str, size_bytes: int, pipe_ops: int, registered: bool) -> tuple[str, str, int] | None:
        """Algorithm, protocol and channels (0: NCCL's), or None where all was left to NCCL."""
        costs = (c_float * 21)(*[COST_US] * 21)
        channels = c_int(0)
        answer = self.tuner.get_collective_info(
            self.context, COLLECTIVES.index(pattern), size_bytes, pipe_ops, costs, 7, 3, registered, channels
        )
        assert answer == 0
        changed = [cell for cell, cost in enumerate(costs) if cost != COST_US]
        if not changed:
            assert channels.value == 0
            return None
        assert len(changed) == 1
        assert costs[changed[0]] == 0
        return ALGORITHMS[changed[0] // 3], PROTOCOLS[changed[0] % 3], channels.value

    def close(self) -> None:
        assert self.tuner.finalize(self.context) == 0


def wanted(rule: Rule | None, nodes: int) -> tuple[str, str, int] | None:
    """What the plugin does about a rule: channels stay NCCL's where the network reduces."""
    if rule is None:
        return None
    network = rule.algorithm.startswith("collnet") or (rule.algorithm == "nvls" and nodes > 1)
    return rule.algorithm, rule.protocol, 0 if network or rule.channels == ANY else rule.channels


@pytest.mark.parametrize("how", ["text", "inline", "file"])
def test_the_plugin_decides_as_python_says(native: NativeFiles, tmp_path: Path, how: str) -> None:
    dice = random.Random(how)
    decided = asked = 0
    for count in (1, 5, 40, 256):
        rules = random_rules(dice, count)
        table = inline_rules(rules) if how == "inline" else write_rules(rules, ["a comment; with, everything"])
        if how == "file":
            (tmp_path / "table.csv").write_text(table)
            table = str(tmp_path / "table.csv")
        for nodes, ranks in ((1, 8), (2, 8), (1, 1), (3, 17)):
            communicator = Communicator(native, table, nodes, ranks)
            for _ in range(300):
                # Half of them at a rule's bounds, where mistakes are.
                bound = dice.choice(rules)
                size = dice.choice([bound.min_bytes, bound.max_bytes, bound.max_bytes + 1, dice.getrandbits(36)])
                call = (dice.choice(COLLECTIVES), min(size, 2**64 - 1))
                last = (dice.choice([1, 2, 4]), dice.random() < 0.5)
                rule = first_match(rules, *call, nodes, ranks, *last)
                assert communicator.decision(*call, *last) == wanted(rule, nodes)
                asked += 1
                decided += rule is not None
            communicator.close()
    assert asked / 20 < decided < asked


def accepts(native: NativeFiles, table: str) -> bool:
    """Whether the plugin takes a table, with a last rule that tells."""
    separator = "\n" if "\n" in table else ";"
    canary = "reduce,0,-1,tree,ll,33,-1,777777,-1,-1"
    communicator = Communicator(native, f"{table}{separator}{canary}", 1, 777777)
    taken = communicator.decision("reduce", 1, 1, False) is not None
    communicator.close()
    return taken


def test_both_readers_take_and_refuse_the_same(native: NativeFiles) -> None:
    dice = random.Random(7)
    seeds = {good: [case.text for case in cases() if case.good == good] for good in (True, False)}
    alphabet = ",;\n\r\t #-+_.0123456789abcdefglnprst\x0b\x7fé"
    verdicts = {True: 0, False: 0}
    for _ in range(4000):
        text = list(dice.choice(seeds[dice.random() < 0.7]))
        for _ in range(dice.randrange(4)):
            at = dice.randrange(len(text)) if text else 0
            text[at : at + dice.choice([0, 1, 1, 3])] = dice.choice(["", *alphabet])
        table = "".join(text).lstrip("/")
        try:
            read_rules(table)
            good = True
        except PowercclError:
            good = False
        assert accepts(native, table) == good, repr(table)
        verdicts[good] += 1
    assert min(verdicts.values()) > 400, verdicts  # what is said of a refusal: tests/native/adapters/tuner_test.cpp
