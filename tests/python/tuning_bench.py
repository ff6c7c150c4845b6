# SPDX-License-Identifier: Apache-2.0
"""A bench for tests of the search, a machine whose best configuration is known; and the plugin's choice of rules."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from powerccl.bench.trials import Sample, TrialFailedError
from powerccl.bench.workload import Case
from powerccl.platforms.parameters import Machine
from powerccl.platforms.rules import ANY, Rule

MACHINE = Machine("Made-up GPU", 4, 1, "2.28.9", ("sockets",))


def first_match(
    rules: Iterable[Rule],
    pattern: str,
    size_bytes: int,
    nodes: int,
    ranks: int,
    pipe_ops: int = 1,
    registered: bool = False,
) -> Rule | None:
    """The rule that the plugin goes by, as docs/reference/tuner-table.md says; None: NCCL chooses."""
    given = (nodes, ranks, pipe_ops, int(registered))
    for rule in rules:
        wanted = (rule.nodes, rule.ranks, rule.pipe_ops, rule.registered)
        matches = all(want in (ANY, value) for want, value in zip(wanted, given, strict=True))
        if matches and rule.pattern == pattern and rule.min_bytes <= size_bytes <= rule.max_bytes:
            return rule
    return None


class MadeUpBench:
    """Sockets, threads and buffer multiply; LL fails; 4 threads with 16 sockets hang; noise of 1 % a round."""

    def __init__(self, noise: float = 0.01, seed: int = 0) -> None:
        self.noise, self.random = noise, random.Random(seed)
        self.opened: list[dict[str, str]] = []
        self.rules: list[Sequence[Rule]] = []
        self.measured = 0
        self._now: dict[str, str] | None = None
        self._round = 1.0

    def time_us(self, configuration: Mapping[str, str], case: Case) -> float:
        """The truth, without noise."""
        sockets = int(configuration.get("NCCL_NSOCKS_PERTHREAD", "1"))
        threads = int(configuration.get("NCCL_SOCKET_NTHREADS", "1"))
        buffer = int(configuration.get("NCCL_BUFFSIZE", "4194304"))
        lanes = sockets * threads
        speed = {1: 1.0, 2: 1.7, 4: 2.4, 8: 2.9, 16: 2.6, 32: 2.0, 64: 1.5}[lanes]
        if lanes > 2 and buffer > 4194304:
            speed *= 1.3  # a buffer alone does nothing
        return 10.0 + case.size_bytes / 4000 / speed

    def open(self, configuration: Mapping[str, str], rules: Sequence[Rule] = ()) -> None:
        """See tuning.trials.Bench."""
        self.opened.append(dict(configuration))
        self.rules.append(rules)
        if configuration.get("NCCL_PROTO") == "LL":
            raise TrialFailedError("no algorithm/protocol available")
        self._now = dict(configuration)
        self._round = 1 + self.random.gauss(0, self.noise)

    def measure(self, case: Case, energy: bool, thorough: bool = False) -> Sample:
        """See tuning.trials.Bench."""
        assert self._now is not None
        if self._now.get("NCCL_SOCKET_NTHREADS") == "4" and self._now.get("NCCL_NSOCKS_PERTHREAD") == "16":
            self._now = None
            raise TrialFailedError("nothing within 20 s", hung=True)
        self.measured += 1
        when = self.time_us(self._now, case) * self._round
        return Sample((when, when, when), when * 500e-6 if energy else None)

    def close(self) -> None:
        """See tuning.trials.Bench."""
        self._now = None
