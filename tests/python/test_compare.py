# SPDX-License-Identifier: Apache-2.0
"""`powerccl compare`: sides read, judged and shown."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from printing import printed
from synthetic import mpi_run, training_run, write_info
from test_breakdown import late_run

from powerccl.analysis.report import report
from powerccl.commands import cli
from powerccl.compare.member import BANDWIDTH, POWER, TIME, Key
from powerccl.compare.page import compare_page
from powerccl.compare.report import as_csv, change_text, grids, markdown, print_compare
from powerccl.compare.side_by_side import compare_sides
from powerccl.compare.significance import (
    HIGHER,
    LOWER,
    SAME,
    UNKNOWN,
    Value,
    cell,
    change,
    mean_of,
    median_of,
)
from powerccl.compare.sources import read_member
from powerccl.errors import PowercclError


def point(pattern: str, size: int, time_us: float, spread: float = 0.01, **more: Any) -> dict[str, Any]:
    return {
        "pattern": pattern,
        "size_bytes": size,
        "dtype": "float32",
        "op": "sum" if "reduce" in pattern else None,
        "root": None,
        "in_place": False,
        "clock_requested_mhz": None,
        "iterations": 200,
        "time_us": time_us,
        "time_low_us": time_us * (1 - spread),
        "time_high_us": time_us * (1 + spread),
        "busbw_gbs": size / time_us / 1e3,
        "watts_all_gpus": 1400.0,
        "joules_all_gpus": 1400.0 * time_us / 1e6,
        "energy_updates": 12.0,
        "energy_uncertainty_pct": 2.0,
        "energy_reason": None,
        "wrong": None,
        **more,
    }


SIZES = (4, 1 << 10, 1 << 20, 1 << 28)


def sweep(path: Path, latency_us: float, gbs: float, sizes: tuple[int, ...] = SIZES, **more: Any) -> Path:
    """All-reduces that take latency + size / bandwidth."""
    results = [point("all_reduce", size, latency_us + size / gbs / 1e3) for size in sizes]
    document = {
        "schema": 1,
        "mode": "sweep",
        "version": "0.1.0",
        "finished": True,
        "error": None,
        "command": ["/opt/bin/powerccl-bench", "all_reduce", "--json", str(path)],
        "host": "node1",
        "emulated": False,
        "nccl_version": "2.28.9",
        "gpu": "NVIDIA L40",
        "ranks": 6,
        "results": results,
        "summary": {},
        **more,
    }
    path.write_text(json.dumps(document))
    return path


def plain(found: Any, width: int = 120) -> str:
    return printed(print_compare, found, width=width)


def of(*numbers: float) -> list[Value]:
    return [Value(value=number) for number in numbers]


def test_a_real_difference_and_chance_are_told_apart_by_several_runs() -> None:
    apart = change(of(100, 101, 99, 100), of(90, 91, 89, 90))
    assert apart.verdict == LOWER and apart.of_settings
    assert apart.pct == pytest.approx(-10)
    assert apart.low_pct is not None and apart.high_pct is not None
    assert apart.low_pct < -10 < apart.high_pct < -8
    chance = change(of(100, 110, 90), of(101, 95, 107))
    assert chance.verdict == SAME
    assert "3 against 3 runs" in chance.basis


def test_a_run_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    """The rest is compared, the damaged one named, and the exit code says that it was not all."""
    slow, fast = (sweep(tmp_path / f"{name}.json", 20, gbs) for name, gbs in (("slow", 10), ("fast", 20)))
    damaged = tmp_path / "damaged.json"
    damaged.write_text(slow.read_text()[:-40])
    words = ["compare", f"a={slow},{damaged}", f"b={fast}", "--json", str(tmp_path / "found.json")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1
    assert "error: 1 of 3 could not be read; the comparison is of the others" in done.stderr
    assert "a: left out: " in done.stdout and "damaged.json" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert [side["members"] for side in found["sides"]] == [[str(slow)], [str(fast)]]
    assert found["rows"]
    for lost in (str(damaged), f"{damaged},{damaged}"):  # a whole side: there is nothing to compare
        done = CliRunner().invoke(cli, ["compare", lost, str(fast)])
        assert done.exit_code == 1 and "damaged.json" in done.stderr and not done.stdout


def test_welchs_interval_is_that_of_the_textbook() -> None:
    """Of logarithms 0, 0.02 and 0.10, 0.14: difference 0.11, errors 0.01 and 0.02, 1.47 degrees of freedom."""
    from math import exp, expm1, log

    from scipy import stats

    first, second = [exp(x) for x in (0.0, 0.02)], [exp(x) for x in (0.10, 0.14)]
    found = change(of(*first), of(*second))
    reference = stats.ttest_ind([log(x) for x in second], [log(x) for x in first], equal_var=False)
    low, high = reference.confidence_interval(0.95)
    assert (found.low_pct, found.high_pct) == pytest.approx((expm1(low) * 100, expm1(high) * 100))


def test_one_run_each_says_that_the_runs_differ_and_no_more() -> None:
    before = Value(value=100, low=99, high=101, n=5, kind="range", of="stretches")
    after = Value(value=90, low=89, high=91, n=5, kind="range", of="stretches")
    found = change([before], [after])
    assert found.verdict == LOWER and not found.of_settings
    assert change_text(found).endswith("*")
    assert change([before], [before]).verdict == SAME
    few = Value(value=90, low=89, high=91, n=3, kind="range", of="stretches")
    assert change([before], [few]).verdict == UNKNOWN


def test_one_value_each_is_not_judged() -> None:
    found = change(of(100), of(50))
    assert (found.pct, found.verdict, found.low_pct) == (-50, UNKNOWN, None)
    assert "A1,A2,A3" in found.basis
    assert change_text(found) == "-50.0 % ?"
    assert change(of(0), of(5)).pct is None
    assert change(of(5), []).pct is None


def test_one_run_against_several_is_as_uncertain_as_a_single_one() -> None:
    several = of(100, 102, 98, 101, 99)
    assert change(several, of(103)).verdict == SAME  # another of them might be that far off
    assert change(several, of(130)).verdict == HIGHER


def test_intervals_of_repeats_cover_the_truth_at_their_rate() -> None:
    """Neighbours that resemble each other too: intervals over stretches of them stay honest."""
    import numpy as np

    random = np.random.default_rng(1)
    covered = {"independent": 0, "correlated": 0}
    rounds = 300
    for _ in range(rounds):
        noise = random.normal(0, 1, 400)
        smooth = np.convolve(random.normal(0, 1, 404), np.ones(5) / 5, "valid")[:400]
        for name, values in (("independent", noise), ("correlated", smooth)):
            found = mean_of((10 + values).tolist(), "iterations")
            assert found is not None and found.low is not None and found.high is not None
            covered[name] += found.low <= 10 <= found.high
    assert covered["independent"] / rounds > 0.91
    assert covered["correlated"] / rounds > 0.88


def test_a_medians_interval() -> None:
    import numpy as np

    random = np.random.default_rng(2)
    inside = 0
    for _ in range(300):
        values = random.normal(50, 5, 120)
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        found = median_of(float(middle), float(low), float(high), 120, "operations")
        assert found.low is not None and found.high is not None
        inside += found.low <= 50 <= found.high
    assert inside / 300 > 0.91
    assert median_of(5, 4, 6, 3, "operations").low is None
    assert mean_of([], "x") is None


def test_a_sides_interval_never_reaches_below_zero() -> None:
    found = cell(of(1, 10, 100))
    assert found.value == 37 and found.low is not None and found.low > 0


def test_two_networks_in_the_form_of_the_published_table(tmp_path: Path) -> None:
    fast = [sweep(tmp_path / f"fast{n}.json", 40 + n / 10, 10) for n in range(3)]
    slow = [sweep(tmp_path / f"slow{n}.json", 123 + n / 10, 1.8) for n in range(3)]
    found = compare_sides([f"10GbE={','.join(map(str, slow))}", f"100GbE={','.join(map(str, fast))}"], Path)
    rows = {row.what: row for row in found.headline if row.what != "GPU power"}
    assert rows["latency"].size_bytes == 4
    assert rows["latency"].changes[0].pct == pytest.approx(-67.4, abs=0.1)
    assert rows["latency"].changes[0].verdict == LOWER
    assert rows["time"].size_bytes == 1 << 28
    assert rows["time"].changes[0].pct == pytest.approx(-82, abs=0.1)
    bandwidth = rows["peak bus bandwidth"]
    assert bandwidth.factor_low == pytest.approx(123.1 / 40.1, rel=0.01)
    assert bandwidth.factor_high == pytest.approx(10 / 1.8, rel=0.01)
    powers = [row for row in found.headline if row.what == "GPU power"]
    assert [row.size_bytes for row in powers] == [4, 1 << 20, 1 << 28]
    assert {row.changes[0].verdict for row in powers} == {SAME}
    shown = plain(found)
    assert "100GbE against 10GbE" in shown
    assert "all-reduce latency, 4 B" in shown
    assert "emulated" not in shown
    assert not any("differ" in text for text in found.caveats)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    found = compare_sides([str(sweep(tmp_path / "a.json", 40, 10)), str(sweep(tmp_path / "b.json", 123, 1.8))], Path)
    assert max(map(len, plain(found, width).splitlines())) <= width


def test_three_sides(tmp_path: Path) -> None:
    names = [str(sweep(tmp_path / f"{name}.json", 40, gbs)) for name, gbs in (("a", 10), ("b", 5), ("c", 2.5))]
    found = compare_sides(names, Path)
    row = next(row for row in found.rows if row.what == BANDWIDTH and row.size_bytes == 1 << 28)
    assert [round(each.pct or 0) for each in row.changes] == [-50, -75]
    shown = plain(found, 80)
    assert "b against a" in shown and "c against a" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert grids(found, brief=True)[0].columns == ["", "a", "b", "change", "c", "change"]


def test_caveats_say_what_makes_it_hard(tmp_path: Path) -> None:
    first = sweep(tmp_path / "a.json", 40, 10, emulated=True)
    second = sweep(
        tmp_path / "b.json", 40, 10, ranks=8, error="rank 3 died", finished=False, sizes=(4, 1 << 10), gpu="Tesla T4"
    )
    found = compare_sides([str(first), str(second)], Path)
    text = "\n".join(found.caveats)
    assert found.emulated
    assert "mix emulated and real" in text
    assert "the number of ranks differs: 6 (a), 8 (b)" in text
    assert "the GPUs differ: NVIDIA L40 (a), Tesla T4 (b)" in text
    assert "b: failed: rank 3 died" in text
    assert "a: 2 points that not all sides have" in text


def test_what_differs_is_told_and_the_output_files_name_is_not(tmp_path: Path) -> None:
    first, second = sweep(tmp_path / "a.json", 40, 10), sweep(tmp_path / "b.json", 40, 10, nccl_version="2.29.1")
    found = compare_sides([str(first), str(second)], Path)
    assert found.differs == ["NCCL: 2.28.9 (a), 2.29.1 (b)"]
    assert not any("command" in text for text in found.caveats)


def test_members_of_a_side_that_are_not_alike_are_named(tmp_path: Path) -> None:
    odd = sweep(tmp_path / "odd.json", 40, 10, ranks=4)
    names = [f"{sweep(tmp_path / 'a.json', 40, 10)},{odd}", str(sweep(tmp_path / "b.json", 40, 10))]
    assert any("ranks is not the same in all of its members (6, 4)" in t for t in compare_sides(names, Path).caveats)


def test_points_in_json_lines_with_a_cut_off_end(tmp_path: Path) -> None:
    whole = json.loads(sweep(tmp_path / "a.json", 40, 10).read_text())
    rows = [{"type": "point", **row} for row in whole.pop("results")]
    path = tmp_path / "points.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ({"type": "header", **whole}, *rows)) + '\n{"type": "poi')
    member = read_member(path)
    assert len([key for key in member.values if key.what == TIME]) == len(SIZES)
    # A file with nothing but its first line is one object, and holds nothing.
    path.write_text(json.dumps({"type": "header", **whole}))
    with pytest.raises(PowercclError, match="nothing that was measured"):
        read_member(path)


def test_several_clocks_and_forms_are_kept_apart(tmp_path: Path) -> None:
    path = sweep(tmp_path / "a.json", 40, 10)
    document = json.loads(path.read_text())
    document["results"] = [
        point("all_reduce", 64, 10.0, clock_requested_mhz=clock, in_place=place)
        for clock in (900, 1590)
        for place in (False, True)
    ]
    path.write_text(json.dumps(document))
    keys = {key.variant for key in read_member(path).values if key.what == TIME}
    assert keys == {"900 MHz", "1590 MHz", "in place, 900 MHz", "in place, 1590 MHz"}


def test_a_sweep_without_energy_says_so(tmp_path: Path) -> None:
    path = sweep(tmp_path / "a.json", 40, 10)
    document = json.loads(path.read_text())
    for row in document["results"]:
        row.update(watts_all_gpus=None, joules_all_gpus=None, energy_reason="no NVML")
    path.write_text(json.dumps(document))
    member = read_member(path)
    assert not any(key.what == POWER for key in member.values)
    assert member.warnings == ["tells no power: no NVML"]


def mpi_file(path: Path, factor: float) -> Path:
    results = [
        {"test": "allreduce", "size_bytes": size, "iterations": 1000, "median_us": base * factor,
         "low_us": base * factor * 0.98, "high_us": base * factor * 1.02, "wrong": 0}
        for size, base in ((8, 2.0), (65536, 30.0))
    ]  # fmt: skip
    document = {
        "schema": 1, "mode": "collective", "test": "allreduce", "finished": True, "error": None, "command": ["x"],
        "mpi_version": "MPICH 5", "ranks": 2, "environment": {"POWERCCL_MPI": "auto"}, "results": results,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def test_mpi_sweeps(tmp_path: Path) -> None:
    found = compare_sides([str(mpi_file(tmp_path / "a.json", 1)), str(mpi_file(tmp_path / "b.json", 0.5))], Path)
    row = next(row for row in found.headline if row.what == "latency")
    assert (row.pattern, row.size_bytes, row.unit) == ("all_reduce", 8, "s")
    assert row.cells[0].value == pytest.approx(2e-6)
    assert row.changes[0].pct == pytest.approx(-50)
    assert row.changes[0].verdict == LOWER


def test_replayed_iterations(tmp_path: Path) -> None:
    for name, ms in (("a", 100.0), ("b", 101.0)):
        rows = [
            {"warmup": n < 2, "step_ms": (500 if n < 2 else ms) + n % 3, "joules_all_gpus": None} for n in range(32)
        ]
        document = {
            "schema": 1, "mode": "scenario", "finished": True, "error": None, "command": ["x"], "results": rows,
            "scenario": {"name": "ddp"}, "summary": {"iterations": 30, "run_joules_all_gpus": 600.0},
        }  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    found = compare_sides([str(tmp_path / "a.json"), str(tmp_path / "b.json")], Path)
    by_name = {row.what: row for row in found.rows}
    assert by_name["step"].cells[0].value == pytest.approx(0.101)
    assert by_name["step"].cells[0].n == 30
    assert by_name["step"].changes[0].verdict == HIGHER
    assert by_name["energy of a step, all GPUs"].cells[0].value == pytest.approx(20)


def test_runs(tmp_path: Path) -> None:
    names = [training_run(tmp_path / f"20260101-00000{n}-observe", comm_watts=45 + n) for n in range(2)]
    other = training_run(tmp_path / "20260101-000005-auto", comm_watts=32, iterations=3)
    write_info(other, 1_800_000_000, policy="auto", emulated="t4x8")
    found = compare_sides([f"{names[0]},{names[1]}", str(other)], Path)
    assert [side.name for side in found.sides] == ["observe +1", "auto"]
    rows = {(row.what, row.pattern): row for row in found.rows if row.size_bytes is None}
    assert rows["communication power", ""].changes[0].pct == pytest.approx((32 / 45.5 - 1) * 100, abs=2)
    kernel = next(row for row in found.rows if row.what == TIME and row.size_bytes == 1 << 29)
    assert kernel.cells[0].value == pytest.approx(0.370, rel=1e-3)
    assert any(text.startswith("policy: observe (observe +1), auto (auto)") for text in found.differs)
    assert any("emulated" in text for text in found.caveats)


def test_runs_by_their_totals(tmp_path: Path) -> None:
    names = [str(training_run(tmp_path / name, comm_watts=watts)) for name, watts in (("a", 45), ("b", 33))]
    found = compare_sides(names, Path)
    rows = {row.what: row for row in found.rows if row.size_bytes is None}
    assert rows["communication energy"].changes[0].pct == pytest.approx(-26.7, abs=0.3)
    assert rows["wall time"].changes[0].pct == pytest.approx(0)
    assert found.caveats == [f"{name}: was throttled: power limit" for name in "ab"]


def test_an_iteration_of_runs_has_time_and_energy_with_intervals(tmp_path: Path) -> None:
    folders = [late_run(tmp_path / name, iterations=number) for name, number in (("a", 20), ("b", 22))]
    found = compare_sides([str(folder) for folder in folders], Path)
    rows = {row.what: row for row in found.rows if row.variant}
    assert list(rows) == ["time of an iteration", "energy of an iteration"]
    for index, folder in enumerate(folders):
        (reported,) = report(folder).findings.iterations
        for what, value in (("time", reported.mean_s), ("energy", reported.joules)):
            made = rows[f"{what} of an iteration"].cells[index]
            assert value is not None and made.value == pytest.approx(value)
            assert (made.of, made.n) == ("iterations", reported.found if what == "time" else reported.joules_of)
    for row in rows.values():
        (judged,) = row.changes
        assert judged.verdict == SAME and judged.low_pct is not None and judged.high_pct is not None
        assert judged.low_pct <= 0 <= judged.high_pct and not judged.of_settings


def test_iterations_of_other_operations_are_not_compared(tmp_path: Path) -> None:
    two, one = (compare_sides([str(folder)] * 2, Path) for folder in (
        late_run(tmp_path / "two", iterations=20), training_run(tmp_path / "one", iterations=20)))  # fmt: skip
    counts = {side.facts["operations of an iteration"] for found in (two, one) for side in found.sides}
    assert len(counts) == 2
    found = compare_sides([two.sides[0].members[0], one.sides[0].members[0]], Path)
    assert not [row.what for row in found.rows if "of an iteration" in row.what]
    assert any("the number of operations in an iteration differs" in text for text in found.caveats)


def test_runs_of_other_work_are_told(tmp_path: Path) -> None:
    """Totals of 3 and 4 iterations say nothing about settings; a call more or less of many is no other work."""
    three, four, one_more = (
        str(training_run(tmp_path / name, iterations=number, ranks=1))
        for name, number in (("three", 3), ("four", 4), ("again", 3))
    )
    found = compare_sides([three, four], Path)
    (told,) = (text for text in found.caveats if "amounts of work" in text)
    assert told.endswith("all-reduce calls: 9 (three), 12 (four)")
    assert any("chance cannot be judged" in text for text in found.notes)
    assert not [text for text in compare_sides([three, one_more], Path).caveats if "amounts of work" in text]


def test_runs_of_mpi_and_a_failed_one(tmp_path: Path) -> None:
    first, second = mpi_run(tmp_path / "a"), mpi_run(tmp_path / "b", ranks=3)
    write_info(second, 2_000_000_000, exit_code=9, command=["mpiexec", "-n", "3", "./stencil"])
    found = compare_sides([str(first), str(second)], Path)
    assert "time in MPI, per rank" in {row.what for row in found.rows}
    text = "\n".join(found.caveats)
    assert "b: ended with exit code 9" in text
    assert "the number of MPI ranks differs: 2 (a), 3 (b)" in text
    assert "the commands differ in one word: a: 2; b: 3" in text


def test_sides_of_different_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PowercclError, match="cannot be compared with each other: run, sweep"):
        compare_sides([str(training_run(tmp_path / "run")), str(sweep(tmp_path / "a.json", 40, 10))], Path)


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"schema": 2, "results": []}', "[1, 2]"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(PowercclError) as raised:
        read_member(path)
    assert raised.value.hint


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PowercclError, match="not a run folder"):
        read_member(tmp_path)


def test_names_with_commas_and_equal_signs_are_paths_where_there_are_such(tmp_path: Path) -> None:
    path = sweep(tmp_path / "a=1,b=2.json", 40, 10)
    found = compare_sides([str(path), str(sweep(tmp_path / "c.json", 40, 10))], Path)
    assert found.sides[0].members == [str(path)]


def test_outputs_agree(tmp_path: Path) -> None:
    names = [str(sweep(tmp_path / "a.json", 40, 10)), str(sweep(tmp_path / "b.json", 123, 1.8))]
    found = compare_sides(names, Path)
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    chosen = next(r for r in rows if r["what"] == TIME and r["size_bytes"] == "4" and r["side"] == "b")
    row = next(row for row in found.rows if row.what == TIME and row.size_bytes == 4)
    assert float(chosen["value"]) == row.cells[1].value
    assert float(chosen["change_pct"]) == row.changes[0].pct
    table = markdown(found)
    for line in (line for line in table.splitlines() if line.startswith("|")):
        assert line.endswith("|")
    assert "all-reduce latency, 4 B" in table


def test_the_page_has_a_line_a_side_and_asks_for_nothing(tmp_path: Path) -> None:
    names = [str(sweep(tmp_path / "a.json", 40, 10)), str(sweep(tmp_path / "b.json", 123, 1.8, emulated=True))]
    page = compare_page(compare_sides(names, Path))
    figures = json.loads(page.split("var figures = ")[1].split(";\n")[0])
    assert {name.rsplit("-", 1)[0] for name in figures} >= {"time", "bandwidth", "latency", "power"}
    for figure in figures.values():
        assert [line["name"] for line in figure["data"]] == ["a", "b"]
        assert figure["layout"]["xaxis"]["type"] == "log"
    assert "emulated" in page
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert len(markup) < 100_000 and not re.search(r"\b(src|href)=|url\(|@import", markup)
    assert len(page) < 6_000_000


def test_command_line(tmp_path: Path) -> None:
    names = [str(sweep(tmp_path / "a.json", 40, 10)), str(sweep(tmp_path / "b.json", 123, 1.8))]
    runner = CliRunner()
    page = tmp_path / "x.html"
    done = runner.invoke(cli, ["compare", *names, "--json", "-", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kind"] == "sweep"
    assert page.stat().st_size > 1_000_000
    assert runner.invoke(cli, ["compare", names[0]]).exit_code == 2
    done = runner.invoke(cli, ["compare", names[0], "nowhere"])
    assert done.exit_code == 1 and "no run and no file nowhere" in done.stderr
    assert runner.invoke(cli, ["compare", *names, "--json", "-", "--csv", "-"]).exit_code == 2


def test_a_key_is_what_it_says() -> None:
    assert Key("time", "s").size_bytes == -1


@pytest.mark.parametrize("width", [1200, 500])
def test_the_page_in_a_browser(tmp_path: Path, width: int) -> None:
    """All charts are drawn, nothing is wider than the window, and neither error nor request is heard of."""
    from browser import show

    names = [str(sweep(tmp_path / f"{name}.json", us, 10)) for name, us in (("a", 40), ("b", 123), ("c", 60), ("d", 9))]
    seen = show(compare_page(compare_sides(names, Path)), tmp_path, width)
    assert seen.console == []
    assert len(seen.found["charts"]) == 5
    assert all(chart["marks"] >= 4 and not chart["wide"] for chart in seen.found["charts"])
    assert not seen.found["wider"]


def test_energy_of_operations_by_regression(tmp_path: Path) -> None:
    """370 ms at 45 W against 32 W; how exact the regression is, its own tests say."""
    names = [str(training_run(tmp_path / f"r{watts}", iterations=20, comm_watts=watts)) for watts in (45, 32)]
    found = compare_sides(names, Path, energy=True)
    row = next(row for row in found.rows if row.what == "energy" and row.size_bytes == 1 << 29)
    assert row.cells[0].value == pytest.approx(0.370 * 45, rel=0.1)
    assert row.cells[0].low is not None and row.cells[0].n > 0
    assert row.changes[0].verdict == LOWER
    assert -40 < (row.changes[0].pct or 0) < -15
