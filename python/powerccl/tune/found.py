# SPDX-License-Identifier: Apache-2.0
"""What a search came to, for reports and for other programs."""

from __future__ import annotations

from dataclasses import dataclass, field

from powerccl.platforms.parameters import Configuration, Machine, Space
from powerccl.platforms.rules import Rule
from powerccl.platforms.tuned import Confirmed
from powerccl.tune.rule_search import CaseSearch
from powerccl.tune.study import Outcome


@dataclass
class Found:
    """What a search came to. `tuned` is only what was confirmed; empty variables and rules: nothing was."""

    machine: Machine
    emulated: bool
    space: Space
    outcomes: list[Outcome]
    rule_searches: list[CaseSearch] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    variables: Configuration = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    search_s: float = 0.0
    trials_per_minute: float = 0.0
    communicators: int = 0  # made, all stages
    communicator_s: float = 0.0  # that one took to be made and left, mean
    servers: int = 0  # process groups started: one, and one more for each that failed or was used up
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
