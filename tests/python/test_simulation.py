# SPDX-License-Identifier: Apache-2.0
"""From a recorded run to what the simulator takes: programs of ranks, their scenarios, and a model of the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import synthetic
from click.testing import CliRunner
from synthetic import MS, writers

from powerccl.analysis.programs.calls import Ints, NoProgramError
from powerccl.analysis.programs.program import Collective, Program, Recorded
from powerccl.analysis.programs.recording import Recording
from powerccl.commands import cli
from powerccl.platforms.conf import model_of, points_of, value_of
from powerccl.platforms.store import load_profile
from powerccl.traces.folder import read_run
from powerccl.whatif import machines
from powerccl.whatif.gpus import Gpu, limited_clocks, recorded_gpus
from powerccl.whatif.machines import Unknown
from powerccl.whatif.model import fitted
from powerccl.whatif.scaling import scaled
from powerccl.whatif.scenarios import scenario_texts, shape_of
from powerccl.whatif.simulator import Simulated, SimulatorError

PLATFORMS = Path(__file__).resolve().parents[2] / "native/testbed/emulator/platforms"
CONF = (PLATFORMS / "t4x8.conf").read_text()
MIB = 1 << 20


def test_exposed_collectives_follow_computation(tmp_path: Path) -> None:
    found = Recording(read_run(synthetic.exposed_run(tmp_path / "run"))).programs(0.9)
    assert [program.rank for program in found.programs] == [0, 1]
    assert found.time_us == pytest.approx(600_000, rel=1e-3)
    for program in found.programs:
        assert program.work_us == pytest.approx(150_000, rel=1e-3)
        assert program.uneven == 0
        assert [round(each.transfer_us / 1e3) for each in program.collectives] == [40, 370, 40]
        assert all(each.members == (0, 1) for each in program.collectives)
        assert all(each.released_us == pytest.approx(150_000, abs=50) for each in program.collectives)
        assert all(each.needed_us == pytest.approx(150_000, abs=50) for each in program.collectives)
    assert scenario_texts(found)[1].splitlines()[1].startswith("compute 1")


def test_without_marks_all_communication_is_exposed(tmp_path: Path) -> None:
    found = Recording(read_run(synthetic.exposed_run(tmp_path / "run", waits=False))).programs(0.9)
    assert not found.marked
    assert found.programs[0].work_us == pytest.approx(150_000, rel=1e-3)
    assert all(each.needed_us == each.released_us for each in found.programs[0].collectives)


def test_waiting_for_a_late_rank_is_no_transfer(tmp_path: Path) -> None:
    """The other rank waits 50 ms in its first kernel; what computes longer is the late rank's program."""
    found = Recording(read_run(synthetic.exposed_run(tmp_path / "run", late_ms=50))).programs(1.0)
    assert [round(program.work_us / 1e3) for program in found.programs] == [150, 200]
    assert [round(program.collectives[0].transfer_us / 1e3) for program in found.programs] == [40, 40]


def hidden_run(folder: Path, late_ms: int = 0) -> Path:
    """Iterations of 100 ms: a gather from 20 to 60 ms, needed at 80 ms; computation goes on at half speed beside it.

    The gather of rank 1 begins so much later.
    """
    for trace in writers(folder, 2):
        for index in range(20):
            now = (10 + 100 * index) * MS
            for call, (pattern, begin, end) in enumerate((("all_gather", 20, 60), ("all_reduce", 90, 100))):
                number = 2 * index + call + 1
                begin += late_ms if trace.rank == 1 and call == 0 else 0
                trace.call(number, now + (begin - 5) * MS, MIB, pattern=pattern, flags=0x40)
                trace.kernel(number, now + begin * MS, now + end * MS, MIB, pattern=pattern, delay_ns=0)
                trace.wait(number, now + (80 if call == 0 else 90) * MS, now + (80 if call == 0 else 100) * MS)
    synthetic.write_info(folder, 2010 * MS)
    return folder


def test_hidden_collectives_slow_computation_beside_them(tmp_path: Path) -> None:
    program = Recording(read_run(hidden_run(tmp_path / "run"))).programs(0.5).programs[0]
    gather, reduce = program.collectives
    # 90 ms of the iteration compute, of which 40 beside the gather at half speed.
    assert program.work_us == pytest.approx(70_000, rel=1e-3)
    assert gather.released_us == pytest.approx(20_000, rel=1e-2)
    assert gather.needed_us == pytest.approx(60_000, rel=1e-2)
    assert reduce.needed_us == pytest.approx(70_000, rel=1e-2)
    lines = scenario_texts(Recorded([program, replace(program, rank=1)], 1e5, recorded_edges()))[0].splitlines()
    assert lines[0] == "streams s0 s1"
    assert lines[2:4] == ["wait compute on s0", "all_gather 1048576 on s0"]
    assert lines[5] == "wait s0 on compute"


def test_a_kernel_that_waits_for_a_peer_slows_computation_too(tmp_path: Path) -> None:
    """Rank 0 waits 20 ms in the gather, whose kernel keeps its multiprocessors all the while."""
    found = Recording(read_run(hidden_run(tmp_path / "run", late_ms=20))).programs(0.5, waiting=True)
    assert [program.work_us for program in found.programs] == pytest.approx([70_000, 80_000], rel=1e-3)
    assert [program.collectives[0].transfer_us for program in found.programs] == pytest.approx([20_000, 20_000])


def recorded_edges() -> Ints:
    return np.array([[0, 1]], dtype=np.int64)


def test_ranks_of_a_pipeline_begin_with_the_same_calls(tmp_path: Path) -> None:
    """Ranks 0 and 1 reduce among themselves too, so that the iteration has more calls there."""
    folder = tmp_path / "run"
    for trace in writers(folder, 4):
        if trace.rank < 2:
            trace.comm(1 * MS, nranks=2, comm=1, comm_id=7)
        number = 0
        for index in range(20):
            now = (10 + 100 * index) * MS
            for comm, at in ((1, 30), (1, 50), (0, 60)):
                if comm == 1 and trace.rank > 1:
                    continue
                number += 1
                trace.call(number, now + at * MS, MIB, comm=comm, flags=0x40)
                trace.kernel(number, now + at * MS, now + (at + 5) * MS, MIB, comm=comm, delay_ns=0)
                trace.wait(number, now + at * MS, now + (at + 5) * MS, comm=comm)
    synthetic.write_info(folder, 2010 * MS)
    found = Recording(read_run(folder)).programs(1.0)
    assert [len(program.collectives) for program in found.programs] == [3, 3, 1, 1]
    assert [each.members for each in found.programs[0].collectives] == [(0, 1), (0, 1), (0, 1, 2, 3)]
    texts = scenario_texts(found)
    assert all(text.startswith("group g0 2 stride 1\n") for text in texts)
    assert "in g0" in texts[1]
    assert "in g0" not in texts[2]


def stages_run(folder: Path, told: bool = True) -> Path:
    """Two stages: 20 ms of computation, then an activation there and a gradient back; the last kernel was not timed."""
    for trace in writers(folder, 2):
        for index in range(20):
            base = (10 + 100 * index) * MS
            for call, at in ((0, 20), (1, 60)):
                number = 2 * index + call + 1
                sends = call == trace.rank
                peers = ((1 - trace.rank, -1) if sends else (-1, 1 - trace.rank)) if told else (-1, -1)
                trace.call(number, base + (at - 10) * MS, MIB, "send_receive", flags=0x40, parts=(sends, not sends))
                if number < 40:
                    end = base + (at + 5) * MS
                    trace.kernel(number, base + at * MS, end, MIB, "send_receive", delay_ns=0, peers=peers)
                trace.wait(number, base + at * MS, base + (at + 5) * MS)
    synthetic.write_info(folder, 2010 * MS)
    return folder


def test_messages_go_to_whom_they_went(tmp_path: Path) -> None:
    found = Recording(read_run(stages_run(tmp_path / "run"))).programs(1.0)
    ends = [[(each.sends_to, each.receives_from) for each in program.collectives] for program in found.programs]
    assert ends in ([[(1, None), (None, 1)], [(None, 0), (0, None)]], [[(None, 1), (1, None)], [(0, None), (None, 0)]])
    texts = scenario_texts(found)
    assert "send 1048576 to +1\n" in texts[0]
    assert "receive 1048576 from +1\n" in texts[0]
    assert "receive 1048576 from -1\n" in texts[1]
    with pytest.raises(NoProgramError, match="do not tell who exchanges with whom"):
        Recording(read_run(stages_run(tmp_path / "older", told=False))).programs(1.0)


def test_a_message_each_way_is_sent_first_by_one_of_both() -> None:
    """Between ranks 2 and 4 of every second rank: a distance of one in their communicator."""
    both = Collective("send_receive", MIB, (0, 2, 4, 6), 10.0, 0.0, None)
    programs = [
        Program(rank, 1e3, 0.0, [replace(both, sends_to=6 - rank, receives_from=6 - rank)] if rank in (2, 4) else [])
        for rank in range(8)
    ]
    texts = scenario_texts(Recorded(programs, 1e3, recorded_edges()))
    assert texts[4].index("send 1048576 to -1 in g0") < texts[4].index("receive 1048576 from -1 in g0")
    assert texts[2].index("receive 1048576 from +1 in g0") < texts[2].index("send 1048576 to +1 in g0")


def test_graphs_are_captured_again(tmp_path: Path) -> None:
    """A graph of 10 ms and two all-reduces, launched twice, then computation and a call that is in none."""
    folder = tmp_path / "run"
    for trace in writers(folder, 2):
        for call in (1, 2):
            trace.call(call, 2 * MS, MIB, flags=0x01)
        for index in range(20):
            base = (10 + 100 * index) * MS
            for launch in (0, 1):
                now = base + launch * 30 * MS
                for call in (1, 2):
                    trace.kernel(call, now + call * 10 * MS, now + (call * 10 + 2) * MS, MIB, delay_ns=0)
            trace.call(3 + index, base + 70 * MS, 8 * MIB, flags=0x40)
            trace.kernel(3 + index, base + 80 * MS, base + 90 * MS, 8 * MIB, delay_ns=0)
            trace.wait(3 + index, base + 80 * MS, base + 90 * MS)
    synthetic.write_info(folder, 2010 * MS)
    found = Recording(read_run(folder)).programs(1.0)
    assert [each.graph for each in found.programs[0].collectives] in ([0, 0, 1, 1, None], [None, 0, 0, 1, 1])
    assert found.programs[0].work_us == pytest.approx(82_000, rel=1e-3)
    lines = scenario_texts(found)[0].splitlines()
    first = lines.index("capture")
    assert lines[first + 2 :][:4] == ["all_reduce 1048576", "compute 8.0000", "all_reduce 1048576", "end"]
    assert lines.count("capture") == lines.count("end") == 2


@pytest.mark.parametrize(
    ("members", "shape"), [((0, 1, 2, 3), (4, 1)), ((1, 5), (2, 4)), ((3, 5, 7), (3, 2)), ((2,), (1, 1))]
)
def test_the_shape_of_a_communicator(members: tuple[int, ...], shape: tuple[int, int]) -> None:
    assert shape_of(members) == shape


def test_uneven_communicators_are_refused() -> None:
    with pytest.raises(NoProgramError, match="no even distance"):
        shape_of((0, 1, 3))
    each = Collective("all_reduce", MIB, (1, 2), 10.0, 0.0, None)
    programs = [Program(rank, 1e3, 0.0, [each] if rank in (1, 2) else []) for rank in range(4)]
    with pytest.raises(NoProgramError, match="do not divide 4 ranks"):
        scenario_texts(Recorded(programs, 1e3, recorded_edges()))


def test_what_cannot_be_simulated_says_why(tmp_path: Path) -> None:
    for name, change, why in (
        ("few", {"iterations": 4}, "do not repeat"),
        ("one", {"iterations": 7}, "fewer than 5 iterations of rank 0"),
    ):
        with pytest.raises(NoProgramError, match=why):
            Recording(read_run(synthetic.exposed_run(tmp_path / name, **change))).programs(1.0)  # type: ignore[arg-type]


def test_the_machine_is_as_quick_as_the_run(tmp_path: Path) -> None:
    run = Recording(read_run(synthetic.exposed_run(tmp_path / "run"))).programs(1.0)
    conf = machines.of_run(CONF, run)
    assert value_of(conf, "gpus") == "2"
    points = dict(point.split(":") for point in value_of(conf, "all_reduce.bandwidth_gbs").split())
    assert float(points["609222656"]) == pytest.approx(609_222_656 / 370e6, rel=1e-3)
    assert value_of(conf, "all_gather.bandwidth_gbs") == value_of(CONF, "all_gather.bandwidth_gbs")


def test_what_a_run_does_not_tell_can_be_changed() -> None:
    assert machines.with_unknown(CONF, Unknown()) == CONF
    before = points_of(CONF, "voltage_v")
    level = points_of(machines.with_unknown(CONF, Unknown(level=0.5)), "voltage_v")
    top = before[-1][1]
    assert (level[0][1], level[-1][1]) == pytest.approx((top / 2, top), abs=1e-3)
    assert [at for at, _ in level] == [at for at, _ in before]
    rises = [[(volts - curve[0][1]) / (top - curve[0][1]) for _, volts in curve] for curve in (level, before)]
    assert rises[0] == pytest.approx(rises[1], abs=1e-3), "the curve keeps its form"
    knee = value_of(machines.with_unknown(CONF, Unknown(knee=100.0)), "all_reduce.knee_mhz").split()
    assert {point.split(":")[1] for point in knee} == {value_of(CONF, "clock_max_mhz")}
    double = machines.drawing(CONF, 2.0)
    assert float(value_of(double, "static_w")) == 2 * float(value_of(CONF, "static_w"))
    h100 = (PLATFORMS / "h100x8.conf").read_text()
    for key in ("memory_static_w", "memory_w"):
        assert float(value_of(machines.drawing(h100, 2.0), key)) == 2 * float(value_of(h100, key))
    assert value_of(double, "power_limit_w") == value_of(CONF, "power_limit_w")


H100 = (PLATFORMS / "h100x8.conf").read_text()


def test_the_power_limit_is_that_of_the_run() -> None:
    gpus = [Gpu(500.0, None)] * 4
    conf = machines.with_limit(H100, gpus, known=True)
    assert value_of(conf, "power_limit_w") == value_of(conf, "governor_start_w") == "500"
    assert float(value_of(conf, "peak_limit_w")) == pytest.approx(760 * 5 / 7, rel=1e-4)
    assert value_of(conf, "static_w") == value_of(H100, "static_w")
    other = machines.with_limit(H100, [Gpu(350.0, None)], known=False)
    assert float(value_of(other, "static_w")) == pytest.approx(float(value_of(H100, "static_w")) / 2, rel=1e-4)
    assert machines.with_limit(H100, [Gpu(None, None)], known=True) == H100


def test_clocks_under_a_power_limit_tell_what_gpus_draw() -> None:
    # As recorded of four H100s in FSDP2.
    clocks = [1671.0, 1778.0, 1768.0, 1695.0]
    draws = machines.draws_at_limit(H100, clocks, 0.05)
    assert draws[0] > draws[3] > draws[2] > draws[1]
    assert 1.15 < draws[0] / draws[1] < 1.22, "what a product draws at 1778 MHz, over that at 1671"
    bound = machines.draws_at_limit(H100, clocks, 0.95)
    assert min(bound) > 1.25, "memory-bound kernels would not reach the limit"
    gpus = [Gpu(700.0, mhz) for mhz in clocks]
    assert limited_clocks(gpus) == clocks
    assert limited_clocks([*gpus, Gpu(700.0, None)]) == []
    t4 = (PLATFORMS / "t4x8.conf").read_text()
    unlike = machines.draws_at_limit(t4, [1200.0], 0.05)
    assert 0.7 < unlike[0] < 1, "a board without powers of memory traffic"
    assert len(value_of(machines.with_draws(H100, draws), "gpu_draws").split()) == 4


@pytest.mark.parametrize(
    ("reasons", "swing_mhz", "gpu"),
    [
        ("0x4", 75, Gpu(500.0, 1500.0)),
        ("0x4", 300, Gpu(500.0, 1500.0, steady=False)),
        ("0x0", 0, Gpu(500.0, None)),
    ],
)
def test_a_run_tells_the_limit_and_the_clock_under_it(tmp_path: Path, reasons: str, swing_mhz: int, gpu: Gpu) -> None:
    folder = synthetic.exposed_run(tmp_path / "run")
    for file in folder.glob("power-*.csv"):
        head = [line for line in file.read_text().splitlines() if line.startswith("#")]
        rows = [line.split(",") for line in file.read_text().splitlines() if not line.startswith("#")]
        at, why = rows[0].index("sm_clock_mhz"), rows[0].index("throttle_reasons")
        gpus = len({row[rows[0].index("gpu")] for row in rows[1:]})
        for number, row in enumerate(rows[1:]):
            row[at], row[why] = str(1500 + (swing_mhz if number // gpus % 2 else -swing_mhz)), reasons
        head += [f"# gpu{gpu}_power_limit_mw: 500000" for gpu in range(8)]
        file.write_text("\n".join([*head, *(",".join(row) for row in rows)]) + "\n")
    run = read_run(folder)
    found = recorded_gpus(run, 0, 1 << 62)
    rounded = [replace(each, clock_mhz=each.clock_mhz and round(each.clock_mhz, -1)) for each in found]
    assert rounded == [gpu] * len(run.ranks)
    assert recorded_gpus(run, -2, -1) == [Gpu(None, None)] * len(run.ranks)


def collective(size: int, transfer_us: float, members: tuple[int, ...]) -> Collective:
    return Collective("all_reduce", size, members, transfer_us, 0.0, None)


def test_more_ranks_cost_latency_and_traffic() -> None:
    """10 us of latency and 1 us a MiB among two; pairs that are next to each other stay as they are."""
    world, pair = (0, 1, 2, 3), (0, 1)
    each = [collective(MIB, 11.0, world), collective(64 * MIB, 74.0, world), collective(MIB, 5.0, pair)]
    run = Recorded(
        [Program(rank, 1e3, 0.0, each if rank < 2 else each[:2]) for rank in range(4)], 1e3, recorded_edges()
    )
    found = [round(of.transfer_us, 2) for of in scaled(run, 16).programs[0].collectives]
    # Twice the steps, and 15/16 of the traffic instead of 3/4.
    assert found == [pytest.approx(20 + 1.25, abs=0.01), pytest.approx(20 + 80, abs=0.01), 5.0]
    assert scaled(run, 4).programs == run.programs
    with pytest.raises(NoProgramError, match="6 is no multiple of its 4 ranks"):
        scaled(run, 6)
    alone = Recorded([Program(rank, 1e3, 0.0, []) for rank in range(4)], 1e3, recorded_edges())
    with pytest.raises(NoProgramError, match="no collective is over all"):
        scaled(alone, 8)


def test_a_profile_tells_what_switching_costs() -> None:
    profile = load_profile("t4x8")
    assert profile.clock_switch is not None
    conf = machines.with_profile(CONF, profile)
    assert float(value_of(conf, "set_clock_call_us")) == pytest.approx(profile.clock_switch.call_us, rel=1e-4)


def test_gpus_without_a_model_are_taken_for_another() -> None:
    assert model_of("NVIDIA H200") == "h200x4"
    assert model_of("NVIDIA B300") == model_of("") == "h100x8"


def test_a_fit_finds_the_rate_beside_collectives() -> None:
    """The true rate is 0.6: programs that were read with a higher one compute for too long."""

    def programs(rate: float) -> Recorded:
        return Recorded([Program(0, 1e5 * (0.4 + rate), 0.0, [])], 1e5, recorded_edges())

    def simulate(conf: str, texts: list[str]) -> Simulated:
        ms = float(texts[0].split()[1])
        draws = float(value_of(conf, "static_w")) / float(value_of(CONF, "static_w"))
        return Simulated(0, [ms] * 10, [0.05 * ms * draws] * 10)

    unlimited = [Gpu(70.0, None)]
    found = fitted(CONF, programs, 55.0, unlimited, 0.35, simulate)
    assert found.plain.iteration_ms == pytest.approx(100, rel=0.02)
    assert found.scenarios[0].splitlines()[0].endswith(" memory 35%")
    assert found.watts_times == pytest.approx(1.1)
    too_much = fitted(CONF, programs, 1e4, unlimited, 0.35, simulate)
    assert too_much.watts_times == pytest.approx(200)  # so it is no such job
    assert float(value_of(too_much.conf, "static_w")) == pytest.approx(
        1.15 * float(value_of(CONF, "static_w")), rel=1e-4
    )


def test_a_fit_finds_what_leaves_gpus_their_clocks() -> None:
    """Collectives draw, too: the limit holds the clock at which both together draw it. The run's GPUs are equally fast
    at one clock, so the GPU with the higher clock has as much more work as it has less time.
    """
    clocks = [1400.0, 1350.0]

    def programs(rate: float) -> Recorded:
        return Recorded([Program(rank, 1e5, 0.0, []) for rank in range(2)], 1e5, recorded_edges())

    def simulate(conf: str, texts: list[str]) -> Simulated:
        draws = [times for _, times in points_of(conf, "gpu_draws")]
        grid = np.arange(1000.0, 1700.0)
        drawn = np.array([machines.computing_w(conf, mhz, 0.05) for mhz in grid])
        limited = [float(np.interp(650, times * drawn, grid)) for times in draws]
        ms = [
            float(text.split()[1]) / machines.speed(conf, mhz, 0.05) for text, mhz in zip(texts, limited, strict=True)
        ]
        return Simulated(0, [max(ms)] * 10, [1.0] * 10, limited_mhz=tuple(limited))

    found = fitted(H100, programs, 1300.0, [Gpu(700.0, mhz) for mhz in clocks], 0.05, simulate)
    assert found.plain.limited_mhz == pytest.approx(clocks, rel=0.005)
    assert found.plain.iteration_ms == pytest.approx(100, rel=0.005)
    work_ms = [float(text.split()[1]) for text in found.scenarios]
    assert work_ms[0] / work_ms[1] == pytest.approx(1400 / 1350, rel=0.003)


def test_a_clock_that_swings_is_not_matched() -> None:
    """The mean is no clock that the GPU had: its draw follows from it once, and nothing is fitted to it."""
    swinging = [Gpu(700.0, 1400.0, steady=False)]

    def simulate(conf: str, texts: list[str]) -> Simulated:
        return Simulated(0, [100.0] * 10, [1.0] * 10, limited_mhz=(1000.0,))

    found = fitted(
        H100, lambda rate: Recorded([Program(0, 1e5, 0.0, [])], 1e5, recorded_edges()), 650.0, swinging, 0.05, simulate
    )
    assert found.run.programs[0].work_us == 1e5
    assert points_of(found.conf, "gpu_draws")[0][1] == pytest.approx(
        machines.draws_at_limit(H100, [1400.0], 0.05)[0], rel=1e-3
    )


def test_the_same_iterations_are_compared() -> None:
    plain = Simulated(10, [1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    saved, slower = Simulated(11, [2.0, 3.3], [0.5, 0.5]).against(plain)
    assert (saved, slower) == pytest.approx((50.0, 6.0))
    with pytest.raises(SimulatorError, match="no iteration in common: 13 to 13, under observe 10 to 12"):
        Simulated(13, [1.0], [1.0]).against(plain)


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    folder = synthetic.exposed_run(tmp_path / "run", iterations=4)
    shown = CliRunner().invoke(cli, ["whatif", str(folder), "--platform", "none"])
    assert shown.exit_code == 1
    assert "cannot be simulated: the calls of rank 0 do not repeat" in shown.output
