# SPDX-License-Identifier: Apache-2.0
"""Random machines and jobs that clock policies are tried on, and what is told of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from evidence.robustness import jobs, machines
from evidence.robustness.trials import Trial, best_held, best_of_each, profile_of
from tool_module import load_tool

from powerccl.platforms.conf import changed, points_of, value_of
from powerccl.platforms.policy_table import policy_table
from powerccl.whatif.simulator import Simulated

EVIDENCE = Path(__file__).resolve().parents[1]


def test_a_machine_is_the_same_wherever_it_is_drawn() -> None:
    assert machines.machine("reported", 7) == machines.machine("reported", 7)
    assert jobs.job("reported", 7, 8) == jobs.job("reported", 7, 8)


def test_what_constants_are_chosen_on_is_never_reported() -> None:
    kinds = [{machines.machine(kind, number).conf for number in range(50)} for kind in ("development", "reported")]
    assert len(kinds[0]) == len(kinds[1]) == 50
    assert not kinds[0] & kinds[1]


def test_machines_differ_as_they_are_meant_to() -> None:
    made = [machines.machine("development", number) for number in range(300)]
    for key, least, most in (
        ("governor_step_mhz", *machines.GOVERNOR_STEP_MHZ),
        ("governor_period_ms", *machines.GOVERNOR_PERIOD_MS),
        ("link_scale", 0.25, 2),
        ("gpu_spread", *machines.GPU_SPREAD),
    ):
        values = [each.drawn[key] for each in made]
        assert least <= min(values) < max(values) <= most
        assert min(values) - least < 0.05 * (most - least) and most - max(values) < 0.2 * (most - least)
    for board, (_, files) in machines.BOARDS.items():
        mine = [each for each in made if each.board == board]
        assert len(mine) == 75
        names = {value_of(each.conf, "gpu_name") for each in mine}
        assert names == {machines.board_values(name)["gpu_name"] for name in files}
        static = [each.drawn["static_w"] for each in mine]
        assert max(static) > 1.3 * min(static)


@pytest.mark.parametrize("number", range(20))
def test_a_machine_has_its_board_and_what_was_drawn(number: int) -> None:
    made = machines.machine("development", number)
    for key, value in made.drawn.items():
        assert float(value_of(made.conf, key)) == pytest.approx(value, rel=1e-5)
    _, files = machines.BOARDS[made.board]
    boards = [machines.board_values(name) for name in files]
    same = ("gpu_name", "clock_max_mhz", "memory_clock_mhz", "tree_w", "clock_transition_spread")
    points = len(points_of(made.conf, "voltage_v"))
    board = next(
        each
        for each in boards
        if len(each["voltage_v"].split()) == points and all(value_of(made.conf, key) == each[key] for key in same)
    )
    least, most = (float(board[f"clock_{end}_mhz"]) for end in ("min", "max"))
    curve, drawn = (points_of(f"voltage_v = {text}", "voltage_v")
                    for text in (board["voltage_v"], value_of(made.conf, "voltage_v")))  # fmt: skip
    stretched = {round(float(at) / float(before), 2) for (at, _), (before, _) in zip(drawn, curve, strict=True)}
    assert min(stretched) >= 0.94 and max(stretched) <= 1.06 and max(stretched) - min(stretched) < 0.02
    volts = [each for _, each in drawn]
    assert volts == sorted(volts) and volts[0] == curve[0][1]
    targets = points_of(made.conf, "clock_transition_us")
    median = float(board["clock_transition_us"])
    assert [float(at) for at, _ in targets] == [least, round((least + most) / 2), most]
    assert all(0.32 * median <= us <= 10.1 * median for _, us in targets)


def test_a_t4_like_machine_has_no_swinging_governor() -> None:
    made = machines.machine("development", 3)
    assert made.board == "t4" and value_of(made.conf, "governor_slow_gain") == "1"
    assert float(value_of((machines.PLATFORMS / "t4x8.conf").read_text(), "governor_slow_gain")) > 1


def test_policies_meet_daemons_lost_leases_and_ranks_that_are_off() -> None:
    for draw in (machines.machine, machines.cluster):
        made = [draw("development", number) for number in range(200)]
        assert all(len(each.options) in (0, 2, 4) for each in made)
        for option, least, most in (("--lease-interval", 80, 120), ("--lease-lost", 10, 30), ("--ranks-off", 10, 30)):
            assert least <= sum(option in each.options for each in made) <= most
    lost = [each for each in made if "--lease-lost" in each.options]
    hosts = {int(each.options[-1].partition(":")[0]) for each in lost}
    assert len(hosts) > 2 and all(int(each.options[-1].partition(":")[0]) < each.drawn["hosts"] for each in lost)


def test_a_cluster_is_hosts_of_a_machine_with_a_network() -> None:
    made = [machines.cluster("development", number) for number in range(60)]
    assert made[7] == machines.cluster("development", 7)
    assert {each.drawn["hosts"] for each in made} == {2, 4, 8}
    assert max(each.gpus for each in made) == 64
    for number, each in enumerate(made):
        host = machines.machine("development", number)
        assert each.gpus == host.gpus * each.drawn["hosts"] == float(value_of(each.conf, "gpus"))
        assert 1 <= float(value_of(each.conf, "network_gbs")) <= 50
        assert value_of(each.conf, "link_scale") == value_of(host.conf, "link_scale")


def test_a_key_that_a_platform_lacks_is_added() -> None:
    assert value_of(changed("name = a\n", {"link_scale": "2"}), "link_scale") == "2"
    with pytest.raises(KeyError):
        value_of("name = a\n", "link_scale")


@pytest.mark.parametrize("number", range(12))
def test_a_job_is_its_scenario_with_other_numbers(number: int) -> None:
    made = jobs.job("development", number, 8)
    lines = [line.partition("#")[0].split() for line in jobs.built_in(made.scenario).text.splitlines()]
    plain = [line for line in lines if line and line[0] != "seed"]
    drawn = [line.split() for line in made.text.splitlines() if not line.startswith("seed")]
    assert [line[0] for line in drawn] == [line[0] for line in plain]
    assert drawn != plain


def test_kernels_are_products_or_wait_for_memory() -> None:
    texts = "".join(jobs.job("development", number, 8).text for number in range(100))
    shares = [int(share) for share in re.findall(r"compute .*?memory (\d+)%", texts)]
    assert len(shares) == len(re.findall(r"^ *compute", texts, re.MULTILINE)) > 200
    for often, (least, most) in jobs.KERNELS:
        found = sum(least <= share <= most for share in shares) / len(shares)
        assert found == pytest.approx(often, abs=0.1)


def test_both_ends_of_a_transfer_are_of_one_size() -> None:
    made = next(each for number in range(50) if (each := jobs.job("development", number, 8)).scenario == "pp")
    assert len(set(re.findall(r"(?:send|receive) (\S+)", made.text))) == 1


def test_sixteen_gpus_have_no_mixture_of_experts() -> None:
    assert all(jobs.job("development", number, 16).scenario != "moe" for number in range(100))


def test_a_simulated_profile_makes_a_policy_table(tmp_path: Path) -> None:
    """An all-reduce that is as quick at 900 MHz as at 1590, and slower below."""
    points = [["all_reduce", 1 << 24, mhz, 1000.0 if mhz >= 900 else 1500.0] for mhz in (1590, 1200, 900, 600)]
    told = {"gpu": "Tesla T4", "gpus": 8, "clock_min_mhz": 300, "clock_max_mhz": 1590, "points": points}
    file = tmp_path / "points.json"
    file.write_text(json.dumps(told | {"set_clock_call_us": 250.0, "clock_transition_us": 1000.0}))
    table = policy_table(profile_of(file, "here"), "published")
    assert re.search(r"min_clock_mhz all_reduce \d+ inf 900", table)


class FourRanks:
    """Rank 2 computes 100 ms at 1500 MHz, the others 60. All wait for the last. Power follows the clock squared."""

    profile = SimpleNamespace(clock_min_mhz=300, clock_max_mhz=1500)

    def run(self, policy: str, seconds: float, warm_up_s: float, *clocks: int) -> Simulated:
        clocks = clocks or (1500,) * 4
        ms = max((100 if rank == 2 else 60) * 1500 / mhz for rank, mhz in enumerate(clocks))
        return Simulated(0, [ms] * 9, [ms * sum(mhz**2 for mhz in clocks)] * 9)


def test_each_rank_may_hold_a_clock_of_its_own() -> None:
    """Three of four may compute at 900 MHz, which is found to 75 MHz."""
    ranks = FourRanks()
    found = best_of_each(ranks, ranks.run("observe", 6, 3), 4, 0)  # type: ignore[arg-type]
    assert 100 * (1 - (1 + 3 * (975 / 1500) ** 2) / 4) < found < 100 * (1 - (1 + 3 * (899 / 1500) ** 2) / 4)


def test_the_best_clock_is_found_between_those_that_are_tried() -> None:
    """A power limit keeps clocks above 1250 MHz from mattering, and 1238 MHz costs the budget of 1 %."""

    class AtItsLimit(FourRanks):
        def run(self, policy: str, seconds: float, warm_up_s: float, *clocks: int) -> Simulated:
            mhz = min(1250, *clocks, 1500)
            return Simulated(0, [100 * 1250 / mhz] * 9, [mhz * 1.0] * 9)

    limited = AtItsLimit()
    saved, mhz = best_held(limited, limited.run("observe", 6, 3))  # type: ignore[arg-type]
    assert 1238 <= mhz < 1250 and 0 < saved <= 1


def trial(board: str, saved_pct: float, slowdown_pct: float) -> Trial:
    return Trial("auto", "m", "j", "base", "ddp", 100.0, saved_pct, slowdown_pct, 4.0, 1200, 0.1, board)


def test_figures_are_by_board() -> None:
    tool = load_tool("figures-robustness", EVIDENCE / "scripts")
    trials = [trial("a100", saved, 0.5) for saved in (1.0, 2.0, 9.0)]
    trials += [trial("t4", 30.0, 1.5), trial("t4", 20.0, -1.2)]
    found = tool.figures_of(trials, "auto")
    assert found["robustness.machines"]["value"] == 5
    assert (found["robustness.faster_rows"]["value"], found["robustness.fastest_pct"]["value"]) == (1, -1.2)
    a100 = found["robustness.a100.auto.saved_pct"]
    assert (a100["value"], a100["low"], a100["high"], a100["n"]) == (4.0, 1.0, 9.0, 3)
    assert found["robustness.a100.auto.median"]["value"] == 2.0
    assert found["robustness.a100.auto.within_budget_pct"]["value"] == 100.0
    assert found["robustness.t4.auto.within_budget_pct"]["value"] == 50.0
    assert "robustness.auto.saved_pct" not in found, "a mean over boards is of none"


def test_break_even_stalls_are_between_those_that_were_tried() -> None:
    tool = load_tool("figures-stall", EVIDENCE / "scripts")
    slow = {0: 0.2, 1: 0.4, 5: 1.6}
    trials = {("a100x4", at): trial("", 3.0 - at, pct) for at, pct in slow.items()}
    trials |= {("h100x8", at): trial("", 3.0, pct / 2) for at, pct in slow.items()}
    found = {name: each["value"] for name, each in tool.figures_of(trials, "per-call").items()}
    assert found["stall.a100x4.per_call.break_even_ms"] == 3.0
    assert found["stall.h100x8.per_call.break_even_ms"] is None
    assert found["stall.a100x4.per_call.energy_break_even_ms"] == 3.0
    assert found["stall.per_call.5ms.slowdown_pct"] == 1.6
    assert tool.passes_ms({0: 1.2, 1: 3.0}, 1.0) == 0.0
