"""What to do next: a rule for each action, its gain and its command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import training_run

from powerccl.analysis.findings import (
    Clocks,
    Communication,
    CpuEnergy,
    Energy,
    Gpu,
    MpiImbalance,
    MpiRank,
    MpiSummary,
    PatternRow,
    RunSummary,
    Shares,
    StartupPart,
)
from powerccl.analysis.report import Waiting
from powerccl.analysis.report_findings import LinkRow, NextStep, Peers, RankParts, Straggler
from powerccl.analysis.ways import Possible, WaysFindings
from powerccl.commandline.summaries import summary_of
from powerccl.commands.advice import advise
from powerccl.console import Console
from powerccl.estimate import Estimate
from powerccl.platforms.ways import WaysTable, near_table_for
from powerccl.reports.next_steps import (
    MOST_STEPS,
    NOTHING,
    SIMULATED,
    Evidence,
    gain_text,
    next_steps,
    print_next_steps,
)
from powerccl.traces.folder import read_run

ROOT = Path(__file__).resolve().parents[2]
H100 = "NVIDIA H100 80GB HBM3"


def summary(name: str = H100, hosts: tuple[str, ...] = ("n1",), **more: Any) -> RunSummary:
    gpus = [Gpu(gpu=f"g{rank}", index=rank, host=host, ranks=[rank], name=name) for rank, host in enumerate(hosts * 2)]
    made: dict[str, Any] = {
        "folder": "runs/1-train",
        "command": ["torchrun", "--nproc-per-node", "2", "train it.py"],
        "ranks": 2 * len(hosts),
        "library": "nccl 2.30.7 profiler v6",
        "wall_s": 700.0,
        "energy": Energy(joules=1000.0),
        "communication": Communication(),
        "clocks": Clocks(),
        "clocks_mode": "none",
        "gpus": gpus,
        "shares": Shares(span_s=600.0, communicating_pct=3.0, exposed_pct=1.0),
    }
    return RunSummary(**{**made, **more})


def of(rule: str, evidence: Evidence) -> NextStep:
    (step,) = [each for each in next_steps(evidence) if each.rule == rule]
    return step


def rules(evidence: Evidence) -> list[str]:
    return [step.rule for step in next_steps(evidence)]


def pattern(name: str, size: int, gbs: float | None = 100.0) -> PatternRow:
    return PatternRow(
        pattern=name,
        size_class_bytes=size,
        calls=100,
        captured_calls=0,
        timed=100,
        median_bytes=size,
        total_bytes=100 * size,
        time_s=1.0,
        estimated_s=0.0,
        median_us=10.0,
        busbw_gbs=gbs,
        joules_per_operation=None,
    )


def found_ways(saved_pct: float, kind: str = "all_gather", way: str = "copy-engine", mib: int = 256) -> WaysFindings:
    saved = Estimate(saved_pct / 100 * 600, 0.0, saved_pct / 100 * 600)
    row = Possible(kind, mib << 20, 100, way, saved, None, 2 * mib << 20)
    return WaysFindings(table="mine", provenance="measured", span_s=600.0, rows=[row], calls=100)


TABLE = WaysTable(name="mine", gpu=H100, gpus=2, emulated=False, provenance="measured")


def straggler(cost_s: float | None, at_most_s: float | None = None) -> Waiting:
    row = Straggler(
        rank=1, gpu="g1", host="n1", collectives=100, last=90, last_pct=90.0, cost_s=cost_s, steady=True
    )  # fmt: skip
    row.cost_at_most_s = at_most_s
    return Waiting(Peers(matched_pct=100.0, ranks=[row]))


def mpi(mode: str, wait_s: float, sleep_s: float = 0.0, apart_s: float = 0.0) -> MpiSummary:
    last = MpiImbalance(
        function="MPI_Allreduce",
        comm_id=1,
        comm_name="",
        nranks=2,
        calls=100,
        imbalance_pct=50.0,
        latest_rank=1,
        wait_min_s=0.1,
        wait_max_s=0.1 + apart_s,
        time_max_s=20.0,
    )
    return MpiSummary(
        library="MPICH",
        ranks=2,
        processes=2,
        wait_mode=mode,
        wall_s=100.0,
        time_s=100.0,
        wait_s=wait_s,
        sleep_s=sleep_s,
        time_per_rank_s=50.0,
        wait_per_rank_s=wait_s / 2,
        transfer_per_rank_s=1.0,
        sleep_per_rank_s=sleep_s / 2,
        share_pct=50.0,
        cpu_s=200.0,
        sleeps=0,
        oversleep_us=None,
        rows=[],
        comms=[],
        by_rank=[MpiRank(rank=rank, host=f"n{rank}", pid=1) for rank in range(2)],
        imbalance=[last] if apart_s else [],
        energy=CpuEnergy(),
    )


def test_a_run_without_a_record_has_one_step() -> None:
    steps = next_steps(Evidence(summary(unrecorded="The job used no NCCL.", ranks=0, gpus=[])))
    assert [step.rule for step in steps] == ["record"]
    assert steps[0].command == "powerccl doctor"


def test_a_long_start_up_is_worth_at_most_its_share() -> None:
    parts = [StartupPart(until="the first communicator", time_s=70.0), StartupPart(until="x", time_s=30.0)]
    shares = Shares(span_s=600.0, startup_s=100.0, startup_joules=80.0, startup_parts=parts)
    step = of("startup", Evidence(summary(shares=shares)))
    assert step.gain_pct == Estimate.between(0.0, 100 * 100.0 / 700.0)
    assert step.of == "time"
    assert "8.0 % of the energy" in step.basis
    assert "70.0 s of it until the first communicator" in step.text
    assert step.command.endswith("--window 0:100 --html startup.html")


def test_the_start_up_of_a_trial_has_no_gain() -> None:
    shares = Shares(span_s=8.0, startup_s=43.0, startup_joules=400.0)
    evidence = Evidence(summary(shares=shares, wall_s=54.0))
    assert of("startup", evidence).gain_pct is None
    assert rules(evidence)[-1] == "startup"


def test_a_short_start_up_is_no_step() -> None:
    assert "startup" not in rules(Evidence(summary(shares=Shares(span_s=600.0, startup_s=9.0))))
    assert "startup" not in rules(Evidence(summary(shares=Shares(span_s=6000.0, startup_s=20.0), wall_s=6020.0)))


def test_a_straggler_is_named_with_its_host_and_gpu() -> None:
    evidence = Evidence(summary(hosts=("n1",)), straggler(60.0))
    step = of("straggler", evidence)
    assert "rank 1, GPU 1 of n1" in step.text
    assert step.gain_pct == Estimate(10.0, 0.0, 10.0)
    assert step.command == "powerccl report runs/1-train --perfetto ranks.perfetto"


def test_a_straggler_whose_clock_alone_is_limited_is_looked_at_by_the_driver() -> None:
    of_job = summary()
    of_job.gpus[1].throttle_reasons = ["power limit", "thermal limit (hardware)"]
    of_job.gpus[0].throttle_reasons = ["power limit"]
    step = of("straggler", Evidence(of_job, straggler(60.0)))
    assert step.text.endswith("Its clock alone was limited: thermal limit (hardware).")
    assert step.command == "nvidia-smi -i 1 -q -d PERFORMANCE,TEMPERATURE,POWER"


def test_what_a_straggler_costs_may_be_known_at_most() -> None:
    step = of("straggler", Evidence(summary(), straggler(None, 60.0)))
    assert step.gain_pct == Estimate(5.0, 0.0, 10.0)
    assert gain_text(step) == "up to 10 % of the time"


def test_a_straggler_of_no_cost_is_no_step() -> None:
    assert "straggler" not in rules(Evidence(summary(), straggler(1.0)))


def test_copy_engines_carry_the_gathers_of_fsdp2() -> None:
    of_job = summary(patterns=[pattern("all_gather", 256 << 20), pattern("reduce_scatter", 256 << 20)])
    step = of("ways", Evidence(of_job, ways=found_ways(2.0), table=TABLE))
    assert step.command == "powerccl run --ways auto -- torchrun --nproc-per-node 2 'train it.py'"
    assert step.gain_pct == Estimate(5.6, 0.0, 6.9)
    assert "512 MiB" in step.cost
    assert "NCCL 2.29" not in step.cost


def test_an_older_nccl_lacks_copy_engines() -> None:
    of_job = summary(library="nccl 2.28.9 profiler v5")
    step = of("ways", Evidence(of_job, ways=found_ways(2.0), table=TABLE))
    assert "needs NCCL 2.29 or newer, and this job has 2.28.9" in step.cost
    assert step.gain_pct == Estimate(1.0, 0.0, 2.0)


def test_another_machines_table_says_whether_to_measure() -> None:
    evidence = Evidence(summary(), ways=found_ways(2.0), table=TABLE, neighbour=True)
    step = of("measure-ways", evidence)
    assert step.command == "powerccl profile --ways"
    assert step.basis.endswith("other GPUs than yours")
    assert "ways" not in rules(evidence)


def test_other_ways_need_a_line_in_the_job() -> None:
    step = of("ways", Evidence(summary(), ways=found_ways(3.0, "all_reduce", "symmetric"), table=TABLE))
    assert "symmetric" in step.text
    assert step.command == "powerccl report runs/1-train"


def test_clocks_are_predicted_before_they_are_set() -> None:
    step = of("clocks", Evidence(summary()))
    assert step.command == "powerccl whatif runs/1-train"
    assert step.gain_pct == SIMULATED["H100"]


def test_a_prediction_of_the_run_comes_with_the_option() -> None:
    evidence = Evidence(summary(), clocks_pct=Estimate(3.0, 1.0, 5.0), clocks_slower_pct=Estimate(0.4, 0.0, 0.8))
    step = of("clocks", evidence)
    assert step.command.startswith("powerccl run --set-clocks -- torchrun")
    assert step.cost.startswith("about 1.0 % more time at most, 0.4 % by the prediction")
    assert next_steps(Evidence(summary(), clocks_pct=Estimate(0.1, -1.0, 2.6))) == []
    assert (
        gain_text(of("clocks", Evidence(summary(), clocks_pct=Estimate(0.1, -2.0, 25.0)))) == "up to 25 % of the energy"
    )


@pytest.mark.parametrize("mode", ["lease", "simulated"])
def test_clocks_that_are_set_already_are_no_step(mode: str) -> None:
    assert rules(Evidence(summary(clocks_mode=mode))) == []
    assert rules(Evidence(summary(clock_mhz=1200))) == []


def test_a_run_that_cannot_be_predicted_is_recorded_again() -> None:
    step = of("clocks", Evidence(summary(), unpredictable="the calls of rank 0 do not repeat"))
    assert "the calls of rank 0 do not repeat" in step.text
    assert step.command.startswith("POWERCCL_KERNEL_EVENTS=all powerccl run -- torchrun")


def test_gpus_of_no_simulated_kind_have_no_figure() -> None:
    step = of("clocks", Evidence(summary(name="NVIDIA L4")))
    assert step.gain_pct is None


def links(busbw_gbs: float, transfer_gbs: float | None, waiting_pct: float = 0.0) -> Waiting:
    row = LinkRow(
        pattern="all_reduce", size_class_bytes=64 << 20, operations=9, busbw_gbs=busbw_gbs, transfer_gbs=transfer_gbs
    )
    rank = RankParts(rank=0, gpu="g0", host="n1", span_s=600.0, exposed_waiting_s=6.0 * waiting_pct)
    return Waiting(Peers(matched_pct=100.0), [row], [rank])


def test_a_slow_link_or_several_hosts_are_worth_a_search() -> None:
    shares = Shares(span_s=600.0, communicating_pct=30.0, exposed_pct=20.0)
    one, apart = summary(shares=shares), summary(hosts=("n1", "n2"), shares=shares)
    fast, slow = links(200.0, 210.0), links(4.0, 5.0)
    assert "tune" not in rules(Evidence(one, fast))
    assert of("tune", Evidence(one, slow)).gain_pct == Estimate(10.0, 0.0, 20.0)
    assert "between 2 hosts" in of("tune", Evidence(apart, fast)).text


def test_waiting_for_a_rank_is_no_slow_link() -> None:
    shares = Shares(span_s=600.0, communicating_pct=30.0, exposed_pct=20.0)
    assert "tune" not in rules(Evidence(summary(shares=shares), links(4.0, 200.0)))
    assert "tune" not in rules(Evidence(summary(shares=shares), links(4.0, None)))
    some = of("tune", Evidence(summary(shares=shares), links(4.0, 5.0, waiting_pct=12.0)))
    assert some.gain_pct == Estimate(4.0, 0.0, 8.0)
    assert "tune" not in rules(Evidence(summary(shares=shares), links(4.0, 5.0, waiting_pct=16.0)))


def test_a_command_repeats_what_the_run_was_recorded_with() -> None:
    shares = Shares(span_s=600.0, communicating_pct=30.0, exposed_pct=20.0)
    predicted = Estimate(3.0, 1.0, 5.0)
    emulated = of("tune", Evidence(summary(shares=shares, emulated="t4x8"), links(4.0, 5.0)))
    assert emulated.command == "powerccl tune --emulate t4x8 --from runs/1-train"
    with_ways = of("clocks", Evidence(summary(), own_ways=True, clocks_pct=predicted))
    assert with_ways.command.startswith("powerccl run --ways auto --set-clocks -- torchrun")
    simulated = summary(emulated="simulated t4x8", command=["powerccl-sim", "a.scn"])
    assert of("clocks", Evidence(simulated, clocks_pct=predicted)).command == "powerccl-sim a.scn --policy auto"
    other_budget = of("clocks", Evidence(summary(), budget_pct=3.0, clocks_pct=predicted))
    assert "--set-clocks --max-slowdown 3 --" in other_budget.command
    assert other_budget.cost.startswith("about 3.0 % more time at most")


@pytest.mark.parametrize(("mode", "slept", "said"), [("observe", 0.0, True), ("auto", 60.0, False)])
def test_ranks_that_spin_can_sleep(mode: str, slept: float, said: bool) -> None:
    evidence = Evidence(summary(ranks=0, gpus=[], mpi=mpi(mode, 60.0, slept)))
    assert ("mpi" in rules(evidence)) == said
    if said:
        step = of("mpi", evidence)
        assert step.gain_pct == Estimate(15.0, 0.0, 30.0)
        assert step.of == "CPU time"
        assert "--mpi auto" in step.command


def test_a_late_rank_of_mpi_is_named_with_its_host() -> None:
    evidence = Evidence(summary(ranks=0, gpus=[], mpi=mpi("auto", 30.0, 30.0, apart_s=20.0)))
    step = of("straggler", evidence)
    assert "rank 1 on n1" in step.text
    assert step.gain_pct == Estimate(10.0, 0.0, 20.0)


def test_there_are_at_most_three_and_the_one_of_most_worth_is_first() -> None:
    shares = Shares(span_s=600.0, startup_s=100.0, startup_joules=100.0, communicating_pct=60.0, exposed_pct=50.0)
    waiting = replace(straggler(60.0), link=links(4.0, 5.0).link)
    steps = next_steps(Evidence(summary(shares=shares), waiting, found_ways(3.0), TABLE))
    assert len(steps) == MOST_STEPS
    worth = [step.gain_pct.value for step in steps if step.gain_pct]
    assert worth == sorted(worth, reverse=True)
    assert steps[0].rule == "tune"


def test_nothing_is_good_news(capsys: pytest.CaptureFixture[str]) -> None:
    print_next_steps(Console(), next_steps(Evidence(summary(clocks_mode="lease"))))
    assert NOTHING in capsys.readouterr().out


def test_a_command_emulates_only_what_has_a_name() -> None:
    assert Evidence(summary(emulated="t4x8")).run().startswith("powerccl run --emulate t4x8 -- ")
    assert Evidence(summary(emulated="yes")).run().startswith("powerccl run -- ")


def test_a_command_is_one_line_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_next_steps(Console(), next_steps(Evidence(summary(), ways=found_ways(3.0), table=TABLE)))
    assert "   powerccl run --ways auto -- torchrun --nproc-per-node 2 'train it.py'\n" in capsys.readouterr().out


def test_simulated_savings_are_those_of_the_results() -> None:
    figures = json.loads((ROOT / "evidence/results/robustness-simulated.json").read_text())["figures"]
    for word, known in SIMULATED.items():
        board = "a100" if word == "A800" else word.lower()
        of_all = figures[f"robustness.{board}.auto.median"]
        shown = [abs(round(of_all[key], 1)) for key in ("value", "low", "high")]
        assert [known.value, known.low, known.high] == shown


def test_the_nearest_table_is_of_the_same_gpu_or_of_one_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    two = near_table_for([H100, H100])
    assert two and (two.gpu, two.gpus) == ("NVIDIA H200", 2)
    eight = near_table_for(["NVIDIA H200"] * 8)
    assert eight and eight.gpus == 4
    assert near_table_for(["NVIDIA H100 PCIe"] * 2) is None
    assert near_table_for([H100]) is None


@pytest.mark.parametrize(("iterations", "command"), [(3, "POWERCCL_KERNEL_EVENTS=all powerccl run"), (40, "whatif")])
def test_whatif_is_advised_where_it_can_predict(tmp_path: Path, iterations: int, command: str) -> None:
    folder = training_run(tmp_path / "run", iterations=iterations)
    (step,) = [each for each in advise(read_run(folder), summary_of(folder)) if each.rule == "clocks"]
    assert command in step.command
