# SPDX-License-Identifier: Apache-2.0
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.policies import checks, figures, kept, platforms, priority, runs, sweep, tables  # noqa: E402
from bench.policies.figures import Record, Spread  # noqa: E402
from bench.policies.platforms import Traits, changed, traits_of  # noqa: E402
from rich.console import Console  # noqa: E402

from powerccl.platforms.store import load_profile  # noqa: E402

ALIKE = Traits()


def record(policy="observe", steps=(100.0,) * 8, joules=10.0, each=None, repeat=0, case="ddp", **more):
    alone = [joules] * len(steps) if each is None else list(each)
    return Record("t4x8", case, policy, repeat, list(steps), alone, joules, **more)


def one(value, low=None, high=None, unit="%"):
    return {"value": value, "unit": unit, "low": low, "high": high, "n": 1}


def measured(auto, percall=None, oracle=None):
    """Figures of one case from pairs of energy saved and slowdown."""
    found = {"policies.t4x8.ddp.observe.step_ms": one(100.0)}
    for policy, pair in (("auto", auto), ("percall", percall)):
        if pair:
            found[f"policies.t4x8.ddp.{policy}.energy_saved_pct"] = one(pair[0])
            found[f"policies.t4x8.ddp.{policy}.slowdown_pct"] = one(pair[1])
    if oracle is not None:
        found["policies.t4x8.ddp.oracle.energy_saved_pct"] = one(oracle, oracle, oracle + 3)
    return found


def failing(**of):
    return [fault.text for fault in checks.all_faults(measured(**of))]


class TestTraits:
    def test_alike(self):
        assert traits_of("compute 5\nall_reduce 1M # vary from 50%\n") == ALIKE
        assert ALIKE.same

    def test_sections_and_draws(self):
        assert traits_of("compute 5\nfrom 50%\ncompute 2\nfrom 75 %\ncompute 3\n") == Traits((0.0, 0.5, 0.75))
        drawn = traits_of("all_to_all 6M vary 50%\n")
        assert drawn.varies
        assert not drawn.same

    def test_section_of_an_iteration(self):
        traits = Traits((0.0, 0.5))
        assert [traits.section(i, 5) for i in range(5)] == [0, 0, 0, 1, 1]

    def test_of_the_scenarios_as_they_are(self):
        kinds = {path.stem: traits_of(path.read_text()) for path in platforms.SCENARIOS.glob("*.scn")}
        assert sorted(name for name, kind in kinds.items() if not kind.same) == ["moe", "shift"]


class TestArithmetic:
    def test_slowdown_is_of_means_without_the_extremes(self):
        before = record(steps=[99, 100, 101])
        after = record("auto", steps=[101, 102, 102, 102, 150])
        found = figures.slowdown(before, after, ALIKE)
        assert found.value == pytest.approx(2.0)
        assert (found.low, found.high, found.n) == (pytest.approx(2.0), pytest.approx(2.0), 5)

    def test_what_the_job_told_stands_beside_what_it_took(self):
        auto = record("auto", steps=[101] * 8, told_pct=[0.5, 0.9, 1.2])
        found = figures.figures_of([record(), auto], {"ddp": ALIKE}, {})
        assert found["policies.t4x8.ddp.auto.told_slowdown_pct"] == one(0.9, 0.5, 1.2)
        assert "policies.t4x8.ddp.auto.told_slowdown_pct" not in figures.figures_of([record(), record("auto")], {}, {})

    def test_of_two_clocks_by_turns_both_count(self):
        found = figures.slowdown(record(steps=[100] * 40), record("auto", steps=[101] * 10 + [100] * 30), ALIKE)
        assert found.value == pytest.approx(0.25, abs=0.05)

    def test_sections_are_compared_each_with_itself(self):
        traits = Traits((0.0, 0.5))
        before = record(steps=[100, 100, 50, 50])
        after = record("auto", steps=[100, 100, 100, 55, 55, 55])
        assert figures.slowdown(before, after, traits).value == pytest.approx(100 * (1 * 2 / 3 + 1.1 / 3) - 100)

    def test_draws_meet_those_of_their_number(self):
        before = record(steps=[50, 100, 150, 200])
        after = record("auto", steps=[51, 102, 153, 204])
        found = figures.slowdown(before, after, Traits(varies=True))
        assert (found.low, found.value, found.high) == (pytest.approx(2.0),) * 3
        after = record("percall", steps=[51, 102])  # it was given fewer
        assert figures.slowdown(before, after, Traits(varies=True)).value == pytest.approx(2.0)

    def test_energy_is_the_whole_runs(self):
        before = record(joules=10.0, each=[10.0] * 4, steps=[1] * 4)
        after = record("auto", joules=9.0, each=[8.8, 8.9, 9.0, 9.1], steps=[1] * 4)
        found = figures.energy_saved(before, after, ALIKE)
        assert found.value == pytest.approx(10.0)
        assert (found.low, found.high) == (pytest.approx(9.75), pytest.approx(11.25))

    def test_bounds_hold_the_value(self):
        before = record(joules=10.0, each=[10.0] * 4, steps=[1] * 4)
        after = record("auto", joules=8.0, each=[9.0] * 4, steps=[1] * 4)
        found = figures.energy_saved(before, after, ALIKE)
        assert (found.low, found.value, found.high) == tuple(pytest.approx(x) for x in (10.0, 20.0, 20.0))

    def test_no_bounds_where_iterations_are_too_short(self):
        found = figures.energy_saved(record(), record("auto", joules=9.0, each=[9.0] * 7 + [None]), ALIKE)
        assert (found.low, found.high) == (None, None)
        assert found.value == pytest.approx(10.0)

    def test_several_runs(self):
        runs_made = [Spread(value, None, None, 140) for value in (1.0, 4.0, 2.0)]
        assert figures.together(runs_made) == Spread(2.0, 1.0, 4.0, 3)
        assert figures.together(runs_made[:1]) == runs_made[0]


class TestFigures:
    def test_all_of_a_case(self):
        observed = record(predicted={"percall": 22.0, "auto": 9.0, "phase": 1.0})
        made = [observed, record("percall", joules=8.0, steps=[103.0] * 8), record("auto", joules=9.0)]
        oracle = {("t4x8", "ddp"): {"oracle": {"bound_saving_pct": 15.0, "achievable_saving_pct": 12.0}}}
        found = figures.figures_of(made, {}, oracle)
        assert {name: about["value"] for name, about in found.items()} == {
            "policies.t4x8.ddp.observe.step_ms": 100.0,
            "policies.t4x8.ddp.observe.joules_per_iteration": 10.0,
            "policies.t4x8.ddp.percall.slowdown_pct": 3.0,
            "policies.t4x8.ddp.percall.energy_saved_pct": 20.0,
            "policies.t4x8.ddp.whatif.percall.energy_saved_pct": 22.0,
            "policies.t4x8.ddp.whatif.percall.error_points": 2.0,
            "policies.t4x8.ddp.auto.slowdown_pct": 0.0,
            "policies.t4x8.ddp.auto.energy_saved_pct": 10.0,
            "policies.t4x8.ddp.whatif.auto.energy_saved_pct": 9.0,
            "policies.t4x8.ddp.whatif.auto.error_points": 1.0,
            "policies.t4x8.ddp.whatif.error_points": 2.0,
            "policies.t4x8.ddp.whatif.phase.energy_saved_pct": 1.0,  # told, not measured
            "policies.t4x8.ddp.oracle.energy_saved_pct": 12.0,
        }
        assert found["policies.t4x8.ddp.oracle.energy_saved_pct"]["high"] == 15.0
        assert all(set(about) == {"value", "unit", "low", "high", "n"} for about in found.values())

    def test_nothing_without_a_baseline(self):
        assert figures.figures_of([record("auto")], {}, {}) == {}

    def test_a_turn_is_compared_with_its_own_baseline(self):
        made = [record(joules=10.0), record(joules=20.0, repeat=1)]
        made += [record("auto", joules=9.0), record("auto", joules=16.0, repeat=1)]
        about = figures.figures_of(made, {}, {})["policies.t4x8.ddp.auto.energy_saved_pct"]
        assert about == {"value": 15.0, "unit": "%", "low": 10.0, "high": 20.0, "n": 2}

    def test_the_bound_where_no_schedule_was_sought(self):
        oracle = {("t4x8", "ddp"): {"oracle_communication": {"bound_saving_pct": 7.0, "achievable_saving_pct": None}}}
        found = figures.figures_of([record()], {}, oracle)
        assert found["policies.t4x8.ddp.oracle_communication.energy_saved_pct"] == one(7.0, 7.0, 7.0)

    def test_core_share(self):
        made = [record("auto", core_share_pct=[0.1, 0.3]), record("phase", core_share_pct=[0.2])]
        found = figures.core_shares(made)
        assert found["policies.runtime.core_share_pct"]["value"] == 0.2
        assert found["policies.runtime.core_share_worst_pct"]["value"] == 0.3
        assert found["policies.runtime.phase.core_share_pct"]["value"] == 0.2
        assert figures.core_shares([record()]) == {}


class TestDemands:
    def test_all_met(self):
        assert failing(auto=(9.1, 0.9), percall=(20.0, 3.0), oracle=10.0) == []

    def test_slowdown(self):
        assert failing(auto=(9.1, 1.1)) == ["auto takes 1.10 % longer"]

    def test_energy(self):
        assert failing(auto=(-0.4, 0.0)) == []
        assert failing(auto=(-0.6, 0.0)) == ["auto takes 0.60 % more energy"]

    def test_oracle(self):
        assert failing(auto=(8.9, 0.0), oracle=10.0) == ["auto saves 8.90 %, 89.0 % of the oracle's 10.0 %"]
        assert failing(auto=(1.0, 0.0), oracle=4.9) == []

    def test_percall_better_in_both(self):
        assert len(failing(auto=(8.0, 0.5), percall=(9.0, 0.2))) == 1
        assert failing(auto=(8.0, 0.5), percall=(9.0, 0.6)) == []
        assert failing(auto=(8.0, 0.5), percall=(8.05, 0.2)) == []

    def test_not_measured(self):
        assert failing(auto=None, percall=(9.0, 0.2), oracle=10.0) == []


class TestTables:
    def page(self, found):
        return tables.markdown(found, {"date": "2026-11-21", "commit": "abc"}, "bench/results/x.json")

    def test_markdown(self):
        page = self.page(measured(auto=(8.04, 1.2), percall=(20.0, 3.0), oracle=10.0))
        assert "| ddp | 100.0 | 10.0-13.0 | – | 8.0 ✗ / +1.2 ✗ | 20.0 / +3.0 | – |" in page
        assert "- t4x8, ddp: auto takes 1.20 % longer" in page
        assert "2026-11-21" in page

    def test_missing_runs_show(self):
        found = measured(auto=(8.0, 0.0)) | {"policies.t4x8.tp.observe.step_ms": one(80.0)}
        assert "| tp | 80.0 | – | – | – | – |" in self.page(found)
        console = Console(file=io.StringIO(), width=130)
        tables.print_tables(console, found, ["t4x8 tp auto: exit code 4"])
        text = console.file.getvalue()
        assert "missing: t4x8 tp auto: exit code 4" in text
        assert "8.0 / +0.0" in text


class TestKept:
    def test_a_file_that_is_not_there(self):
        found, rows = kept.put_into({}, measured(auto=(8.0, 0.5), oracle=10.0), "abc, 2 cores")
        assert found == measured(auto=(8.0, 0.5), oracle=10.0)
        assert rows == {"t4x8.ddp": {"observe": "abc, 2 cores", "auto": "abc, 2 cores"}}

    def test_what_was_not_measured_stays(self):
        before = measured(auto=(8.0, 0.5), percall=(20.0, 3.0), oracle=10.0)
        before |= {"policies.t4x8.ddp.auto.told_slowdown_pct": one(0.4), "policies.t4x8.tp.observe.step_ms": one(80.0)}
        old = {"figures": before, "rows": {"t4x8.ddp": {"auto": "old", "percall": "old"}}}
        found, rows = kept.put_into(old, measured(auto=(9.0, 0.7)), "new")
        assert found["policies.t4x8.ddp.auto.energy_saved_pct"]["value"] == 9.0
        assert "policies.t4x8.ddp.auto.told_slowdown_pct" not in found  # of the run before
        assert found["policies.t4x8.ddp.percall.energy_saved_pct"]["value"] == 20.0
        assert found["policies.t4x8.ddp.oracle.energy_saved_pct"]["value"] == 10.0
        assert "policies.t4x8.tp.observe.step_ms" in found
        assert rows["t4x8.ddp"] == {"observe": "new", "auto": "new", "percall": "old"}

    def test_the_greater_error_is_of_both(self):
        name = "policies.t4x8.ddp.whatif"
        before = measured(None) | {f"{name}.percall.error_points": one(3.0), f"{name}.error_points": one(3.0)}
        now = measured(None) | {f"{name}.auto.error_points": one(1.0), f"{name}.error_points": one(1.0)}
        assert kept.put_into({"figures": before}, now, "new")[0][f"{name}.error_points"]["value"] == 3.0

    def test_what_is_told_anew_is_compared_with_what_was_measured_before(self):
        name = "policies.t4x8.ddp.whatif"
        before = measured(auto=(8.0, 0.5), percall=(20.0, 3.0)) | {f"{name}.percall.error_points": one(9.0)}
        now = measured(auto=(8.0, 0.5)) | {f"{name}.percall.energy_saved_pct": one(18.5)}
        found = kept.put_into({"figures": before}, now, "new")[0]
        assert found[f"{name}.percall.error_points"]["value"] == 1.5
        assert found[f"{name}.error_points"]["value"] == 1.5

    def test_the_page_says_what_rows_are_of(self):
        about = {"rows": {"t4x8.ddp": {"auto": "abc, 2 cores"}}}
        page = tables.markdown(measured(auto=(8.0, 0.5), oracle=8.0), about, "bench/results/x.json")
        assert "| ddp | 100.0 | 8.0-11.0 | – | 8.0 / +0.5 | – | abc, 2 cores |" in page


class TestProfiles:
    def test_a_switch(self):
        base = load_profile("t4x8")
        found = changed(base, "t4x8-slowswitch", platforms.PLATFORMS["t4x8-slowswitch"])
        switch = found.clock_switch
        assert (switch.call_us, switch.transition_us, switch.provenance) == (4500, 20000, "modelled")
        assert found.points == base.points
        assert found.overhead == base.overhead

    def test_links(self):
        base = load_profile("t4x8")
        found = changed(base, "t4x8-fastlink", platforms.PLATFORMS["t4x8-fastlink"])
        large = [(a, b) for a, b in zip(base.points, found.points, strict=True) if a.size_bytes == 64 << 20]
        assert large
        for a, b in large:
            assert b.time_us == pytest.approx(a.time_us / 4, rel=1e-4)
            assert b.busbw_gbs == pytest.approx(4 * a.busbw_gbs, rel=1e-4)
            assert (b.watts_per_gpu, b.provenance) == (a.watts_per_gpu, "modelled")
        small = min(b.time_us for b in found.points if b.pattern == "all_reduce")
        assert small >= 45  # the pattern's least time
        points = {o.pattern: o.size_bytes for o in found.overhead}
        assert points["all_reduce"] == 4 * next(o.size_bytes for o in base.overhead if o.pattern == "all_reduce")

    def test_they_can_be_read(self, tmp_path):
        for name in ("t4x8-fastlink", "t4x8-crawl"):
            assert load_profile(platforms.profile_of(name, tmp_path)).name == name


class TestRuns:
    def test_counts(self):
        alike, drawn, changing = Traits(), Traits(varies=True), Traits((0.0, 0.5))
        assert runs.plan("t4x8", "ddp", "auto", 0, alike, False).warm_up == 536  # 60 s
        assert runs.plan("t4x8", "ddp", "auto", 0, alike, False).iterations == 2679  # 300 s
        assert runs.plan("t4x8-fastlink", "exposed", "auto", 0, alike, False).warm_up == 1200
        assert runs.plan("t4x8", "ddp", "observe", 0, alike, False).iterations == 536  # 60 s
        assert runs.plan("t4x8", "ddp", "observe", 0, alike, False).warm_up == 402  # for 45 s: as warm as can be
        assert runs.plan("h200x4", "ddp", "observe", 0, alike, False).warm_up == 529
        assert runs.plan("t4x8", "ddp", "percall", 0, alike, False).iterations == 268  # 30 s behind 25 s
        assert runs.plan("t4x8", "ddp", "percall", 0, alike, False).warm_up == 223
        assert runs.plan("h200x4", "ddp", "percall", 0, alike, False).iterations == 706
        assert runs.plan("t4x8", "models.gpt2", "auto", 0, alike, False).iterations == 520
        # Draws go by the iteration's number, so the baseline of a scenario that draws has all of them.
        for policy in ("observe", "auto"):
            assert runs.plan("t4x8", "moe", policy, 0, drawn, False).iterations == 2752
        for policy in ("observe", "percall", "auto"):
            assert runs.plan("t4x8", "moe", policy, 0, drawn, False).warm_up == 963
        assert runs.plan("t4x8", "moe", "percall", 0, drawn, False).iterations == 150
        assert runs.plan("t4x8", "shift", "observe", 0, changing, False).iterations == 1200
        assert runs.plan("t4x8", "shift", "auto", 0, changing, False).iterations == 6186  # each half 300 s

    def test_order_and_models(self):
        wanted = sweep.Wanted(["t4x8", "h200x4"], ["ddp", "moe"], ["auto", "phase"], ["gpt2"])
        made = [(run.platform, run.case, run.policy) for run in wanted.runs()]
        assert made[:3] == [("t4x8", "ddp", policy) for policy in ("observe", "auto", "phase")]
        assert [each for each in made if each[1] == "models.gpt2"] == [
            ("t4x8", "models.gpt2", policy) for policy in ("observe", "auto")
        ]

    def test_rows_alone_and_what_they_are_compared_with(self):
        rows = [("h200x4", "moe", "auto"), ("t4x8", "models.gpt2", "percall")]
        wanted = sweep.Wanted(["t4x8", "h200x4"], ["ddp", "moe"], ["percall", "auto"], ["gpt2"], rows=rows)
        assert [(run.platform, run.case, run.policy) for run in wanted.runs()] == [
            *(("t4x8", "models.gpt2", policy) for policy in ("observe", "percall")),
            *(("h200x4", "moe", policy) for policy in ("observe", "auto")),
        ]

    def report(self, tmp_path, **changes):
        results = [{"warmup": i < 0, "step_ms": 100.0 + i, "joules_per_gpu": None} for i in (-1, 0, 1)]
        report = {"finished": True, "results": results, "summary": {"run_joules_per_gpu": 15.0}} | changes
        path = tmp_path / "report.json"
        path.write_text(json.dumps(report))
        return runs.read_report(runs.Run("t4x8", "ddp", "auto", 0, 1, 2), path)

    def test_a_run_that_set_no_clocks_is_none(self, tmp_path):
        (tmp_path / "auto").mkdir()
        about = tmp_path / "auto/run.json"
        about.write_text(json.dumps({"clocks": "lease"}))
        runs.refuse_dry(tmp_path)
        about.write_text(json.dumps({"clocks": "dry"}))
        with pytest.raises(runs.RunError, match="powerccld"):
            runs.refuse_dry(tmp_path)

    def test_report(self, tmp_path):
        found = self.report(tmp_path)
        assert (found.step_ms, found.joules_per_iteration) == ([100.0, 101.0], 7.5)

    def test_report_of_a_model_counts_iterations_left_alone(self, tmp_path):
        results = [{"warmup": i < 0, "step_ms": 100.0, "joules_per_gpu": 7.0 + i} for i in (-1, 0, 3)]
        summary = {"joules_per_gpu": 7.0}  # the median step's
        path = tmp_path / "report.json"
        path.write_text(json.dumps({"finished": True, "results": results, "summary": summary}))
        found = runs.read_report(runs.Run("t4x8", "models.gpt2", "auto", 0, 1, 2), path)
        assert found.joules_per_iteration == 8.5

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"finished": False}, "not finished"),
            ({"results": []}, "0 of 2 iterations"),
            ({"summary": {"run_joules_per_gpu": None}}, "no energy"),
        ],
    )
    def test_report_of_nothing(self, tmp_path, changes, why):
        with pytest.raises(runs.RunError, match=why):
            self.report(tmp_path, **changes)

    def test_clock_threads(self, tmp_path, monkeypatch):
        def task(pid, tid, name, used_ns, children=""):
            folder = tmp_path / pid / "task" / tid
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in (("comm", name), ("schedstat", f"{used_ns} 0 1"), ("children", children)):
                (folder / file).write_text(text)

        now_s = 100.0
        monkeypatch.setattr(runs.time, "monotonic", lambda: now_s)
        threads = runs.ClockThreads(1, tmp_path)
        task("1", "1", "python\n", 5, "2 99")  # 99 has ended
        task("2", "2", "powerccl-bench\n", 7)
        task("2", "3", "powerccl-clock\n", 10_000_000)
        threads.look()
        now_s = 110.0
        task("2", "3", "powerccl-clock\n", 30_000_000)
        task("2", "4", "powerccl-clock\n", 30_000_000)  # seen once: no share
        threads.look()
        assert threads.shares_pct() == [pytest.approx(0.2)]


class TestPriority:
    # Starts another when it is told to, and says its number.
    PARENT = "\n".join(
        [
            "import subprocess, sys",
            "sys.stdin.readline()",
            "child = subprocess.Popen(['sleep', '60'])",
            "print(child.pid, flush=True)",
            "child.wait()",
        ]
    )

    @pytest.fixture
    def parent(self):
        with subprocess.Popen(
            [sys.executable, "-c", self.PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent:
            yield parent
            parent.kill()

    def test_what_it_starts_stays_first(self, parent):
        if not priority.put_first(parent.pid):
            pytest.skip("no real-time priority is allowed here")
        print(file=parent.stdin, flush=True)
        child = int(parent.stdout.readline())
        try:
            priority.put_back(parent.pid)
            assert os.sched_getscheduler(parent.pid) == os.SCHED_OTHER
            assert os.sched_getscheduler(child) == os.SCHED_RR
            names = [priority.name_of(task) for task in priority.tasks_of(parent.pid)]
            assert "sleep" in names
        finally:
            os.kill(child, signal.SIGKILL)

    def test_not_allowed(self, monkeypatch):
        def refuse(*_):
            raise PermissionError

        monkeypatch.setattr(priority.os, "sched_setscheduler", refuse)
        assert not priority.put_first(1)
        priority.put_back(1)

    def test_what_has_ended(self, tmp_path):
        assert list(priority.tasks_of(1, tmp_path)) == []
        assert priority.name_of(tmp_path / "1" / "task" / "1") == ""


class TestSweep:
    @pytest.fixture
    def performed(self, monkeypatch):
        """Runs that were made; what `broken` names fails."""
        made, broken = [], set()

        def perform(run, profile, folder, recordings=None):
            made.append((run.case, run.policy))
            if run.policy in broken:
                raise runs.RunError("exit code 4: no luck")
            return record(run.policy, case=run.case, joules=10.0 if run.policy == "observe" else 9.0)

        monkeypatch.setattr(sweep, "perform", perform)
        return made, broken

    def go(self, tmp_path, resume=False):
        wanted = sweep.Wanted(["t4x8"], ["ddp"], ["auto", "phase"], [])
        journal = sweep.Journal(tmp_path / "out.runs.jsonl")
        journal.read() if resume else journal.start()
        return sweep.sweep(wanted, tmp_path / "out.json", journal, tmp_path, {}), journal

    def test_a_run_that_fails_is_made_again_and_then_missing(self, tmp_path, performed):
        made, broken = performed
        broken.add("auto")
        found, journal = self.go(tmp_path)
        assert made.count(("ddp", "auto")) == 2
        assert list(journal.missing.values()) == ["exit code 4: no luck"]
        assert "policies.t4x8.ddp.auto.energy_saved_pct" not in found
        assert found["policies.t4x8.ddp.phase.energy_saved_pct"]["value"] == 10.0
        assert found["policies.runs_missing"]["value"] == 1
        assert json.loads((tmp_path / "out.json").read_text()) == found

    def test_resume_makes_only_what_is_missing(self, tmp_path, performed):
        made, broken = performed
        broken.add("auto")
        self.go(tmp_path)
        with (tmp_path / "out.runs.jsonl").open("a") as file:
            file.write('{"key": ["t4x8", "dd')  # cut off
        made.clear()
        broken.clear()
        found, _ = self.go(tmp_path, resume=True)
        assert made == [("ddp", "auto")]
        assert self.go(tmp_path, resume=True)[0] == found
        assert made == [("ddp", "auto")]
        assert found["policies.t4x8.ddp.auto.energy_saved_pct"]["value"] == 10.0

    def test_shares_of_cores(self):
        assert sweep.shares(range(16), 2) == [set(range(8)), set(range(8, 16))]
        assert sweep.shares(range(16), 4) == [{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3} for i in range(4)]
        assert sweep.shares(range(16), 8) == 2 * sweep.shares(range(16), 4)  # no core for each alone
        assert sweep.shares(range(2), 2) == [{0, 1}, {0, 1}]
        assert sweep.shares(range(5), 1) == [set(range(5))]

    def test_side_by_side_each_run_has_its_share_of_the_cores(self, tmp_path, monkeypatch):
        together, seen = threading.Barrier(2, timeout=20), []

        def perform(run, profile, folder, recordings=None):
            seen.append(os.sched_getaffinity(0))
            together.wait()  # two at a time, or this never ends
            return record(run.policy, case=run.case, joules=10.0)

        everything = os.sched_getaffinity(0)
        if len(everything) < 2:
            pytest.skip("one core")
        monkeypatch.setattr(sweep, "perform", perform)
        wanted = sweep.Wanted(["t4x8"], ["ddp", "tp"], ["auto"], [])
        journal = sweep.Journal(tmp_path / "out.runs.jsonl")
        journal.start()
        found = sweep.sweep(wanted, tmp_path / "out.json", journal, tmp_path, {}, 2)
        assert len(seen) == 4 and {frozenset(each) for each in seen} == set(map(frozenset, sweep.shares(everything, 2)))
        assert found["policies.t4x8.tp.auto.energy_saved_pct"]["value"] == 0.0
        assert os.sched_getaffinity(0) == everything
        with pytest.raises(ValueError, match="9999 runs at once"):
            sweep.sweep(wanted, tmp_path / "out.json", journal, tmp_path, {}, 9999)

    def test_what_was_recorded_is_predicted_from_again(self, tmp_path, performed, monkeypatch):
        _, journal = self.go(tmp_path)
        wanted = sweep.Wanted(["t4x8"], ["ddp"], ["auto"], [], recordings=tmp_path / "recordings")
        monkeypatch.setattr(sweep, "profile_of", lambda platform, folder: platform)
        monkeypatch.setattr(sweep, "predict", lambda folder, profile: ({"auto": 7.5}, f"{folder.name} {profile}"))
        assert sweep.predict_again(wanted, journal, tmp_path) == 0
        observe = next(run for run in wanted.runs() if run.policy == "observe")
        kept = runs.recording_of(observe, tmp_path / "recordings")
        kept.mkdir(parents=True)
        (kept / "run.json").write_text("{}")
        assert sweep.predict_again(wanted, journal, tmp_path) == 1
        journal.records.clear()
        journal.read()
        assert journal.records[observe.key].predicted == {"auto": 7.5}
        assert journal.records[observe.key].remark == "t4x8-ddp-0 t4x8"

    def test_what_was_measured_is_set_aside(self, tmp_path, performed):
        self.go(tmp_path)
        self.go(tmp_path)
        assert (tmp_path / "out.runs.before").stat().st_size > 0

    def test_oracles_by_our_names(self, tmp_path):
        spec = platforms.PLATFORMS["t4x8-crawl"]
        path = tmp_path / "oracle.json"
        path.write_bytes(msgspec.json.encode({"platforms": {spec: {"ddp": {"oracle": 1}}, "else": {"ddp": {}}}}))
        assert sweep.read_oracles(path) == {("t4x8-crawl", "ddp"): {"oracle": 1}}
