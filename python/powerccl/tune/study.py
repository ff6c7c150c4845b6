# SPDX-License-Identifier: Apache-2.0
"""The search: Optuna's TPE over a space, with racing, on a journal that survives and that several workers may share.

Optuna keeps a trial's parameters and value. Attributes hold the configuration that was really run, time and energy
against the defaults, every case's cost, and why a trial failed.
"""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerccl.bench.trials import Bench, TrialFailedError
from powerccl.bench.workload import Case
from powerccl.errors import PowercclError
from powerccl.machine import refuse_other
from powerccl.platforms.parameters import UNSET, Configuration, Space
from powerccl.quantities import plural, seconds
from powerccl.tune.objective import Costs, Objective, relative
from powerccl.tune.racing import Entrant, Spread, goes_on, hopeless

if TYPE_CHECKING:
    import optuna

FAILED_VALUE = 4.0  # of a failed trial, so that the search keeps away: four times the defaults
DEFAULT_ROUNDS = 3
STARTUP_TRIALS = 16
MOST_REPEATS = 50  # of configurations that were measured before, in a row: the space is exhausted
SURELY_FAILS = 3  # configurations with a value that all failed: it is not run again
STUCK = 5  # so many in a row, and the next is drawn at random


@dataclass
class Outcome:
    """One finished trial. `status`: done, pruned (surely worse before its end), failed, hung."""

    number: int
    configuration: Configuration
    status: str
    time: float  # against the defaults; FAILED_VALUE if it failed
    energy: float | None
    value: float
    rounds: int = 0
    costs: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    stage: str = ""


@dataclass
class Limits:
    """When a search ends: whichever comes first. None: no such limit."""

    trials: int | None = None
    seconds: float | None = None


class Study:
    """One search; several processes, on several hosts, may each have one on the same journal."""

    def __init__(
        self,
        journal: Path,
        space: Space,
        cases: Sequence[Case],
        objective: Objective,
        settings: Mapping[str, str],
        seed: int = 1,
    ) -> None:
        """`settings`: what must be alike in all who work on the journal, by name.

        Raises:
            PowercclError: the journal is of another search, or cannot be written.
        """
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.space, self.cases, self.objective, self.seed = space, list(cases), objective, seed
        try:
            journal.parent.mkdir(parents=True, exist_ok=True)
            backend = JournalFileBackend(str(journal), lock_obj=JournalFileOpenLock(str(journal)))
            storage = optuna.storages.JournalStorage(backend)
        except OSError as error:
            raise PowercclError(
                f"cannot write {journal}: {error.strerror}", "name another folder with --out"
            ) from error
        try:
            self.study = optuna.load_study(study_name="tune", storage=storage)  # creating would write, even if refused
        except KeyError:
            self.study = optuna.create_study(
                storage=storage,
                study_name="tune",
                direction="minimize",
                load_if_exists=True,
            )
        kept = self.study.user_attrs.get("settings")
        if kept is None:
            self.study.set_user_attr("settings", dict(settings))
        else:
            kept_settings = kept if isinstance(kept, dict) else None
            refuse_other(f"the search in {journal}", kept_settings, settings, "name another folder with --out")
        self.until = float("inf")  # time.monotonic() from which on no round is begun that is not the first of its trial
        self.defaults: dict[str, tuple[float, float | None]] = {}
        self.spread = Spread()
        self._measured: dict[str, Outcome] = {}
        self._entrants: dict[str, Entrant] = {}

    # ---- what is known

    def outcomes(self) -> list[Outcome]:
        """All configurations that were run, by all workers, in their order."""
        trials = self.study.get_trials(deepcopy=False)
        return [_outcome(t) for t in trials if t.state.is_finished() and not t.user_attrs.get("again")]

    def best(self) -> Outcome | None:
        """The best trial that was measured to its end, by all rounds it has run since."""
        return next(iter(self.leaders()), None)

    def leaders(self) -> list[Outcome]:
        """Trials that were measured to their end, the best first."""

        def value(outcome: Outcome) -> float:
            entrant = self._entrants.get(_key(outcome.configuration))
            return entrant.value if entrant else outcome.value

        return sorted((outcome for outcome in self.outcomes() if outcome.status == "done"), key=value)

    # ---- searching

    def measure_defaults(self, bench: Bench) -> None:
        """NCCL's own choice, on this machine, by this worker: the reference of all that it measures.

        Raises:
            PowercclError: NCCL fails with the defaults already.
        """
        try:
            rounds = [self._round(bench, self.space.mend({})) for _ in range(DEFAULT_ROUNDS)]
        except TrialFailedError as error:
            raise PowercclError(
                f"NCCL fails with its defaults: {error.reason}",
                "run `powerccl bench` with the same sizes to find the cause",
            ) from error
        self.defaults = {case.key: _mean([costs[case.key] for costs in rounds]) for case in self.cases}
        values = []
        for costs in rounds:
            when, energy = relative(self.cases, costs, self.defaults)
            values.append(self._value(when, energy))
        self.spread.learn(values)
        self._entrants[_key(self.space.mend({}))] = Entrant(values)
        if not any(outcome.stage == "defaults" for outcome in self.outcomes()):
            outcome = Outcome(-1, self.space.mend({}), "done", 1.0, 1.0 if self.objective.needs_energy else None, 1.0)
            outcome.costs, outcome.rounds, outcome.stage = dict(self.defaults), DEFAULT_ROUNDS, "defaults"
            self._add(outcome)

    def warm_start(self, configurations: Iterable[Configuration]) -> int:
        """Have these tried first, as far as the space holds them; how many that were. Once a study."""
        if self.study.user_attrs.get("warm"):
            return 0
        self.study.set_user_attr("warm", True)
        count = 0
        for configuration in configurations:
            chosen = {p.name: configuration.get(p.name, UNSET) for p in self.space.parameters}
            known = all(chosen[p.name] in p.choices for p in self.space.parameters)
            if known and any(chosen.values()):
                self.study.enqueue_trial(chosen, skip_if_exists=True)
                count += 1
        return count

    def search(self, bench: Bench, limits: Limits, progress: Callable[[Outcome], None]) -> str:
        """Try configurations until a limit; `progress` receives each. Returns why it ended, in words.

        Raises:
            PowercclError: the defaults cannot be measured.
        """
        began = time.monotonic()
        if not self.defaults:
            self.measure_defaults(bench)
        repeats = 0
        while True:
            spent = time.monotonic() - began
            if limits.seconds is not None and spent >= limits.seconds:
                return f"the time of {seconds(limits.seconds)} is over"
            if limits.trials is not None and len(self.outcomes()) - 1 >= limits.trials:  # the defaults are one of them
                return f"{plural(limits.trials, 'trial')} are done"
            trial = self._ask(at_random=repeats % STUCK == STUCK - 1)
            chosen = {p.name: trial.suggest_categorical(p.name, p.choices) for p in self.space.parameters}
            configuration = self.space.mend(chosen)
            known = self._seen(configuration)
            if known:
                repeats += 1
                trial.set_user_attr("again", True)
                self._tell(trial, known)  # the search learns from it again; nothing is run
                if repeats >= MOST_REPEATS:
                    return "all values were tried"
                continue
            repeats = 0
            outcome = self._try(bench, configuration)
            outcome.number, outcome.stage = trial.number, "search"
            self._tell(trial, outcome)
            progress(outcome)

    def attempt(
        self, bench: Bench, configuration: Configuration, stage: str, progress: Callable[[Outcome], None]
    ) -> Outcome:
        """What a configuration is worth that the sampler did not ask for. `progress` receives it if it is run."""
        known = self._seen(configuration)
        if known:
            return known
        outcome = self._try(bench, configuration)
        outcome.stage = stage
        self._add(outcome)
        progress(outcome)
        return outcome

    def _ask(self, at_random: bool) -> optuna.Trial:
        import optuna

        # A sampler of its own for each trial: a study that is taken up again goes on as if it had never stopped.
        number = len(self.study.get_trials(deepcopy=False))
        if at_random:
            self.study.sampler = optuna.samplers.RandomSampler(seed=self.seed * 100_003 + number)
            return self.study.ask()
        self.study.sampler = optuna.samplers.TPESampler(
            seed=self.seed * 100_003 + number,
            n_startup_trials=STARTUP_TRIALS,
            multivariate=True,
            group=True,
            constant_liar=True,
        )
        return self.study.ask()

    def _seen(self, configuration: Configuration) -> Outcome | None:
        """What is known of a configuration before it is run: it was, or all that have one of its values have failed."""
        key = _key(configuration)
        if key not in self._measured:
            self._measured.update({_key(o.configuration): o for o in self.outcomes()})
        if key in self._measured:
            return self._measured[key]
        for item in configuration.items():
            alike = [o for o in self._measured.values() if item in o.configuration.items()]
            if len(alike) >= SURELY_FAILS and all(o.status in ("failed", "hung") for o in alike):
                return alike[-1]
        return None

    def _value(self, when: float, energy: float | None) -> float:
        if energy is None and self.objective.needs_energy:
            raise PowercclError(
                "cannot measure energy here (no counter, or collectives too short)", "use --objective time"
            )
        return self.objective.value(when, energy)

    def _round(self, bench: Bench, configuration: Configuration, champion: Entrant | None = None) -> Costs:
        """Every case under one communicator; fewer where it is hopeless. Raises TrialFailedError."""
        costs: dict[str, tuple[float, float | None]] = {}
        bench.open(configuration)
        try:
            for case in self.cases:
                sample = bench.measure(case, self.objective.needs_energy)
                costs[case.key] = (sample.time_us, sample.joules)
                if champion is not None and len(costs) < len(self.cases) and self._lost(costs, champion):
                    break
        finally:
            bench.close()
        return costs

    def _lost(self, costs: Costs, champion: Entrant) -> bool:
        """Whether the rest, as good as it ever was, could not win it back."""
        hoped = {case.key: costs.get(case.key) or self._least(case) for case in self.cases}
        when, energy = relative(self.cases, hoped, self.defaults)
        if energy is None and self.objective.needs_energy:
            return False
        return hopeless(self.objective.value(when, energy), champion, self.spread.value)

    def _least(self, case: Case) -> tuple[float, float | None]:
        seen = [o.costs[case.key] for o in self._measured.values() if case.key in o.costs] or [self.defaults[case.key]]
        joules = [energy for _, energy in seen if energy is not None]
        return min(when for when, _ in seen), min(joules) if joules else None

    def _try(self, bench: Bench, configuration: Configuration) -> Outcome:
        began = time.monotonic()
        entrant, rounds = Entrant(), []
        champion_outcome = self.best()
        champion = self._entrants.get(_key(champion_outcome.configuration)) if champion_outcome else None
        if champion_outcome and champion is None:  # another worker's, or of before an interruption
            champion = self._entrants[_key(champion_outcome.configuration)] = Entrant([champion_outcome.value])
        try:
            while True:
                costs = self._round(bench, configuration, champion)
                whole = len(costs) == len(self.cases)
                rounds.append(costs)
                shown = [case for case in self.cases if case.key in costs]
                when, energy = relative(shown, costs, self.defaults)
                entrant.rounds.append(self._value(when, energy))
                if not whole or not goes_on(entrant, champion, self.spread.value) or time.monotonic() >= self.until:
                    break
                if champion is not None and champion_outcome and len(champion.rounds) < len(entrant.rounds):
                    self._again(bench, champion_outcome, champion)
        except TrialFailedError as error:
            status = "hung" if error.hung else "failed"
            value = FAILED_VALUE
            outcome = Outcome(-1, configuration, status, value, value if self.objective.needs_energy else None, value)
            outcome.reason, outcome.seconds = error.reason, time.monotonic() - began
            self._measured[_key(configuration)] = outcome
            return outcome
        whole = len(rounds[-1]) == len(self.cases)
        keys = [case.key for case in self.cases if case.key in rounds[-1]]
        costs = {key: _mean([each[key] for each in rounds if key in each]) for key in keys}
        when, energy = relative([case for case in self.cases if case.key in costs], costs, self.defaults)
        value = entrant.value if whole else max(entrant.value, champion.value if champion else 0.0)
        outcome = Outcome(-1, configuration, "done" if whole else "pruned", when, energy, value, len(rounds), costs)
        outcome.seconds = time.monotonic() - began
        self.spread.learn(entrant.rounds if whole else [])
        if whole:
            self._entrants[_key(configuration)] = entrant
        self._measured[_key(configuration)] = outcome
        return outcome

    def _again(self, bench: Bench, outcome: Outcome, champion: Entrant) -> None:
        """Another round of the champion: one that was lucky is found out before others are held against it."""
        with contextlib.suppress(TrialFailedError):  # no fault of the challenger's
            costs = self._round(bench, outcome.configuration)
            champion.rounds.append(self._value(*relative(self.cases, costs, self.defaults)))

    def _attributes(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "configuration": outcome.configuration,
            "status": outcome.status,
            "time": outcome.time,
            "energy": outcome.energy,
            "value": outcome.value,
            "rounds": outcome.rounds,
            "costs": {key: list(cost) for key, cost in outcome.costs.items()},
            "reason": outcome.reason,
            "seconds": round(outcome.seconds, 3),
            "stage": outcome.stage,
        }

    def _tell(self, trial: optuna.Trial, outcome: Outcome) -> None:
        for name, value in self._attributes(outcome).items():
            trial.set_user_attr(name, value)
        if self.objective.slowdown is not None:
            trial.set_constraint("slowdown", self.objective.exceeds(outcome.time))
        self.study.tell(trial, outcome.value)

    def _add(self, outcome: Outcome) -> None:
        import optuna

        chosen = {p.name: outcome.configuration.get(p.name, UNSET) for p in self.space.parameters}
        distributions: dict[str, optuna.distributions.BaseDistribution] = {
            p.name: optuna.distributions.CategoricalDistribution(p.choices) for p in self.space.parameters
        }
        self.study.add_trial(
            optuna.trial.create_trial(
                value=outcome.value,
                params=chosen,
                distributions=distributions,
                user_attrs=self._attributes(outcome),
                constraints=None
                if self.objective.slowdown is None
                else {"slowdown": self.objective.exceeds(outcome.time)},
            )
        )
        self._measured[_key(outcome.configuration)] = outcome


def _key(configuration: Configuration) -> str:
    return json.dumps(configuration, sort_keys=True)


def _mean(costs: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    joules = [energy for _, energy in costs if energy is not None]
    return sum(when for when, _ in costs) / len(costs), sum(joules) / len(joules) if joules else None


def _outcome(trial: optuna.trial.FrozenTrial) -> Outcome:
    kept = trial.user_attrs
    return Outcome(
        trial.number,
        dict(kept["configuration"]),
        kept["status"],
        kept["time"],
        kept["energy"],
        kept["value"],
        kept["rounds"],
        {key: (cost[0], cost[1]) for key, cost in kept["costs"].items()},
        kept["reason"],
        kept["seconds"],
        kept["stage"],
    )
