# SPDX-License-Identifier: Apache-2.0
"""What runs cost and emit, against figures computed by hand."""

from __future__ import annotations

import csv
import json
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from printing import printed
from synthetic import HOST, MS, exposed_run, mpi_run, training_run, write_info, write_power

from powerccl.analysis.cost import Cost, CostRow, cost_of
from powerccl.analysis.findings import RunSummary
from powerccl.analysis.report import ReportFindings, report
from powerccl.analysis.summary import summarise
from powerccl.commands import cli
from powerccl.commands.report import command
from powerccl.compare.runs import read_run_member
from powerccl.estimate import Estimate
from powerccl.reports.cost import cost_lines, small_print
from powerccl.reports.terminal import print_summary
from powerccl.tariff import Tariff, parse_carbon, parse_price
from powerccl.traces.folder import RunData, read_run
from powerccl.whatif.forecasts import Forecast, WhatIf
from powerccl.whatif.month import month_saved
from powerccl.whatif.report import print_what_if

TARIFF = Tariff(parse_price("0.36EUR/kWh"), parse_carbon("400g/kWh"))
# Of training_run: 2 GPUs, 3 iterations of 0.15 s at 70 W and 0.45 s at 45 W.
JOULES = 2 * 3 * (0.15 * 70 + 0.45 * 45)
DAY = datetime(2026, 11, 25, tzinfo=timezone.utc).timestamp()


def read(folder: Path) -> tuple[RunData, RunSummary]:
    run = read_run(folder)
    return run, summarise(run)


def costs(folder: Path, tariff: Tariff = TARIFF) -> Cost:
    cost = cost_of(*read(folder), tariff)
    assert cost
    return cost


def by_name(cost: Cost) -> dict[str, CostRow]:
    return {row.what: row for row in cost.rows}


def test_a_run_by_hand(tmp_path: Path) -> None:
    row = costs(training_run(tmp_path / "run")).rows[0]
    assert row.what == "run" and row.cost_at_least is None
    assert row.kwh == pytest.approx(JOULES / 3.6e6, rel=0.02)
    # 0.36 EUR for 3.6 MJ: a J costs 0.1 millionths.
    assert row.cost == pytest.approx(JOULES * 1e-7, rel=0.02)
    assert row.co2e_kg == pytest.approx(JOULES / 3.6e6 * 0.4, rel=0.02)


def test_the_pue_multiplies_all_of_it_and_is_said(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    plain, with_pue = costs(folder), costs(folder, Tariff(TARIFF.price, TARIFF.carbon, 1.5))
    for before, after in zip(plain.rows, with_pue.rows, strict=True):
        for name in ("kwh", "cost", "co2e_kg"):
            assert getattr(after, name) == pytest.approx(1.5 * getattr(before, name))
    assert "no PUE applied" in plain.covers and "times the PUE 1.5" in with_pue.covers
    assert "no wall meter" in plain.covers and "energy counters of 2 GPUs, without CPUs" in plain.covers


def test_a_month_goes_on_with_the_power_of_the_work(tmp_path: Path) -> None:
    folder = exposed_run(tmp_path / "run", iterations=20)
    cost = costs(folder)
    watts = 2 * (0.15 * 70 + 0.45 * 45) / 0.6
    assert cost.month_watts == pytest.approx(watts, rel=0.02)
    month = by_name(cost)["30 days"]
    assert month.kwh == pytest.approx(watts * 720 / 1e3, rel=0.02)
    assert month.cost == pytest.approx(watts * 720 / 1e3 * 0.36, rel=0.02)


def test_start_up_is_in_the_run_and_not_in_the_month(tmp_path: Path) -> None:
    folder = exposed_run(tmp_path / "run", iterations=20)
    end_ns = 20 * 600 * MS
    write_power(folder, 2, end_ns, lambda _, now: 500.0 if now < 150 * MS else 50.0)
    cost = costs(folder)
    assert cost.month_watts == pytest.approx(100, rel=0.02)
    assert cost.rows[0].kwh == pytest.approx(2 * (0.15 * 500 + 11.85 * 50) / 3.6e6, rel=0.02)


def test_a_thousand_iterations_by_hand(tmp_path: Path) -> None:
    folder = exposed_run(tmp_path / "run", iterations=40)
    made = report(folder)
    cost = cost_of(made.run, made.findings.summary, TARIFF, made.findings.iterations)
    assert cost
    row = by_name(cost)["1,000 iterations"]
    assert row.kwh == pytest.approx(1000 * JOULES / 3 / 3.6e6, rel=0.02)
    assert row.cost == pytest.approx(1000 * JOULES / 3 * 1e-7, rel=0.02)
    compared = {key.what: each for key, each in read_run_member(folder, tariff=TARIFF).values.items()}
    assert compared["cost of 1,000 iterations"].value == pytest.approx(row.cost, rel=1e-9)
    assert compared["cost"].value == pytest.approx(cost.rows[0].cost)


def without_end(folder: Path) -> Path:
    """Half of the samples of GPU 0 are lost."""
    path = folder / f"power-{HOST}.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if ",0,GPU" not in line or int(line.split(",")[0]) < 900 * MS))
    return folder


def test_energy_at_least_costs_at_least(tmp_path: Path) -> None:
    folder = without_end(training_run(tmp_path / "run"))
    run, summary = read(folder)
    assert summary.energy.joules is None and summary.energy.joules_at_least
    cost = cost_of(run, summary, TARIFF)
    assert cost
    for row in cost.rows:
        assert (row.kwh, row.cost, row.co2e_kg) == (None, None, None)
        assert row.cost_at_least and row.cost_at_least == pytest.approx((row.kwh_at_least or 0) * 0.36)
    assert cost.rows[0].kwh_at_least == pytest.approx(summary.energy.joules_at_least / 3.6e6)
    assert cost_lines(cost)[0].startswith("this run: at least 0.00001")


def test_unsampled_energy_is_not_known_and_never_zero(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    (folder / f"power-{HOST}.csv").unlink()
    cost = costs(folder)
    assert [row.what for row in cost.rows] == ["run"]
    assert cost_lines(cost) == ["this run: cost not known, CO2e not known, energy not known"]
    assert any("no power samples" in text for text in small_print(cost))


def test_nothing_is_shown_unless_it_was_asked_for(tmp_path: Path) -> None:
    run, summary = read(training_run(tmp_path / "run"))
    assert cost_of(run, summary, Tariff()) is None
    only_carbon = cost_of(run, summary, Tariff(carbon=TARIFF.carbon))
    assert only_carbon and "EUR" not in "".join(cost_lines(only_carbon))
    assert cost_lines(only_carbon)[0].endswith("Wh") and "CO2e" in cost_lines(only_carbon)[0]


def test_processors_count_where_they_were_sampled(tmp_path: Path) -> None:
    """Two seconds at 30 W; the counter is read every 100 ms."""
    rows = [f"{now * MS},package-0,{now * 30_000},0,0" for now in range(0, 2101, 100)]
    head = [f"# host: {HOST}", "# interval_ns: 100000000", "time_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns"]
    folder = mpi_run(tmp_path / "run", cpu="\n".join([*head, *rows]) + "\n")
    run, summary = read(folder)
    cost = cost_of(run, summary, TARIFF)
    assert cost and summary.mpi and summary.mpi.energy.joules
    assert cost.rows[0].kwh == pytest.approx(summary.mpi.energy.joules / 3.6e6)
    assert cost.rows[0].kwh == pytest.approx(60 / 3.6e6, rel=0.1)
    assert cost.month_watts == pytest.approx(30, rel=0.05)
    assert cost.covers.startswith("CPU counters of 1 host with all that runs there; no wall meter")


def long_run(folder: Path) -> Path:
    """130 minutes from 23:00 UTC on: 100 W in the first hour, then 300 W."""
    folder.mkdir()
    end_ns = 130 * 60 * 1000 * MS
    edge_ns = 60 * 60 * 1000 * MS
    write_power(folder, 1, end_ns, lambda _, now: 100.0 if now < edge_ns else 300.0, interval_ns=10_000 * MS)
    write_info(folder, end_ns, started_at="2026-11-25T00:00:00+0100", gpus=["Tesla T4"])
    return folder


def tariff_of(folder: Path, *rows: str, header: str = "time,EUR/kWh") -> Tariff:
    path = folder / "prices.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return Tariff(parse_price(str(path)))


def test_each_hour_has_its_price_and_its_energy(tmp_path: Path) -> None:
    folder = long_run(tmp_path / "run")
    rows = ("2026-11-24T23:00Z,0.5", "2026-11-25T00:00Z,-0.1", "2026-11-25T01:00Z,0.2", "2026-11-25T02:00Z,9")
    cost = costs(folder, tariff_of(tmp_path, *rows))
    row = cost.rows[0]
    assert row.kwh == pytest.approx(0.1 + 0.3 + 0.05, rel=0.01)
    assert row.cost == pytest.approx(0.1 * 0.5 - 0.3 * 0.1 + 0.05 * 0.2, rel=0.02)
    assert cost.price_per_kwh == pytest.approx((row.cost or 0) / (row.kwh or 1))
    assert "prices.csv (mean 0.0667 EUR/kWh)" in cost.covers and not cost.notes


def test_hours_without_a_price_are_named_and_nothing_is_guessed(tmp_path: Path) -> None:
    folder = long_run(tmp_path / "run")
    cost = costs(folder, tariff_of(tmp_path, "2026-11-24T23:00Z,0.5", "2026-11-25T01:00Z,0.2"))
    assert cost.price_per_kwh is None and cost.rows[0].cost is None and cost.rows[0].kwh
    assert cost.notes[0].endswith("prices.csv has no value for 2026-11-25T00:00Z to 2026-11-25T01:00Z")
    assert "cost not known" in cost_lines(cost)[0]


def test_a_run_whose_hours_are_not_known_has_no_price_by_hour(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    cost = costs(folder, tariff_of(tmp_path, "2026-11-25T00:00Z,0.2"))
    assert cost.rows[0].cost is None and cost.notes[0].endswith("when the run was is not known")


def test_energy_without_a_course_is_spread_evenly_and_said(tmp_path: Path) -> None:
    rows = [f"{now * MS},package-0,{now * 30_000},0,0" for now in range(0, 2101, 100)]
    head = [f"# host: {HOST}", "# interval_ns: 100000000", "time_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns"]
    folder = mpi_run(tmp_path / "run", cpu="\n".join([*head, *rows]) + "\n")
    write_info(folder, 2010 * MS, started_at="2026-11-25T00:59:59+0000")
    cost = costs(folder, tariff_of(tmp_path, "2026-11-25T00:00Z,0.1", "2026-11-25T01:00Z,0.4"))
    # Run for 2.01 s: 1 s in the first hour.
    assert cost.price_per_kwh == pytest.approx((0.1 + 1.01 * 0.4) / 2.01, rel=0.001)
    assert cost.notes == ["no energy by time is known: it is spread evenly over the run"]


def test_at_least_says_nothing_of_a_cost_where_prices_are_below_zero(tmp_path: Path) -> None:
    folder = without_end(training_run(tmp_path / "run"))
    write_info(folder, 1800 * MS, started_at="2026-11-25T00:00:00+0000")
    for prices, known in ((("-0.2", "0.2"), False), (("0.2", "-0.2"), True)):
        rows = [f"2026-11-25T0{hour}:00Z,{price}" for hour, price in enumerate(prices)]
        row = costs(folder, tariff_of(tmp_path, *rows)).rows[0]
        assert row.kwh_at_least and (row.cost_at_least is not None) == known


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_has_a_line_for_each_stretch(tmp_path: Path, width: int) -> None:
    run, summary = read(training_run(tmp_path / "run"))
    text = printed(
        lambda console, cost: print_summary(console, summary, cost=cost), cost_of(run, summary, TARIFF), width=width
    )
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    assert "this run: 0.000018 EUR, 20.5 mg CO2e, 51.2 mWh 30 days at 9" in flat
    assert "at 0.36EUR/kWh and 400g/kWh; 30 days: this power day and night" in flat


def test_report_writes_it_everywhere_and_the_record_has_none_of_it(tmp_path: Path) -> None:
    folder = exposed_run(tmp_path / "run", iterations=40)
    options = ["--price", "0.36EUR/kWh", "--carbon", "400g/kWh", "--pue", "1.5"]
    for name in ("json", "html", "csv"):
        options += [f"--{name}", str(tmp_path / name)]
    result = CliRunner().invoke(command, [str(folder), *options])
    assert result.exception is None, result.output
    made = msgspec.json.decode((tmp_path / "json").read_bytes(), type=ReportFindings)
    assert made.cost and made.cost.pue == 1.5 and [row.what for row in made.cost.rows][1] == "1,000 iterations"
    rows = list(csv.DictReader((tmp_path / "csv/cost.csv").open()))
    assert [float(row["cost"]) for row in rows] == pytest.approx([row.cost for row in made.cost.rows])
    assert {row["currency"] for row in rows} == {"EUR"}
    page = (tmp_path / "html").read_text()
    for line in cost_lines(made.cost):
        assert line.partition(": ")[2].partition(",")[0] in page
    assert "This run: " in page and "no wall meter" in page
    assert "cost" not in json.loads((folder / "summary.json").read_text())
    assert "30 days at" in result.output


def test_a_window_is_called_one(tmp_path: Path) -> None:
    made = report(exposed_run(tmp_path / "run", iterations=40), window_s=(6.0, 12.0))
    cost = cost_of(made.run, made.findings.summary, TARIFF, made.findings.iterations)
    assert cost and cost_lines(cost)[0].startswith("this window: ")
    assert cost.rows[0].kwh == pytest.approx(10 * JOULES / 3 / 3.6e6, rel=0.03)


def test_compare_shows_each_side_and_the_difference(tmp_path: Path) -> None:
    one, two = exposed_run(tmp_path / "one", iterations=40), exposed_run(tmp_path / "two", iterations=20)
    result = CliRunner().invoke(cli, ["compare", str(one), str(two), "--price", "0.36EUR/kWh"], terminal_width=160)
    assert result.exception is None, result.output
    flat = " ".join(result.output.split())
    joules = 2 * (0.15 * 70 + 0.45 * 45)
    assert f"two against one: cost -{20 * joules * 1e-7:.6f} EUR" in flat
    assert "cost of 1,000 iterations" in flat and "cost and CO2e count: energy counters of 2 GPUs" in flat


@pytest.mark.parametrize("saved_pct", [10.0, 0.1])
def test_what_a_policy_would_save_in_a_month_by_hand(tmp_path: Path, saved_pct: float) -> None:
    """Two GPUs of 500 W use 720 kWh in 30 days. A tenth of that is 72 kWh, 25.92 EUR and 28.8 kg."""
    run = read_run(training_run(tmp_path / "run"))
    forecast = Forecast(
        policy="auto",
        saved_pct=Estimate(saved_pct, -2.0, 12.0),
        slowdown_pct=Estimate(0.5, 0.4, 0.6),
        saved_watts=1.0,
        switches_per_s=1.0,
        within_budget=True,
    )
    prediction = WhatIf(ranks=2, recorded_watts=500.0, simulated_ms=1.0, policies=[forecast])
    prediction.month = month_saved(run, prediction, TARIFF)
    flat = " ".join(printed(print_what_if, prediction).split())
    if saved_pct < 0.5:  # no policy is worth it
        assert prediction.month is None and "In 30 days" not in flat
        return
    month = prediction.month
    assert month and month.cost and month.co2e_kg
    assert (month.kwh.low, month.kwh.value, month.kwh.high) == pytest.approx((-14.4, 72.0, 86.4))
    assert (month.cost.value, month.co2e_kg.value) == pytest.approx((25.92, 28.8))
    expected = "25.9 EUR (-5.18 to 31.1 EUR), 28.8 kg CO2e (-5.8 to 34.6 kg), 72.0 kWh (-14.4 to 86.4 kWh)"
    assert f"In 30 days of this job it would save {expected}." in flat
    assert month_saved(run, prediction, Tariff()) is None
