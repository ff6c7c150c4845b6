# SPDX-License-Identifier: Apache-2.0
"""What a recorded job's iteration would take if NCCL carried its collectives out otherwise: `powerccl whatif --ways`.

The iteration is replayed (replay.py) with each collective's costs by a table of ways. What a collective costs
beside computation depends on what is computed, which is not recorded. So every figure is a range over the
surroundings that the table measured.

Energy is what the collectives' own energy changes by, and the power of waiting over whatever else the time changes by.
GPUs at their power limit stay there, since clocks rise where anything takes less: they save as much energy as time.
What they compute is matrix products, for nothing else draws so much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import polars as pl

from powerccl.analysis.energy import EnergyCurve, energy_curves, job_samples
from powerccl.analysis.programs.calls import RECORD, NoProgramError
from powerccl.analysis.programs.program import Collective, Program, Recorded
from powerccl.analysis.programs.recording import program_of_a_rank, program_tables
from powerccl.analysis.ways import Chosen, WaysForecast
from powerccl.errors import PowercclError
from powerccl.platforms.ways import (
    COPY_ENGINE,
    PLAIN,
    PRODUCTS,
    SURROUNDINGS,
    WAYS,
    WayPoint,
    WaysTable,
    never_slower_from,
)
from powerccl.quantities import percent
from powerccl.traces.folder import RunData
from powerccl.traces.sample_file import number_of
from powerccl.ways.replay import Cost, Replayed, replay

Key = tuple[str, int]  # pattern and bytes
Choice = dict[Key, str]  # by pattern and bytes the way; plain where it has none
REPLAYED = 0.05  # of the recorded time: a replay that is farther off says nothing
AT_LIMIT = 0.97  # of the power limit: the governor holds the mean within 3 % of it (two H200s: 691 to 693 of 700 W)
ALIKE = 0.1  # percent of time: a choice that saves less more is not worth another way


class WaysWhatIf(msgspec.Struct, kw_only=True):
    """The content of `powerccl whatif --ways --json`. `replayed_ms`: what the replay gives for the job as it was."""

    schema: int = 1
    emulated: str = ""
    folder: str = ""
    name: str = ""
    table: str
    provenance: str
    products: str = ""  # as WaysTable has it
    rank: int
    iterations: int
    iteration_ms: float
    replayed_ms: tuple[float, float]
    exposed_ms: float
    joules: float | None  # of an iteration, all GPUs
    power_limited: bool  # GPUs are at their power limit
    forecasts: list[WaysForecast]
    unmeasured: int  # collectives of an iteration that the table says nothing of
    notes: list[str] = []


@dataclass
class _Scene:
    """The iteration as it would be if all its computation were like one surrounding of the table."""

    surrounding: str
    recorded: Recorded
    before: Replayed

    @property
    def program(self) -> Program:
        """Of the rank that stands for all."""
        return self.recorded.programs[0]


class Forecaster:
    """Predicts choices of ways for one recorded run."""

    def __init__(
        self,
        calls: pl.DataFrame,
        kernels: pl.DataFrame,
        waits: pl.DataFrame,
        curves: Mapping[str, EnergyCurve],
        table: WaysTable,
        limit_w: float | None = None,
    ) -> None:
        """Tables as analysis.programs.recording takes them; `table`: of these GPUs; `limit_w`: power limit of all GPUs.

        Raises:
            PowercclError: the run has no typical iteration, or its replay is not like it.
        """
        self.table = table
        silent = calls.filter(pl.col("symmetric") | pl.col("copy_engine"))
        self._silent = {
            (str(p), int(b)) for p, b in silent.select("pattern", "bytes").unique(maintain_order=True).iter_rows()
        }
        surroundings = sorted({point.beside for point in table.points if point.beside in SURROUNDINGS})
        if not surroundings:
            raise PowercclError(
                f"the table of ways '{table.name}' was not measured beside computation",
                "measure: powerccl profile --ways",
            )
        try:
            self.scenes = [self._scene(each, calls, kernels, waits) for each in surroundings]
        except NoProgramError as error:
            raise PowercclError(
                f"there is no iteration to predict from: {error}",
                RECORD,
            ) from error
        self.recorded = self.scenes[0].recorded
        self.program = self.recorded.programs[0]
        for scene in self.scenes:
            off = abs(scene.before.time_us / self.recorded.time_us - 1)
            if off > REPLAYED:
                raise PowercclError(
                    f"the replay of the recorded iteration is {percent(100 * off)} off, so it predicts nothing",
                    "the job's iterations may differ from each other; record more of them",
                )
        self.joules = _joules(self.recorded, curves)
        watts = self.joules / (self.recorded.time_us / 1e6) if self.joules is not None else 0.0
        self.limit_w = limit_w
        self.power_limited = limit_w is not None and watts >= AT_LIMIT * limit_w
        products = [scene for scene in self.scenes if scene.surrounding == PRODUCTS]
        if self.power_limited and products:
            self.scenes = products

    @classmethod
    def of_run(cls, run: RunData, table: WaysTable) -> Forecaster:
        """Of a run as it was read."""
        try:
            recorded = program_tables(run)
        except NoProgramError as error:
            raise PowercclError(f"{run.folder}: {error}", RECORD) from error
        return cls(*recorded, energy_curves(run), table, power_limit(run))

    def _scene(self, surrounding: str, calls: pl.DataFrame, kernels: pl.DataFrame, waits: pl.DataFrame) -> _Scene:
        def loss(pattern: str, size: float) -> float:
            point, scale = self._point(pattern, int(size), PLAIN, surrounding)
            return (point.added_us or 0.0) * scale if point else 0.0

        recorded = program_of_a_rank(calls, kernels, waits, loss)
        program = recorded.programs[0]
        costs = [self._plain(each, surrounding) for each in program.collectives]
        return _Scene(surrounding, recorded, replay(program, costs))

    # ---- choices

    def keys(self) -> dict[Key, int]:
        """Patterns and sizes of an iteration's collectives that the table knows, with their number."""
        counts: dict[Key, int] = {}
        for each in self.program.collectives:
            key = (each.pattern, each.bytes)
            if len(each.members) == self.table.gpus and key not in self._silent and self._ways(*key):
                counts[key] = counts.get(key, 0) + 1
        return counts

    def automatic(self) -> Choice:
        """What `powerccl run --ways` does for PyTorch's FSDP2."""
        least = never_slower_from(self.table, "all_gather", COPY_ENGINE)
        return {
            key: COPY_ENGINE
            for key in self.keys()
            if least is not None and key[0] == "all_gather" and key[1] >= least and COPY_ENGINE in self._ways(*key)
        }

    def best(self) -> Choice:
        """The ways that save most, found one pattern and size after the other; no choice that may cost time."""
        chosen: Choice = {}
        for key in self.keys():
            best_worth = self._worth(chosen)
            for way in self._ways(*key):
                trial = {**chosen, key: way}
                worth = self._worth(trial)
                if worth > best_worth + ALIKE:
                    best_worth, chosen = worth, trial
        return chosen

    def _worth(self, choice: Choice) -> float:
        """Mean percentage of time and energy saved; far below zero where time may be lost."""
        forecast = self.forecast("", choice)
        least, most = forecast.time_saved_pct
        if least < -ALIKE:
            return -100.0
        return (least + most) / 2 + (sum(forecast.energy_saved_pct) / 2 if forecast.energy_saved_pct else 0.0)

    # ---- prediction

    def forecast(self, name: str, choice: Choice) -> WaysForecast:
        """What the choice would save."""
        times, energies = [], []
        for scene in self.scenes:
            costs = [self._cost(each, choice, scene.surrounding) for each in scene.program.collectives]
            after = replay(scene.program, costs)
            times.append(100 * (1 - after.time_us / scene.before.time_us))
            saved = self._joules_saved(scene, after, choice)
            if saved is not None and self.joules:
                energies.append(100 * saved / self.joules)
        counts = self.keys()
        return WaysForecast(
            name,
            [Chosen(key[0], key[1], number, choice.get(key, PLAIN)) for key, number in counts.items()],
            (min(times), max(times)),
            (min(energies), max(energies)) if energies else None,
        )

    def unmeasured(self) -> int:
        """Collectives of an iteration of which the table says nothing."""
        known = self.keys()
        return sum((each.pattern, each.bytes) not in known for each in self.program.collectives)

    def _joules_saved(self, scene: _Scene, after: Replayed, choice: Choice) -> float | None:
        """Of an iteration, all GPUs."""
        if self.joules is None:
            return None
        share = after.time_us / scene.before.time_us
        if self.power_limited:
            return self.joules * (1 - share)
        gpus = self.table.gpus
        watts = self.joules / (self.recorded.time_us / 1e6) / gpus
        joules = seconds = 0.0  # of one GPU, of the collectives themselves
        waiting: list[float] = []
        for each, before, now in zip(scene.program.collectives, scene.before.beside, after.beside, strict=True):
            way = choice.get((each.pattern, each.bytes), PLAIN)
            if way == PLAIN:
                continue
            us, energy, power = self._saved(each, way, scene.surrounding, (before + now) / 2, watts)
            seconds += us / 1e6
            joules += energy
            waiting.append(power)
        rest = (scene.before.time_us - after.time_us) / 1e6 - seconds
        idle = sum(waiting) / len(waiting) if waiting else watts
        saved = gpus * (joules + rest * min(idle, watts))
        most = self.limit_w * self.recorded.time_us / 1e6 * share if self.limit_w else self.joules
        return max(saved, self.joules - most)

    def _saved(
        self, each: Collective, way: str, surrounding: str, beside: float, watts: float
    ) -> tuple[float, float, float]:
        """What one GPU saves by a call of which the share `beside` is hidden: us, joules; and its watts in a wait."""
        us = joules = 0.0
        power = watts
        for where, share in (("", 1 - beside), (surrounding, beside)):
            plain, scale = self._point(each.pattern, each.bytes, PLAIN, where)
            other, _ = self._point(each.pattern, each.bytes, way, where)
            if plain is None or other is None:
                continue
            saved_us = (plain.cost_us - other.cost_us) * scale * share
            us += saved_us
            if plain.cost_joules is not None and other.cost_joules is not None:
                joules += (plain.cost_joules - other.cost_joules) * scale * share
            else:
                joules += saved_us / 1e6 * watts
            if not where and plain.joules_per_gpu is not None:
                power = plain.joules_per_gpu / (plain.time_us / 1e6)
        return us, joules, power

    # ---- costs of a collective

    def _cost(self, each: Collective, choice: Choice, surrounding: str) -> Cost:
        way = choice.get((each.pattern, each.bytes), PLAIN)
        plain, scale = self._point(each.pattern, each.bytes, PLAIN, "")
        other, _ = self._point(each.pattern, each.bytes, way, "")
        before, _ = self._point(each.pattern, each.bytes, PLAIN, surrounding)
        after, _ = self._point(each.pattern, each.bytes, way, surrounding)
        if way == PLAIN or plain is None or other is None:
            return self._plain(each, surrounding)
        alone = other.time_us * scale
        # A call took longer than alone: it waited for multiprocessors or memory, which the table has for both ways.
        starved = max(0.0, each.transfer_us - plain.time_us * scale)
        if before is not None and after is not None:
            longer = before.time_us - plain.time_us
            starved *= min(max((after.time_us - other.time_us) / longer, 0.0), 1.0) if longer > 0 else 1.0
        lost = after.added_us * scale if after is not None and after.added_us is not None else 0.0
        return Cost(alone + each.waited_us, alone + each.waited_us + starved, 0.0 if each.hosted else max(lost, 0.0))

    def _plain(self, each: Collective, surrounding: str) -> Cost:
        point, scale = self._point(each.pattern, each.bytes, PLAIN, surrounding)
        lost = (point.added_us or 0.0) * scale if point and not each.hosted else 0.0
        lasts_us = each.transfer_us + each.waited_us
        return Cost(lasts_us, lasts_us, lost)

    def _ways(self, pattern: str, size: int) -> list[str]:
        """The ways other than plain that the table has near that size: alone, and beside whatever is computed.

        What was not measured beside computation would pass for costing it nothing.
        """
        wheres = ["", *(scene.surrounding for scene in self.scenes)]
        return [
            way
            for way in WAYS
            if way != PLAIN and all(self._point(pattern, size, way, where)[0] is not None for where in wheres)
        ]

    def _point(self, pattern: str, size: int, way: str, beside: str) -> tuple[WayPoint | None, float]:
        """The table's point of the nearest measured size, and by what its times are to be multiplied."""
        near = self.table.nearest_size(pattern, size)
        if near is None or (pattern, size) in self._silent:
            return None, 1.0
        return self.table.point(pattern, near, way, beside), size / near


def power_limit(run: RunData) -> float | None:
    """Watts that the job's GPUs may draw together; None: not known of each."""
    limits_w = [number_of(log.about, f"gpu{rows['gpu'][0]}_power_limit_mw") / 1e3 for log, rows in job_samples(run)]
    return sum(limits_w) if limits_w and all(limits_w) else None


def _joules(recorded: Recorded, curves: Mapping[str, EnergyCurve]) -> float | None:
    """Of an iteration, all GPUs: the mean over all that was recorded between the first and the last typical one."""
    span = recorded.edges_ns[:1].copy()
    span[0, 1] = recorded.edges_ns[-1, 1]
    if not curves or not all(bool(curve.covers(span).all()) for curve in curves.values()):
        return None
    seconds = float(span[0, 1] - span[0, 0]) / 1e9
    return sum(curve.within(span) for curve in curves.values()) / seconds * recorded.time_us / 1e6


def predict_best(
    calls: pl.DataFrame,
    kernels: pl.DataFrame,
    waits: pl.DataFrame,
    curves: Mapping[str, EnergyCurve],
    table: WaysTable,
    limit_w: float | None = None,
) -> WaysForecast | None:
    """What the best ways would save in a run (arguments as Forecaster takes them); None: nothing can be predicted."""
    try:
        forecaster = Forecaster(calls, kernels, waits, curves, table, limit_w)
        return forecaster.forecast("best", forecaster.best())
    except (PowercclError, NoProgramError):
        return None


def ways_what_if(forecaster: Forecaster) -> WaysWhatIf:
    """The job as it is, as `run --ways` would have it, and with the best of all ways."""
    recorded, program = forecaster.recorded, forecaster.program
    replayed = [scene.before.time_us / 1e3 for scene in forecaster.scenes]
    automatic, best = forecaster.automatic(), forecaster.best()
    forecasts = [forecaster.forecast("best", best)]
    if automatic and automatic != best:
        forecasts.insert(0, forecaster.forecast("all-gathers by copy engines", automatic))
    return WaysWhatIf(
        table=forecaster.table.name,
        provenance=forecaster.table.provenance,
        products=forecaster.table.products,
        rank=program.rank,
        iterations=len(recorded.edges_ns),
        iteration_ms=recorded.time_us / 1e3,
        replayed_ms=(min(replayed), max(replayed)),
        exposed_ms=program.exposed_us / 1e3,
        joules=forecaster.joules,
        power_limited=forecaster.power_limited,
        forecasts=forecasts,
        unmeasured=forecaster.unmeasured(),
    )
