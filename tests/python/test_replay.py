# SPDX-License-Identifier: Apache-2.0
"""A recorded iteration as a scenario, with ways as parameters of a search."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import fakes
import numpy as np
import pytest

from powerccl.analysis.programs.program import Collective, Program, Recorded
from powerccl.bench.trials import TrialFailedError
from powerccl.errors import PowercclError
from powerccl.launch.native import NativeFiles
from powerccl.launch.ways import LEAST, tuned_ways_environment
from powerccl.platforms.parameters import Parameter
from powerccl.platforms.tuned import TunedProfile, TunedWay
from powerccl.platforms.ways import COPY_ENGINE, PLAIN
from powerccl.tune.replay import first_tries, joined, parameters_of, scenario_text, split, with_plain, workload_of
from powerccl.tune.replay_bench import ReplayBench

GATHER, SCATTER = 256 << 20, 128 << 20


@pytest.fixture
def recorded() -> Recorded:
    """A gather that is hidden behind 700 us, and a reduction that is exposed at the end."""
    collectives = [
        Collective("all_gather", GATHER, (0, 1, 2, 3), 500.0, 0.0, 700.0),
        Collective("reduce_scatter", SCATTER, (0, 1, 2, 3), 500.0, 1000.0, 1000.0),
    ]
    edges_ns = np.stack([np.arange(9), np.arange(1, 10)], axis=1) * 1_500_000
    return Recorded([Program(1, 1000.0, 0.0, collectives, 500.0)], 1500.0, edges_ns)


def test_a_scenario_has_computation_and_collectives_in_their_order(recorded: Recorded) -> None:
    text = scenario_text(recorded, [TunedWay("all_gather", GATHER, "copy-engine")], stretch=0.5)
    assert text.splitlines()[1:] == [
        *("streams s0 s1", "wait compute on s0", f"all_gather {GATHER} on s0 by copy-engine", "compute 0.35"),
        *("wait s0 on compute", "compute 0.15", "wait compute on s1", "wait s0 on s1"),
        *(f"reduce_scatter {SCATTER} on s1 by plain", "wait s1 on compute", "wait s0 on compute"),
        "wait s1 on compute",
    ]


@pytest.mark.parametrize(
    ("nccl", "gathers"),
    [
        ("2.30.7", ("plain", "symmetric", "copy-engine", "efficiency")),
        ("2.28.9", ("plain", "symmetric", "efficiency")),
        ("2.26.2", None),
        ("", ("plain", "symmetric", "copy-engine", "efficiency")),
    ],
)
def test_a_way_is_a_parameter_where_nccl_has_it(recorded: Recorded, nccl: str, gathers: tuple[str, ...] | None) -> None:
    found = {parameter.name: parameter.values for parameter in parameters_of(recorded.programs[0], nccl)}
    assert found.get(f"way.all_gather.{GATHER}") == gathers
    assert "copy-engine" not in found.get(f"way.reduce_scatter.{SCATTER}", ())


def test_each_way_is_tried_before_anything_is_drawn() -> None:
    ways = (PLAIN, "symmetric", COPY_ENGINE)
    names = ("way.all_gather.200", "way.all_gather.100", "way.reduce_scatter.100")
    parameters = [Parameter(name, ways if "gather" in name else ways[:2], default=PLAIN) for name in names]
    first, second, third, *single = first_tries([*parameters, Parameter("NCCL_MAX_CTAS", ("1",))])
    assert first == dict.fromkeys(names[:2], COPY_ENGINE)
    assert second == dict.fromkeys(names[:2], "symmetric")
    assert third == {names[2]: "symmetric"}
    assert single == [{name: way} for way in (COPY_ENGINE, "symmetric") for name in names[:2]]


def test_ways_and_variables_are_told_apart() -> None:
    ways = [TunedWay("all_gather", GATHER, "copy-engine"), TunedWay("reduce_scatter", SCATTER, "plain")]
    assert split({"NCCL_MAX_CTAS": "8", **joined(ways)}) == ({"NCCL_MAX_CTAS": "8"}, ways)


def test_what_stays_plain_is_said_where_something_does_not(recorded: Recorded) -> None:
    """A job is given copy engines from a size on: a larger one that stays plain must be known."""
    parameters = parameters_of(recorded.programs[0], "2.30.7")
    found = [TunedWay("all_gather", GATHER, "copy-engine")]
    assert with_plain(found, parameters) == [*found, TunedWay("reduce_scatter", SCATTER, "plain")]
    assert with_plain([], parameters) == []


def profile(*ways: TunedWay) -> TunedProfile:
    return TunedProfile(1, "x", "NVIDIA H200", 2, 1, "2.30.7", ["nvlink"], "time", {}, [], [], ways=list(ways))


@pytest.mark.parametrize(
    ("ways", "least"),
    [
        ([TunedWay("all_gather", GATHER, "copy-engine")], f"{GATHER}@2"),
        ([TunedWay("all_gather", GATHER, "copy-engine"), TunedWay("all_gather", 1 << 20, "symmetric")], f"{GATHER}@2"),
        ([TunedWay("all_gather", GATHER, "symmetric"), TunedWay("all_gather", 1 << 20, "copy-engine")], None),
        ([TunedWay("reduce_scatter", GATHER, "symmetric")], None),
        ([TunedWay("all_gather", GATHER, "plain"), TunedWay("all_gather", 1 << 20, "copy-engine")], None),
    ],
)
def test_a_job_is_given_what_can_be_done_from_outside(ways: list[TunedWay], least: str | None) -> None:
    """Sizes from some one on go by copy engines; one above it that was found otherwise forbids that."""
    environment = tuned_ways_environment({"A": "b"}, profile(*ways))
    assert environment.get(LEAST) == least
    assert environment["A"] == "b"
    assert ("PYTHONPATH" in environment) == (least is not None)


def test_ways_change_what_is_applied() -> None:
    """Hosts must apply the same: the digest says whether they do."""
    assert profile().digest != profile(TunedWay("all_gather", GATHER, "copy-engine")).digest


BENCH = """
import json, os, sys
name = sys.argv[sys.argv.index("--json") + 1]
scenario = open(sys.argv[2]).read()
computes = sum(float(line.split()[1]) for line in scenario.splitlines() if line.startswith("compute"))
if "symmetric" in scenario:
    print("no such way"); sys.exit(3)
ms = computes + (0.2 if "copy-engine" in scenario else 0.6) + float(os.environ.get("NCCL_MAX_CTAS", 0)) / 1000
results = [{"step_ms": 99.0, "warmup": True}] + [{"step_ms": ms, "warmup": False}] * 9
json.dump({"results": results, "summary": {"joules_per_iteration": 2 * ms}}, open(name, "w"))
"""


@pytest.fixture
def bench(tmp_path: Path, recorded: Recorded) -> ReplayBench:
    """One whose iterations take what they compute, and 0.6 ms more, or 0.2 by copy engines."""
    native = NativeFiles(fakes.native_folder(tmp_path / "native"))
    program = native.path("bin/powerccl-bench")
    program.unlink(missing_ok=True)
    program.write_text(f"#!{sys.executable}\n{BENCH}")
    program.chmod(0o755)
    return ReplayBench(native, os.environ, recorded, {"ranks": 4}, tmp_path, 5.0)


def test_a_replay_is_made_as_long_as_the_iteration(bench: ReplayBench) -> None:
    """1.6 ms of replay for 1.5 recorded: computation takes 0.9 instead of 1.0."""
    assert bench.calibrate() == pytest.approx((1.5, 1.5))
    assert bench.stretch == pytest.approx(0.9)


def test_a_configuration_is_measured_with_its_ways_and_variables(bench: ReplayBench, recorded: Recorded) -> None:
    (case,) = workload_of(recorded, Path("run")).cases
    assert case.name == "iteration"
    bench.open({"NCCL_MAX_CTAS": "100", f"way.all_gather.{GATHER}": "copy-engine"})
    sample = bench.measure(case, energy=True)
    assert sample.time_us == pytest.approx(1300.0)
    assert len(sample.times_us) == 3
    assert sample.joules == pytest.approx(2.6)
    assert bench.measure(case, energy=False).joules is None


def test_a_way_that_nccl_refuses_fails_the_trial(bench: ReplayBench, recorded: Recorded) -> None:
    bench.open({f"way.all_gather.{GATHER}": "symmetric"})
    with pytest.raises(TrialFailedError, match="code 3: no such way"):
        bench.measure(workload_of(recorded, Path("run")).cases[0], energy=False)


def test_an_iteration_that_cannot_be_replayed_says_why(bench: ReplayBench) -> None:
    Path(bench.command[0]).write_text("#!/bin/sh\necho no GPU; exit 4\n")
    with pytest.raises(PowercclError, match=r"cannot be replayed: .*code 4: no GPU"):
        bench.calibrate()


def test_a_replay_that_hangs_is_ended(bench: ReplayBench, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.tune.replay_bench.START_S", 0.0)
    monkeypatch.setattr("powerccl.tune.replay_bench.QUICK_S", 0.1)
    bench.timeout_s = 0.5
    pid = bench.folder / "pid"
    Path(bench.command[0]).write_text(f"#!/bin/sh\necho $$ > {pid}; exec sleep 60\n")
    bench.open({})
    with pytest.raises(TrialFailedError) as caught:
        bench.measure(workload_of(recorded, Path("run")).cases[0], energy=False)
    assert caught.value.hung
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_results_that_name_no_iteration_fail_the_trial(bench: ReplayBench, recorded: Recorded) -> None:
    empty = json.dumps({"results": [], "summary": {}})
    script = f"import sys; open(sys.argv[sys.argv.index('--json') + 1], 'w').write('''{empty}''')"
    Path(bench.command[0]).write_text(f"#!{sys.executable}\n{script}\n")
    with pytest.raises(TrialFailedError, match="no iteration"):
        bench.measure(workload_of(recorded, Path("run")).cases[0], energy=False)
