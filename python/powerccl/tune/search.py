# SPDX-License-Identifier: Apache-2.0
"""`powerccl tune`, step by step: the defaults, a search, rules, and proof of what was found.

Everything about one search is in its folder: `study.journal` (Optuna's, shared by workers), `bench.log`, `result.json`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import msgspec

from powerccl.bench.process import environment_of, make_work_folder
from powerccl.bench.server import ENERGY_S, QUICK_S, THOROUGH_ENERGY_S, THOROUGH_S, BenchServer
from powerccl.bench.trials import TrialFailedError
from powerccl.bench.workload import Workload
from powerccl.errors import PowercclError
from powerccl.files import write_whole
from powerccl.launch.environment import PROFILER
from powerccl.launch.native import find_native
from powerccl.launch.tuned import nccl_library
from powerccl.machine import HOST, machine_of
from powerccl.platforms.parameters import Configuration, Machine, Space, make_space, names_in
from powerccl.platforms.rules import Rule
from powerccl.platforms.tuned import TUNED, Confirmed, TunedProfile, load_tuned
from powerccl.platforms.ways import table_for
from powerccl.quantities import plural
from powerccl.tune import budget, replay_bench
from powerccl.tune.budget import Budget
from powerccl.tune.confirm import FEWEST_ROUNDS, LEAST_ROUNDS, Candidate, confirm
from powerccl.tune.found import Found
from powerccl.tune.links import find_links
from powerccl.tune.objective import Objective
from powerccl.tune.replay import (
    PARAMETERS,
    first_tries,
    joined,
    parameters_of,
    ranks_of,
    recorded_iteration,
    split,
    with_plain,
    workload_of,
)
from powerccl.tune.replay_bench import ReplayBench
from powerccl.tune.rule_search import Choice, rules_for, search_rules
from powerccl.tune.simplify import simplify
from powerccl.tune.study import DEFAULT_ROUNDS, Limits, Outcome, Study

ENERGY_FROM_S = 30.0  # of --verify: with less time, energy is confirmed only where it was the objective
FINALISTS = 2
LEAST_GAIN = 0.01  # of an interval's better end; what gains less is not worth a variable


@dataclass
class Asked:
    """The options of `powerccl tune`."""

    workload: Workload
    objective: Objective
    emulate: str = ""
    gpus: int = 0
    nccl: str = ""
    links: tuple[str, ...] = ()
    seconds: float = 600.0
    trials: int | None = None
    timeout_s: float = 20.0
    add: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    rules: bool = True
    windows: bool = False  # buffers are in symmetric windows
    beside: Path | None = None  # a recorded run, whose iteration is tuned as a whole, ways of collectives included
    products: str = ""  # then: the shape of its matrix products, as `powerccl-bench --products` takes it
    seed: int = 1
    folder: Path = Path("tune")


class Tuning:
    """One worker of one search. Ranks and maybe an emulated server are behind it, until `stack` is closed."""

    def __init__(self, asked: Asked, say: Callable[[str], None], stack: contextlib.ExitStack) -> None:
        self.asked, self.say = asked, say
        self.native = find_native()
        self._began = time.monotonic()
        base = environment_of(self.native, asked.emulate, stack)
        # Adapters of an outer `powerccl run` would see every trial.
        self.environment = {name: value for name, value in base.items() if name != PROFILER}
        make_work_folder(asked.folder, other="folder")
        log = asked.folder / "bench.log"
        library = asked.nccl or nccl_library(self.environment)
        server = BenchServer(
            self.native, self.environment, asked.gpus, asked.timeout_s, log, library, windows=asked.windows
        )
        self.bench: BenchServer | ReplayBench = server
        if asked.beside:
            with server:  # what it says of the machine is all that is wanted of it
                self.bench = self._replays(asked.beside, server.about, library)
        else:
            stack.enter_context(server)
        about = self.bench.about
        ranks = int(about.get("ranks", 0))
        if ranks < 2:
            raise PowercclError(
                f"cannot tune with {ranks} GPU: it does not communicate", "tune on a machine with two or more GPUs"
            )
        self.emulated = bool(about.get("emulated"))
        links = asked.links or find_links(self.environment, str(about.get("gpu", "")), asked.emulate)
        self.machine = Machine(str(about.get("gpu", "")), ranks, 1, str(about.get("nccl_version") or ""), links)
        self.space = make_space(
            self.machine,
            asked.workload.patterns,
            self.environment,
            asked.add,
            asked.fix,
            asked.forbid,
            lambda: names_in(Path(str(about.get("nccl_path")))),
            windows=asked.windows or bool(asked.beside),
        )
        if isinstance(self.bench, ReplayBench):
            self._add_ways(self.space, self.bench)
        self.kept = {name: value for name, value in sorted(self.environment.items()) if name.startswith("NCCL_")}

    def _replays(self, run: Path, about: Mapping[str, object], library: str) -> ReplayBench:
        """The recorded iteration, to be replayed on this machine."""
        table = None if self.asked.emulate else table_for([str(about.get("gpu", ""))] * int(str(about.get("ranks", 0))))
        recorded = recorded_iteration(run, table)
        if ranks_of(recorded) != about.get("ranks"):
            raise PowercclError(
                f"{run} was recorded with {plural(ranks_of(recorded), 'rank')}; here are {about.get('ranks')}",
                "tune where it was recorded; --gpus chooses fewer GPUs",
            )
        self.asked.workload = workload_of(recorded, run)
        asked = self.asked
        terms = (asked.folder, asked.timeout_s, library, asked.products)
        return ReplayBench(self.native, self.environment, recorded, about, *terms)

    def _add_ways(self, space: Space, bench: ReplayBench) -> None:
        """Make it a space of ways, and of what else may matter beside computation."""
        named = {text.partition("=")[0] for text in self.asked.add}
        for parameter in space.parameters:
            if parameter.name not in named and parameter.name not in PARAMETERS:
                space.left_out[parameter.name] = "says little beside computation; add it with --parameter"
        kept = [parameter for parameter in space.parameters if parameter.name not in space.left_out]
        space.parameters = [*parameters_of(bench.recorded.programs[0], self.machine.nccl), *kept]

    # ---- the search

    def search(self, progress: Callable[[str, Outcome | None, float], None]) -> Found:
        """Everything up to confirmed findings; `progress(stage, outcome, share of the time that is over)`."""
        asked = self.asked
        study = Study(
            asked.folder / "study.journal",
            self.space,
            asked.workload.cases,
            asked.objective,
            self._settings(),
            asked.seed,
        )
        import scipy.stats  # noqa: F401 - seconds on a busy machine, which no round of the proof should take

        def share() -> float:
            return (time.monotonic() - self._began) / asked.seconds

        def over(stage: str) -> Callable[[Outcome], None]:
            return lambda outcome: progress(stage, outcome, share())

        progress("defaults", None, 0.0)
        if isinstance(self.bench, ReplayBench):
            recorded_ms, replayed_ms = self.bench.calibrate()
            self.say(f"the recorded iteration takes {recorded_ms:.2f} ms, its replay {replayed_ms:.2f} ms")
        trials_began = time.monotonic()
        study.measure_defaults(self.bench)
        self.round_s = (time.monotonic() - trials_began) / DEFAULT_ROUNDS
        study.warm_start([*first_tries(self.space.parameters), *self._earlier()])
        trials_began, servers = time.monotonic(), len(study.outcomes())
        round_s = self._thorough_s(asked.objective.needs_energy)
        self.budget = Budget(self._began, asked.seconds, 2 * LEAST_ROUNDS * round_s, 2 * FEWEST_ROUNDS * round_s)
        if self.budget.stage() < self.round_s:
            more = asked.seconds - self.budget.proof() + 2 * LEAST_ROUNDS * round_s + self.round_s
            self.say(f"too little time to try anything and to confirm it; use --time {ceil(more)}s or more")
        rules = budget.RULES if asked.rules else 0.0

        def limits(trials: int | None, *later: float) -> Limits:
            limit = Limits(trials, self.budget.stage(*later, rules))
            study.until = time.monotonic() + (limit.seconds or 0.0)
            return limit

        study.search(self.bench, limits(asked.trials, budget.SIMPLIFY), over("search"))
        simplest = simplify(study, self.bench, limits(None), over("simplifying"))
        outcomes = study.outcomes()
        spent = time.monotonic() - trials_began
        result = Found(self.machine, self.emulated, self.space, outcomes)
        result.search_s = spent
        result.trials_per_minute = (len(outcomes) - servers) / spent * 60 if spent > 0 else 0.0
        self._prove(
            result,
            _finalists(study, simplest),
            lambda stage: progress(stage, None, share()),
        )
        result.seconds = time.monotonic() - self._began
        result.communicators, result.servers = self.bench.opened, self.bench.servers
        result.communicator_s = (self.bench.opening_s + self.bench.closing_s) / max(self.bench.opened, 1)
        return result

    def _settings(self) -> dict[str, str]:
        """What workers on one journal must agree on: all but the host, since like hosts may share a search."""
        space = self.space
        kept = {name: value for name, value in machine_of(self.bench.about).items() if name != HOST}
        return {
            **kept,
            "links": "+".join(self.machine.links),
            "objective": self.asked.objective.text,
            "cases": " ".join(case.key for case in self.asked.workload.cases),
            "parameters": " ".join(f"{p.name}={','.join(p.choices)}" for p in space.parameters),
            **({"windows": "symmetric"} if self.asked.windows else {}),
            "fixed": " ".join(f"{name}={value}" for name, value in sorted(space.fixed.items())),
        }

    def _earlier(self) -> list[Configuration]:
        """Configurations of earlier studies of like machines, the likest first."""
        alike = []
        for path in TUNED.known().values():
            with contextlib.suppress(PowercclError):
                profile = load_tuned(str(path))
                likeness = self.machine.likeness(profile.machine)
                if likeness and profile.variables:
                    alike.append((likeness, profile.variables))
        return [variables for _, variables in sorted(alike, key=lambda each: -each[0])]

    def _thorough_s(self, energy: bool) -> float:
        """What a round of the proof takes, from what one of the search took."""
        if self.asked.beside:
            return self.round_s + replay_bench.THOROUGH_S - replay_bench.QUICK_S
        searched = ENERGY_S if self.asked.objective.needs_energy else QUICK_S
        measured = THOROUGH_ENERGY_S if energy else THOROUGH_S
        return self.round_s + len(self.asked.workload.cases) * (measured - searched)

    # ---- proof

    def _prove(self, result: Found, finalists: list[Configuration], progress: Callable[[str], None]) -> None:
        """Fill in what is confirmed: first rules under the best variables, then all of it against the defaults."""
        asked = self.asked
        defaults = self.space.mend({})
        variables = finalists[0] if finalists else defaults
        cases = asked.workload.cases
        candidates = [Candidate(each) for each in finalists]
        if asked.rules:
            # Rules say these two per size; as variables they would hold for all.
            free = {name: value for name, value in variables.items() if name not in ("NCCL_ALGO", "NCCL_PROTO")}
            seconds = self.budget.stage()
            result.rule_searches = search_rules(
                self.bench, free, cases, self.machine, asked.objective, seconds, lambda *_: progress("rules")
            )
            chosen = [(each.case, each.best(asked.objective)) for each in result.rule_searches]
            rules = rules_for(chosen, self.machine)
            if rules:
                candidates.insert(1, Candidate(free, rules))
        if not candidates:
            return
        left = self.budget.proof()
        # Energy takes seconds a round: where it is not the objective, it is measured if the time is there.
        wanted = 2 * LEAST_ROUNDS * self._thorough_s(energy=True) <= budget.PROOF * asked.seconds
        energy = asked.objective.needs_energy or wanted
        round_s = self._thorough_s(energy)
        if left < 2 * FEWEST_ROUNDS * round_s:
            more = asked.seconds + 2 * LEAST_ROUNDS * round_s - left
            result.notes.append(f"nothing was confirmed: the time ran out; use --time {ceil(more)}s or more")
            return
        del candidates[max(1, int(left / LEAST_ROUNDS / round_s) - 1) :]
        try:
            confirm(self.bench, defaults, candidates, cases, energy, left, lambda _: progress("confirming"))
        except TrialFailedError as error:
            result.notes.append(f"nothing was confirmed: NCCL failed with its defaults ({error.reason})")
            return
        result.notes += [f"a candidate failed during its confirmation: {c.failed}" for c in candidates if c.failed]
        proved = [candidate for candidate in candidates if candidate.proof]
        if not proved:
            return
        winner = min(proved, key=self._worth)
        result.confirmed = winner.proof
        if self._worth(winner) < 1 - LEAST_GAIN:
            result.variables, result.rules = winner.variables, _without_losers(winner)
        else:
            result.notes.append("no gain was confirmed: the profile changes nothing for a job")

    def _worth(self, candidate: Candidate) -> float:
        """The objective of confirmed ratios, each at the worse end of its interval; below 1: a sure gain.

        Where rules are all of it, sizes that do not gain are left to NCCL.
        """
        objective = self.asked.objective
        pairs = zip(self.asked.workload.cases, candidate.proof, strict=True)
        counted = [(case.weight, c) for case, c in pairs if candidate.variables or _gains(c)]
        weights, proof = [weight for weight, _ in counted], [c for _, c in counted]
        if not proof:
            return 1.0
        when = sum(w * c.time_high for w, c in counted) + 1 - sum(weights)
        if not objective.needs_energy:
            return objective.value(when, None)
        if any(c.energy_high is None or c.default_joules is None for c in proof):
            return float("inf")
        spent = [w * (c.default_joules or 0) / c.default_us for w, c in counted]
        energy = sum(s * (c.energy_high or 1) for s, c in zip(spent, proof, strict=True)) / sum(spent)
        if objective.slowdown is not None:  # a bound is kept if time's mean keeps it
            when = sum(w * c.time for w, c in counted) + 1 - sum(weights)
        return objective.value(when, energy)

    def verify(self, profile: TunedProfile, progress: Callable[[int], None]) -> list[Confirmed]:
        """Confirm a profile again, on the cases it was confirmed on.

        Raises:
            PowercclError: NCCL fails under it, or with its defaults.
        """
        candidate = Candidate({**profile.variables, **joined(profile.ways)}, profile.rules)
        if isinstance(self.bench, ReplayBench):
            self.bench.calibrate()
        try:
            energy = self.asked.objective.needs_energy or self.asked.seconds >= ENERGY_FROM_S
            left = self.asked.seconds - (time.monotonic() - self._began)
            confirm(self.bench, {}, [candidate], self.asked.workload.cases, energy, left, progress)
        except TrialFailedError as error:
            raise PowercclError(
                f"NCCL fails with its defaults: {error.reason}", "run `powerccl bench` to find the cause"
            ) from error
        if candidate.failed:
            raise PowercclError(f"NCCL fails under '{profile.name}': {candidate.failed}", "tune again")
        return candidate.proof

    def profile(self, name: str, findings: Found) -> TunedProfile:
        """What a job is to be given."""
        variables, ways = split(findings.variables)
        return TunedProfile(
            schema_version=1,
            name=name,
            gpu=findings.machine.gpu,
            ranks=findings.machine.ranks,
            nodes=findings.machine.nodes,
            nccl=findings.machine.nccl,
            links=list(findings.machine.links),
            objective=self.asked.objective.text,
            variables=variables,
            rules=findings.rules,
            ways=with_plain(ways, findings.space.parameters),
            confirmed=findings.confirmed,
            emulated=findings.emulated,
            environment=self.kept,
            workload=self.asked.workload.source,
            windows=self.asked.windows,
            created_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            trials=len(findings.outcomes),
            seconds=round(findings.seconds, 1),
            notes=findings.notes,
        )


def _finalists(study: Study, simplest: Configuration | None) -> list[Configuration]:
    """What is put to the proof: the best, made simple, and the next best; none that is not better than the defaults."""
    ahead = [each for each in study.leaders()[:FINALISTS] if each.stage != "defaults" and each.value < 1]
    finalists: list[Configuration] = []
    for each in [simplest if ahead else None, *(outcome.configuration for outcome in ahead)]:
        if each and each not in finalists:
            finalists.append(each)
    return finalists


def _gains(confirmed: Confirmed) -> bool:
    """Whether a case surely takes less time, or less energy and not surely more time."""
    return confirmed.time_high < 1 or (confirmed.time_low <= 1 and (confirmed.energy_high or 2) < 1)


def _without_losers(winner: Candidate) -> list[Rule]:
    """Its rules, without those of sizes that do not gain, where variables do not say the rest."""
    if winner.variables:
        return winner.rules
    sure = [(c.pattern, c.size_bytes) for c in winner.proof if _gains(c)]
    return [r for r in winner.rules if any(r.pattern == p and r.min_bytes <= b <= r.max_bytes for p, b in sure)]


def _words(choice: Choice | None) -> str:
    return "NCCL's" if choice is None else f"{choice[0]},{choice[1]},{choice[2]}"


def write_result(folder: Path, findings: Found, profile: TunedProfile) -> Path:
    """Everything about the search as JSON, for other programs. Raises OSError."""
    path = folder / "result.json"
    data = {
        "profile": profile,
        "trials_per_minute": round(findings.trials_per_minute, 2),
        "search_seconds": round(findings.search_s, 1),
        "communicators": findings.communicators,
        "communicator_seconds": round(findings.communicator_s, 4),
        "servers": findings.servers,
        "space": {p.name: list(p.choices) for p in findings.space.parameters},
        "left_out": findings.space.left_out,
        "rules": [
            {
                "case": each.case.key,
                "tried": {_words(choice): [sample.time_us for sample in each.found[choice]] for choice in each.found},
                "failed": {_words(choice): why for choice, why in each.failed.items()},
            }
            for each in findings.rule_searches
        ],
        "outcomes": findings.outcomes,
    }
    write_whole(path, msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")
    return path
