# SPDX-License-Identifier: Apache-2.0
"""The search over a made-up machine: what it finds, what it avoids, and that it can be taken up again."""

from pathlib import Path

import pytest
from tuning_bench import MACHINE, MadeUpBench

from powerccl.bench.workload import Case, given
from powerccl.errors import PowercclError
from powerccl.platforms.parameters import Space, make_space
from powerccl.tune.objective import parse_objective
from powerccl.tune.simplify import simplify
from powerccl.tune.study import FAILED_VALUE, Limits, Outcome, Study

CASES = given("all_reduce", "1M,64M").cases
PARAMETERS = (
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_SOCKET_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_PROTO",
    "NCCL_IGNORE_CPU_AFFINITY",
)


def space_of(names: tuple[str, ...]) -> Space:
    space = make_space(MACHINE, ["all_reduce"], {})
    space.parameters = [parameter for parameter in space.parameters if parameter.name in names]
    return space


def make_study(journal: Path, objective: str = "time", seed: int = 1, cases: list[Case] = CASES) -> Study:
    return Study(
        journal,
        space_of(PARAMETERS),
        cases,
        parse_objective(objective),
        {"GPUs": MACHINE.gpu, "objective": objective},
        seed,
    )


def best_possible(bench: MadeUpBench) -> float:
    times = []
    for sockets in (1, 2, 4, 8, 16):
        for threads in (1, 2, 4, 8, 16):
            if sockets * threads <= 64 and (sockets, threads) != (16, 4):
                values = {"NCCL_NSOCKS_PERTHREAD": f"{sockets}", "NCCL_SOCKET_NTHREADS": f"{threads}"}
                values["NCCL_BUFFSIZE"] = "8388608"
                times.append(sum(c.weight * bench.time_us(values, c) / bench.time_us({}, c) for c in CASES))
    return min(times)


def search(study: Study, bench: MadeUpBench, trials: int) -> list[Outcome]:
    heard: list[Outcome] = []
    study.search(bench, Limits(trials=trials), heard.append)
    return heard


def test_finds_what_is_best_and_beats_the_defaults(tmp_path: Path) -> None:
    bench = MadeUpBench()
    study = make_study(tmp_path / "j")
    heard = search(study, bench, 70)
    best = study.best()
    assert best is not None and best.value < 1.1 * best_possible(bench)
    assert 60 <= len(heard) <= 70
    assert best.configuration["NCCL_BUFFSIZE"] in ("8388608", "16777216", "33554432")


def test_what_fails_or_hangs_is_recorded_once_and_avoided(tmp_path: Path) -> None:
    bench = MadeUpBench()
    study = make_study(tmp_path / "j")
    search(study, bench, 80)
    failed = [outcome for outcome in study.outcomes() if outcome.status == "failed"]
    assert failed and all("no algorithm" in outcome.reason for outcome in failed)
    assert all(outcome.value == FAILED_VALUE for outcome in failed)
    ran = [str(c) for c in bench.opened if c.get("NCCL_PROTO") == "LL"]
    assert len(ran) == len(set(ran))  # none twice
    failing = [o.status in ("failed", "hung") for o in study.outcomes()]
    assert sum(failing[-30:]) < sum(failing[:30])


def test_a_hanging_configuration_is_told_from_a_failing_one(tmp_path: Path) -> None:
    study = make_study(tmp_path / "j")
    study.warm_start([{"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "16"}])
    search(study, MadeUpBench(), 3)
    assert [o.status for o in study.outcomes()].count("hung") == 1
    assert not study.warm_start([{"NCCL_PROTO": "Simple"}])  # once a study


def test_a_study_taken_up_again_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole = make_study(tmp_path / "whole")
    search(whole, MadeUpBench(noise=0), 40)
    first = make_study(tmp_path / "parts")
    search(first, MadeUpBench(noise=0), 17)
    again = make_study(tmp_path / "parts")
    search(again, MadeUpBench(noise=0), 40)
    one, other = whole.best(), again.best()
    assert one is not None and other is not None
    assert one.configuration == other.configuration
    assert [o.configuration for o in whole.outcomes()] == [o.configuration for o in again.outcomes()]


def test_another_search_is_not_mixed_in(tmp_path: Path) -> None:
    make_study(tmp_path / "j")
    with pytest.raises(PowercclError, match=r"from other settings .objective: time there, energy here"):
        make_study(tmp_path / "j", "energy")


def test_a_search_goes_on_only_on_like_machines(tmp_path: Path) -> None:
    make_study(tmp_path / "j")
    space, objective = make_space(MACHINE, ["all_reduce"], {}), parse_objective("time")
    with pytest.raises(PowercclError, match=r"another machine .GPUs: .* there, Tesla T4 here; driver: none there, 580"):
        settings = {"GPUs": "Tesla T4", "objective": "time", "driver": "580"}
        Study(tmp_path / "j", space, CASES, objective, settings)
    old = make_study(tmp_path / "old")
    old.study.set_user_attr("settings", "GPU: Tesla T4; objective: time")  # as an older version wrote it
    with pytest.raises(PowercclError, match="names no machine"):
        make_study(tmp_path / "old")


def test_races_until_decided_and_gives_up_on_the_hopeless(tmp_path: Path) -> None:
    bench = MadeUpBench(noise=0.02)
    study = make_study(tmp_path / "j")
    search(study, bench, 60)
    outcomes = [o for o in study.outcomes() if o.stage == "search"]
    assert any(o.status == "pruned" for o in outcomes)  # the first case told enough
    best = study.best()
    assert best is not None and best.rounds >= 2  # nothing becomes best by one lucky communicator
    assert sum(o.rounds for o in outcomes) < 2.5 * len(outcomes)


def test_energy_within_a_slowdown_bound(tmp_path: Path) -> None:
    study = make_study(tmp_path / "j", "energy@slowdown=1%")
    search(study, MadeUpBench(), 40)
    best = study.best()
    assert best is not None and best.time <= 1.01 and best.energy is not None and best.energy < 0.6


def test_the_best_is_made_simpler_where_that_costs_nothing(tmp_path: Path) -> None:
    bench = MadeUpBench(noise=0.002)
    study = make_study(tmp_path / "j")
    best = {"NCCL_NSOCKS_PERTHREAD": "8", "NCCL_BUFFSIZE": "8388608", "NCCL_IGNORE_CPU_AFFINITY": "1"}
    study.warm_start([best])
    search(study, bench, 1)
    simplest = simplify(study, bench, Limits(), lambda _: None)
    assert simplest == {"NCCL_NSOCKS_PERTHREAD": "8", "NCCL_BUFFSIZE": "8388608"}


def test_defaults_that_fail_end_the_search_with_a_reason(tmp_path: Path) -> None:
    class Broken(MadeUpBench):
        def open(self, configuration: object, rules: object = ()) -> None:
            from powerccl.bench.trials import TrialFailedError

            raise TrialFailedError("unhandled system error")

    with pytest.raises(PowercclError, match="fails with its defaults: unhandled system error"):
        search(make_study(tmp_path / "j"), Broken(), 3)
