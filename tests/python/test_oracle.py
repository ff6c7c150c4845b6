# SPDX-License-Identifier: Apache-2.0
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.oracle import baseline, bound, platform, report, schedule  # noqa: E402
from bench.oracle.program import Builder  # noqa: E402
from bench.oracle.scenario import ScenarioError, draw, parse_scenario, parse_size, read_scenario  # noqa: E402
from bench.oracle.simulator import IDEAL, TWO_CORES, Call, Simulator  # noqa: E402

SCENARIOS = ["exposed", "ddp", "zero1", "fsdp", "tp", "pp", "moe", "straggler", "shift", "graph"]
SLOW = "t4x8:set_clock_call_us=4500,clock_transition_us=100000"


@pytest.fixture(scope="module")
def t4x8():
    return platform.read_platform("t4x8")


@pytest.fixture(scope="module")
def published():
    return json.loads((ROOT / "bench/results/scenarios-emulated.json").read_text())["figures"]


def scenario(name):
    return read_scenario(ROOT / f"bench/scenarios/{name}.scn")


def programs_of(p, s, warm_up, iterations):
    """As powerccl-bench replays them, the section by the share of the run."""
    builder, found, last = Builder(p, s), [], (None, None)
    for i in range(-warm_up, iterations):
        operations = [ops for begin, ops in s.sections if begin <= max(i, 0) / iterations][-1]
        if s.varies() or last[0] is not operations:
            last = (operations, builder.program(operations, i))
        found.append(last[1])
    return found


# ---- readers


def test_draws_are_those_of_powerccl_bench():
    # What the native draw() gives, printed by a program that links scenario_ranks.cpp.
    assert [draw(5, 0, r) for r in range(3)] == [0.30522557155436947, -0.74816812974974067, 0.10585523122862206]
    assert [draw(5, 119, r) for r in range(3)] == [-0.065013247478592051, -0.090544760131344937, -0.78794232614124726]


def test_sizes_and_wrong_lines():
    assert parse_size("12.5M") == 13107200
    assert parse_size("64KiB") == 65536
    with pytest.raises(ScenarioError, match="x:2"):
        parse_scenario("compute 1\ncompute 2 on nowhere\n", "x")


def test_changes_to_a_platform():
    changed = platform.read_platform("t4x8:link_scale=4,clock_transition_us=20000")
    plain = platform.read_platform("t4x8")
    assert changed["clock_transition_us"] == 20000
    quick, slow = (x.bandwidths_gbs("all_reduce", 2**26)[-1] for x in (changed, plain))
    assert quick == pytest.approx(4 * slow)
    with pytest.raises(platform.PlatformError, match="unknown key"):
        platform.read_platform("t4x8:link_speed=4")


def test_published_bandwidths(t4x8):
    """docs/concepts/emulator-calibration.md: broadcast of 512 KB at 500 and 1590 MHz."""
    bandwidths = t4x8.bandwidths_gbs("broadcast", 512 * 1024)
    assert bandwidths[t4x8.index(500)] == pytest.approx(3.5, rel=0.02)
    assert bandwidths[-1] == pytest.approx(2.8, rel=0.02)


# ---- simulator


@pytest.mark.parametrize("name", SCENARIOS)
def test_plain_run_agrees_with_the_emulator(t4x8, published, name):
    s = scenario(name)
    iterations = Simulator(t4x8, programs_of(t4x8, s, 5, 120), host=TWO_CORES).run()[5:]
    steps = [(i.end_ns - i.start_ns) * 1e-6 for i in iterations[:-1]]
    joules = sum(i.joules for i in iterations) / t4x8.gpus
    assert np.median(steps) == pytest.approx(published[f"scenario.{name}.step_ms"]["value"], rel=0.01)
    assert joules == pytest.approx(published[f"scenario.{name}.run_joules_per_gpu"]["value"], rel=0.02)


def calls_at(p, *calls):
    """The clock of GPU 0 in MHz at the end of 1 ms steps of an idle iteration."""
    s = parse_scenario("compute 40\n", "x")
    simulator = Simulator(p, [Builder(p, s).program(s.sections[0][1], 0)], calls)
    seen = {}
    for ms in range(1, 30):
        simulator._at(ms * 1_000_000 + 1, lambda ms=ms: seen.__setitem__(ms, p.clocks_mhz[simulator.gpus[0].clock]))
    simulator.run()
    return seen


def test_a_call_takes_its_time_and_then_the_clock():
    p = platform.read_platform("t4x8:set_clock_call_us=2000,clock_transition_us=5000")
    seen = calls_at(p, Call(0, 3e6, 0, 10))
    assert seen[9] > 450
    assert seen[10] == 450


def test_calls_for_different_gpus_wait_for_each_other():
    p = platform.read_platform("t4x8:set_clock_call_us=2000,clock_transition_us=5000")
    seen = calls_at(p, Call(0, 2e6, 1, 10), Call(0, 3e6, 0, 10))
    assert seen[10] > 450
    assert seen[11] == 450


def test_a_newer_call_replaces_a_transition_under_way():
    p = platform.read_platform("t4x8:set_clock_call_us=1000,clock_transition_us=8000")
    seen = calls_at(p, Call(0, 1e6, 0, 10), Call(0, 4e6, 0, 20))
    assert all(seen[ms] > 600 for ms in range(1, 13))
    assert seen[13] == 600


# ---- bound and schedules


def case_of(p, text):
    s = parse_scenario(text, "x")
    stretch = baseline.stretches_of(p, s)[0]
    measured = baseline.measure(p, stretch, IDEAL)
    return stretch, measured, baseline.cases_of([stretch], [measured])


STEP = "compute 30\nall_reduce 64M\n"


@pytest.mark.parametrize("name", ["t4x8", SLOW])
def test_no_lock_beats_the_bound(name):
    """Every constant clock, simulated: at the time it takes, the bound for that budget is no higher."""
    p = platform.read_platform(name)
    stretch, measured, cases = case_of(p, STEP)
    tried = 0
    for clock in range(20, 80, 12):
        calls = [Call(0, 0.0, gpu, clock) for gpu in range(p.gpus)]
        found = baseline.run(p, stretch.programs, IDEAL, calls, measured.gpus, passes=40, warm_passes=80)
        budget = found.total_ms[0] / measured.total_ms[0] - 1
        if budget > 0.5:
            continue
        least = bound.least_energy(p, cases, IDEAL, budget + 1e-6)
        assert least.joules <= found.joules[0]
        assert least.joules > 0.8 * found.joules[0]
        tried += 1
    assert tried >= 3


def test_a_schedule_comes_near_the_bound(t4x8):
    stretch, measured, cases = case_of(t4x8, STEP)
    least = bound.least_energy(t4x8, cases, IDEAL, 0.01)
    found = schedule.Search(t4x8, stretch, measured, IDEAL, 0.01).best(least.plans, False)
    saved, most = (1 - x / cases[0].joules for x in (found.joules, least.joules))
    assert found.total_ms <= 1.01 * cases[0].total_ms
    assert 0.9 * most < saved <= most


def test_the_slower_the_switch_the_less_there_is_to_save():
    text = "repeat 8\ncompute 3\nall_reduce 4M\nend\n"
    saved = []
    for clock_transition_us in (30, 20000):
        p = platform.read_platform(f"t4x8:set_clock_call_us=20,clock_transition_us={clock_transition_us}")
        _, _, cases = case_of(p, text)
        saved.append(1 - bound.least_energy(p, cases, IDEAL, 0.01).joules / cases[0].joules)
    assert saved[1] < saved[0] - 0.005


def test_who_does_not_know_what_comes_saves_less(t4x8):
    shift = scenario("shift")
    saved = [report.oracle(t4x8, shift, 0.01, False, each)["oracle"]["bound_saving_pct"] for each in (True, False)]
    assert 5 < saved[0] < saved[1] - 1


def test_lowering_communication_alone_saves_less(t4x8):
    _, _, cases = case_of(t4x8, "rank 3 x1.3\n" + STEP)
    every, communication = (bound.least_energy(t4x8, cases, IDEAL, 0.01, x).joules for x in (False, True))
    assert every < 0.95 * communication
    assert communication < cases[0].joules
