# SPDX-License-Identifier: Apache-2.0
"""What is measured, compared, and proved: workloads, objectives, racing, confirming, and the profile that results."""

import time
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any

import pytest
from synthetic import MS, TraceWriter
from tuning_bench import MACHINE, MadeUpBench, first_match

from powerccl.bench.trials import Sample, TrialFailedError
from powerccl.bench.workload import Case, given, of_run
from powerccl.errors import PowercclError
from powerccl.platforms.rules import ANY, Rule
from powerccl.platforms.tuned import TUNED, TunedProfile, check_tuned, load_tuned, save_tuned
from powerccl.tune import budget
from powerccl.tune.confirm import FEWEST_ROUNDS, MOST_ROUNDS, Candidate, confirm
from powerccl.tune.objective import parse_objective, relative
from powerccl.tune.racing import Entrant, Spread, compare, hopeless
from powerccl.tune.rule_search import CaseSearch, algorithms, rules_for, search_rules

FASTER = {"NCCL_NSOCKS_PERTHREAD": "8", "NCCL_BUFFSIZE": "8388608"}


def test_objectives() -> None:
    assert parse_objective("time").value(0.5, None) == 0.5
    assert parse_objective("edp").value(0.5, 0.8) == pytest.approx(0.4)
    bounded = parse_objective("energy@slowdown=1%")
    assert bounded.slowdown == 0.01 and bounded.value(1.005, 0.7) == 0.7
    assert bounded.value(1.05, 0.7) > 1  # beyond its bound it is worse than the defaults, whatever it saves
    for wrong in ("speed", "energy@slowdown=", "energy@slowdown=-1%"):
        with pytest.raises(PowercclError, match="unknown objective"):
            parse_objective(wrong)


def test_a_workload_is_weighted_by_time() -> None:
    cases = [Case("all_reduce", 1024, 0.25), Case("all_reduce", 1 << 20, 0.75)]
    defaults = {cases[0].key: (10.0, 1.0), cases[1].key: (1000.0, 50.0)}
    costs = {cases[0].key: (20.0, 1.0), cases[1].key: (500.0, 25.0)}
    time, energy = relative(cases, costs, defaults)
    assert time == pytest.approx(0.25 * 2 + 0.75 * 0.5)
    # 0.025 operations of 1 J and 0.00075 of 50 J, by the defaults' times
    assert energy == pytest.approx((0.025 * 1 + 0.00075 * 25) / (0.025 * 1 + 0.00075 * 50))
    assert relative(cases, {**costs, cases[0].key: (20.0, None)}, defaults)[1] is None


def test_wrong_workloads_are_refused() -> None:
    assert [case.weight for case in given("all_reduce,broadcast", "1M,8M").cases] == [0.25] * 4
    for patterns, sizes in (("allreduce", "1M"), ("all_reduce", "big"), ("all_reduce", "1")):
        with pytest.raises(PowercclError):
            given(patterns, sizes)


def test_a_workload_from_a_run(tmp_path: Path) -> None:
    for rank in range(2):
        writer = TraceWriter(rank=rank, nranks=2)
        writer.comm(0)
        for number in range(20):
            start = number * 10 * MS
            writer.call(2 * number + 1, start, 64 << 20)
            writer.kernel(2 * number + 1, start, start + 8 * MS, 64 << 20)
            writer.call(2 * number + 2, start + 8 * MS, 4096, pattern="all_gather")
            writer.kernel(2 * number + 2, start + 8 * MS, start + 9 * MS, 4096, pattern="all_gather")
        writer.write(tmp_path)
    found = of_run(tmp_path)
    assert [(case.pattern, case.size_bytes, case.ranks) for case in found.cases] == [
        ("all_reduce", 64 << 20, 2),
        ("all_gather", 4096, 2),
    ]
    assert [round(case.weight, 3) for case in found.cases] == [0.889, 0.111]
    assert found.histogram[0].calls == 20
    with pytest.raises(PowercclError, match="no run folder"):
        of_run(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PowercclError, match="no collectives"):
        of_run(tmp_path / "empty")


def test_racing_decides_only_what_the_spread_allows() -> None:
    good, bad = Entrant([0.50]), Entrant([0.52])
    assert compare(good, bad, 0.02) == 0
    assert compare(Entrant([0.50] * 9), Entrant([0.52] * 9), 0.02) == -1
    assert compare(Entrant([0.52] * 9), Entrant([0.50] * 9), 0.02) == 1
    assert hopeless(0.6, good, 0.02) and not hopeless(0.53, good, 0.02)
    spread = Spread()
    spread.learn([exp(0.1), exp(-0.1)] * 20)
    assert spread.value == pytest.approx(0.1, rel=0.05)


def test_confirming_finds_the_truth_within_its_interval() -> None:
    cases = given("all_reduce", "1M,64M").cases
    covered = 0
    for seed in range(40):
        bench = MadeUpBench(noise=0.03, seed=seed)
        candidate = Candidate(FASTER)
        confirm(bench, {}, [candidate], cases, energy=True, seed=seed)
        for case, proof in zip(cases, candidate.proof, strict=True):
            truth = bench.time_us(FASTER, case) / bench.time_us({}, case)
            covered += proof.time_low <= truth <= proof.time_high
            assert proof.time_high < 1 and proof.energy is not None and proof.energy_high is not None
    assert covered >= 68  # of 80; 95 % are promised, and stopping when decided costs some


def test_confirming_does_not_take_noise_for_a_gain() -> None:
    cases = given("all_reduce", "1M").cases
    gains = 0
    for seed in range(60):
        candidate = Candidate({"NCCL_NTHREADS": "256"})
        confirm(MadeUpBench(noise=0.03, seed=seed), {}, [candidate], cases, False, seed=seed)
        proof = candidate.proof
        gains += proof[0].time_high < 1
        assert proof[0].rounds <= MOST_ROUNDS
    assert gains <= 6  # of 60; 2.5 % of intervals are wholly below 1 by chance, and looking often adds to that


def test_all_sides_take_turns_and_one_that_fails_is_left_out() -> None:
    bench = MadeUpBench()
    cases = given("all_reduce", "1M").cases
    with_rule = Candidate({}, [Rule(pattern="reduce", algorithm="ring", protocol="ll")])
    failing = Candidate({"NCCL_PROTO": "LL"})
    confirm(bench, {}, [Candidate(FASTER), with_rule, failing], cases, energy=False)
    assert failing.failed and not failing.proof and with_rule.proof
    sides = [(len(opened), len(rules)) for opened, rules in zip(bench.opened, bench.rules, strict=True)]
    rest = [side for side in sides if side != (1, 0)]
    assert all(sorted(rest[i : i + 3]) == [(0, 0), (0, 1), (2, 0)] for i in range(0, len(rest), 3))


class SlowBench(MadeUpBench):
    def open(self, *given: Any) -> None:
        time.sleep(0.02)
        super().open(*given)


def test_confirming_ends_in_time_but_not_too_soon() -> None:
    bench = MadeUpBench()
    confirm(bench, {}, [Candidate({"NCCL_NTHREADS": "256"})], given("all_reduce", "1M").cases, False, seconds=0)
    assert len(bench.opened) == 2 * FEWEST_ROUNDS  # an interval takes two; another round would not fit
    slow = SlowBench()
    began = time.monotonic()
    confirm(slow, {}, [Candidate({"NCCL_NTHREADS": "256"})], given("all_reduce", "1M").cases, False, seconds=0.25)
    assert time.monotonic() - began < 0.3
    assert 2 * FEWEST_ROUNDS < len(slow.opened) < 2 * MOST_ROUNDS


def test_stages_share_the_time_and_leave_enough_for_the_proof() -> None:
    began = time.monotonic()
    found = budget.Budget(began, 100.0, proof_s=5.0, least_s=2.0)
    assert found.proof() == pytest.approx(100 - budget.END_S, abs=0.1)
    whole = found.stage()
    assert whole == pytest.approx(100 * (1 - budget.PROOF) - budget.END_S, abs=0.1)
    later = (budget.SIMPLIFY, budget.RULES)
    assert budget.SEARCH + sum(later) == pytest.approx(1)
    assert found.stage(*later) == pytest.approx(budget.SEARCH * whole, abs=0.1)
    dear = budget.Budget(began, 100.0, proof_s=40.0, least_s=20.0)
    assert dear.stage() == pytest.approx(60 - budget.END_S, abs=0.1)
    assert budget.Budget(began, 100.0, proof_s=400.0, least_s=40.0).stage() == pytest.approx(50, abs=0.5)
    assert budget.Budget(began - 200, 100.0, proof_s=1.0, least_s=1.0).stage() == 0.0
    # A proof that takes most of the time leaves the rest to the search.
    assert budget.Budget(began, 100.0, proof_s=160.0, least_s=80.0).stage() == pytest.approx(20, abs=1)


class RulesBench(MadeUpBench):
    """Tree with LL is best below 1 MiB, four channels best of all; NVLS fails."""

    def measure(self, case: Case, energy: bool, thorough: bool = False) -> Sample:
        rule = first_match(self.rules[-1], case.pattern, case.size_bytes, MACHINE.nodes, MACHINE.ranks)
        when = 100.0
        if rule and rule.protocol == "ll128":
            raise TrialFailedError("unavailable")
        if rule and rule.protocol == "ll" and rule.algorithm == "tree" and case.size_bytes < 1 << 20:
            when = 50.0 if rule.channels == 4 else 60.0
        elif rule and rule.protocol == "ll":
            when = 130.0
        return Sample((when,), None)


def test_rules_are_found_for_each_size() -> None:
    bench = RulesBench()
    cases = [*given("all_reduce", "16K,64M").cases, Case("all_to_all", 1 << 20)]
    found = search_rules(bench, {}, cases, MACHINE, parse_objective("time"), seconds=60)
    assert [each.best(parse_objective("time")) for each in found] == [("tree", "ll", 4), None]
    assert any("unavailable" in reason for each in found for reason in each.failed.values())
    rules = rules_for([(each.case, each.best(parse_objective("time"))) for each in found], MACHINE)
    assert len(rules) == 1
    assert (rules[0].min_bytes, rules[0].max_bytes, rules[0].ranks) == (8192, 32768, 4)


def test_rules_of_neighbours_do_not_overlap() -> None:
    chosen = [(case, ("ring", "ll", ANY)) for case in given("all_reduce", "64K,128K,256K").cases]
    rules = sorted(rules_for(chosen, MACHINE), key=lambda rule: rule.min_bytes)
    assert all(a.max_bytes < b.min_bytes for a, b in pairwise(rules))
    assert algorithms("all_gather", ("sockets",)) == ["ring"]
    assert "nvls" in algorithms("all_reduce", ("nvlink", "nvls"))
    assert CaseSearch(chosen[0][0]).best(parse_objective("time")) is None


def profile(**more: object) -> TunedProfile:
    fields: dict[str, object] = {
        "schema_version": 1,
        "name": "here",
        "gpu": "NVIDIA H200",
        "ranks": 4,
        "nodes": 1,
        "nccl": "2.28.9",
        "links": ["sockets"],
        "objective": "time",
        "variables": FASTER,
        "rules": rules_for([(Case("all_reduce", 65536), ("tree", "ll", 2))], MACHINE),
        "confirmed": [],
    }
    return TunedProfile(**{**fields, **more})  # type: ignore[arg-type]


def test_a_profile_survives_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert TUNED.folder
    save_tuned(profile(), TUNED.folder / "here.json")
    assert load_tuned("here") == profile() and list(TUNED.known()) == ["here"]
    assert load_tuned("here").digest == profile().digest != profile(variables={}).digest
    with pytest.raises(PowercclError) as error:
        load_tuned("her")
    assert "did you mean 'here'" in error.value.hint
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PowercclError, match="is not a tuned profile"):
        load_tuned(str(tmp_path / "bad.json"))
    save_tuned(profile(schema_version=99), tmp_path / "new.json")
    with pytest.raises(PowercclError, match="schema 99"):
        load_tuned(str(tmp_path / "new.json"))


def test_a_profile_is_refused_elsewhere_with_a_reason() -> None:
    check_tuned(profile(), "NVIDIA H200", 4, "2.28.9")
    check_tuned(profile(), "", None, "")  # what is not known is not compared
    for gpu, ranks, nccl, word in (
        ("Tesla T4", 4, "2.28.9", "Tesla T4"),
        ("NVIDIA H200", 8, "2.28.9", "8"),
        ("NVIDIA H200", 4, "2.27.3", "2.27.3"),
    ):
        with pytest.raises(PowercclError, match=word):
            check_tuned(profile(), gpu, ranks, nccl)
