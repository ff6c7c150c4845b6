# SPDX-License-Identifier: Apache-2.0
"""`powerccl study scaling` from folders whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import fakes
import msgspec
import pytest
from click.testing import CliRunner
from synthetic import MS, TraceWriter, write_info, write_power, writers

from powerccl.commands import cli
from powerccl.console import Console
from powerccl.errors import PowercclError
from powerccl.launch.native import find_native
from powerccl.machine import machine_of
from powerccl.study import launch
from powerccl.study import worlds as scaling
from powerccl.study.page import scaling_page
from powerccl.study.report import grids, markdown, print_scaling, remarks
from powerccl.study.worlds import ScalingFindings, World


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("POWERCCL_NATIVE", str(fakes.native_folder(tmp_path_factory.mktemp("native"))))


BYTES = 700_000_000
STEP_MS, SCATTER_MS, GATHER_MS = 500, 60, 50
LATE_MS = 10  # so much later than the last rank each other one comes to the reduce-scatter's end


def world_folder(
    study: Path, name: str, ranks: int, iterations: int = 8, waits: bool = False, watts: float = 300.0
) -> Path:
    """Iterations of 500 ms; at their end a reduce-scatter that rank 0 enters LATE_MS early, and an all-gather."""
    folder = study / f"20260101-{name}"
    end_ns = (iterations + 1) * STEP_MS * MS
    for trace in writers(folder, ranks):
        for number in range(iterations):
            begin = (number * STEP_MS + 300) * MS
            early = LATE_MS * MS if trace.rank == 0 else 0
            stop = begin + SCATTER_MS * MS
            first, second = 2 * number + 1, 2 * number + 2
            trace.call(first, begin - early - 5 * MS, BYTES, "reduce_scatter", flags=0x40)
            trace.kernel(first, begin - early, stop, BYTES, "reduce_scatter")
            trace.call(second, stop, BYTES, "all_gather", flags=0x40)
            trace.kernel(second, stop, stop + GATHER_MS * MS, BYTES, "all_gather")
            if waits:  # half of the reduce-scatter is hidden behind computation
                trace.wait(first, stop - SCATTER_MS * MS // 2, stop)
                trace.wait(second, stop, stop + GATHER_MS * MS)
    write_power(folder, ranks, end_ns, watts)
    write_info(folder, end_ns, emulated="a100x4")
    return folder


def job_file(path: Path, iterations: int = 8, tokens: int | None = 8192) -> Path:
    """What examples/train_gpt.py writes; the first iteration is warm-up."""
    rows = [
        {"start_ns": n * STEP_MS * MS, "end_ns": (n + 1) * STEP_MS * MS, "warmup": n == 0} for n in range(iterations)
    ]
    path.write_text(json.dumps({"program": "train_gpt", "tokens_per_iteration": tokens, "iterations": rows}))
    return path


def sweep_file(path: Path, ranks: int) -> Path:
    """Replies of powerccl-bench serve: the all-gather at 40 ms, and one of study E's all-reduces."""
    lines = [{"type": "ready", "emulated": True}, {"type": "opened", "id": "1"}]
    for pattern, size, time_us in (("all_gather", BYTES, 40_000.0), ("all_reduce", 16 << 20, 250.0)):
        point = {"pattern": pattern, "size_bytes": size, "ranks": ranks, "time_us": 2 * time_us}
        lines.append({"type": "point", **point, "device_time_us": time_us, "joules_per_gpu": 1.5})
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def examined(study: Path, ranks: int = 4, job: bool = True, **more: object) -> World:
    folder = world_folder(study, f"default-{ranks}", ranks, **more)  # type: ignore[arg-type]
    told = job_file(study / "job.json") if job else study / "none.json"
    return scaling.examine(World(gpus=ranks, links="default"), folder, told)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of 2 and 4 GPUs; 8 were asked for, too, but have not run."""
    asked = launch.Asked(command=["torchrun", "{gpus}", "--json", "{json}"], gpus=[2, 4, 8], links=["default"])
    kept = launch.Study(asked=asked, host="node1")
    for gpus in (2, 4):
        kept.runs[f"default-{gpus}"] = world_folder(tmp_path, f"default-{gpus}", gpus).name
        job_file(tmp_path / f"default-{gpus}.job.json", tokens=2048 * gpus)
        sweep_file(tmp_path / f"default-{gpus}.sweep.jsonl", gpus)
    (tmp_path / launch.STUDY_FILE).write_bytes(msgspec.json.encode(kept))
    return tmp_path


def test_times_and_bandwidth_of_collectives(tmp_path: Path) -> None:
    world = examined(tmp_path)
    assert world.iterations == 7  # warm-up left out
    assert world.iteration_s == pytest.approx(0.5)
    scatter, gather = world.collectives
    assert (scatter.pattern, gather.pattern) == ("reduce_scatter", "all_gather")
    assert scatter.per_iteration == gather.per_iteration == pytest.approx(1)
    mean_s = (SCATTER_MS + LATE_MS / 4) / 1e3  # one rank of four is in it for longer
    assert scatter.time_s == pytest.approx(mean_s, rel=1e-3)
    assert scatter.waiting_s == pytest.approx(mean_s - SCATTER_MS / 1e3, rel=1e-3)
    assert scatter.busbw_gbs == pytest.approx(BYTES * 3 / 4 / mean_s / 1e9, rel=1e-3)
    assert scatter.transfer_busbw_gbs == pytest.approx(BYTES * 3 / 4 / (SCATTER_MS / 1e3) / 1e9, rel=1e-3)
    assert gather.waiting_s == pytest.approx(0, abs=1e-6)
    assert gather.busbw_gbs == pytest.approx(10.5, rel=1e-3)
    assert world.communication_pct == pytest.approx(100 * (mean_s + GATHER_MS / 1e3) / 0.5, rel=1e-3)


def test_ranks_that_ran_unequally_often_have_no_waiting(tmp_path: Path) -> None:
    folder = world_folder(tmp_path, "default-2", 2)
    short = TraceWriter(1, 2)
    short.comm(1 * MS)
    short.call(1, 800 * MS, BYTES, "all_gather", flags=0x40)
    short.kernel(1, 800 * MS, 850 * MS, BYTES, "all_gather")
    short.write(folder)
    world = scaling.examine(World(gpus=2, links="default"), folder, job_file(tmp_path / "job.json"))
    assert all(each.waiting_s is None and each.transfer_busbw_gbs is None for each in world.collectives)


def test_throughput_and_energy(tmp_path: Path) -> None:
    world = examined(tmp_path, watts=250.0)
    assert world.tokens_per_s == pytest.approx(16384)
    assert world.joules_per_iteration == pytest.approx(4 * 250 * 0.5, rel=0.01)
    assert world.joules_per_token == pytest.approx(4 * 250 * 0.5 / 8192, rel=0.01)
    assert world.watts_per_gpu == pytest.approx(250, rel=0.01)


def test_energy_needs_as_many_gpus_as_the_world(tmp_path: Path) -> None:
    folder = world_folder(tmp_path, "default-2", 2)
    world = scaling.examine(World(gpus=3, links="default"), folder, job_file(tmp_path / "job.json"))
    assert world.joules_per_iteration is None
    assert "no energy: that of 2 GPUs is known, and the job has 3" in world.notes


def test_energy_needs_samples_over_all_iterations(tmp_path: Path) -> None:
    folder = world_folder(tmp_path, "default-2", 2)
    write_power(folder, 2, 2000 * MS, 300.0)
    world = scaling.examine(World(gpus=2, links="default"), folder, job_file(tmp_path / "job.json"))
    assert world.joules_per_iteration is None
    assert "no energy: samples do not cover the measured iterations" in world.notes


def test_exposed_only_where_it_is_told(tmp_path: Path) -> None:
    without = examined(tmp_path / "without")
    assert without.exposed_s is None
    assert any("exposed communication is not known" in note for note in without.notes)
    told = examined(tmp_path / "told", waits=True)
    assert told.exposed_from == scaling.MARKED
    assert told.exposed_s == pytest.approx((SCATTER_MS / 2 + GATHER_MS) / 1e3, rel=1e-3)


def test_exposed_as_the_replay_says(tmp_path: Path) -> None:
    folder = world_folder(tmp_path, "default-2", 2)
    row = {"start_ns": 500 * MS, "end_ns": 1000 * MS, "warmup": False, "exposed_ms": 42.0}
    (tmp_path / "bench.json").write_text(json.dumps({"mode": "scenario", "results": [row]}))
    world = scaling.examine(World(gpus=2, links="default"), folder, tmp_path / "bench.json")
    assert world.exposed_from == scaling.BY_JOB
    assert world.exposed_pct == pytest.approx(8.4)


def test_iterations_from_the_trace(tmp_path: Path) -> None:
    world = examined(tmp_path, job=False)
    assert world.iterations_from == "the trace"
    assert world.iterations == 6  # from the second repetition's start to the last one's
    assert world.iteration_s == pytest.approx(0.5, rel=1e-3)
    assert world.tokens_per_s is None


@pytest.mark.parametrize("text", ["", "no JSON", '{"iterations": [{"start_ns": 1}]}', "[1]", '{"results": []}'])
def test_files_that_tell_no_iterations(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)
    assert scaling.read_steps(tmp_path / "job.json") is None


def test_a_run_without_collectives(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    write_info(folder, 5000 * MS)
    told = job_file(tmp_path / "job.json")
    several = scaling.examine(World(gpus=2, links="default"), folder, told)
    assert several.communication_pct is None
    assert any("no collective was recorded" in note for note in several.notes)
    alone = scaling.examine(World(gpus=1, links="default"), folder, told)
    assert alone.communication_pct == 0


def test_an_empty_folder_is_a_note(tmp_path: Path) -> None:
    world = scaling.examine(World(gpus=2, links="default"), tmp_path, tmp_path / "none.json")
    assert world.iteration_s is None
    assert any("no iterations" in note for note in world.notes)


def test_what_is_swept(tmp_path: Path) -> None:
    world = examined(tmp_path)
    tiny = scaling.Collective(
        pattern="all_reduce",
        size_bytes=4,
        per_iteration=1,
        time_s=1e-5,
        waiting_s=0,
        busbw_gbs=1,
        transfer_busbw_gbs=1,
    )
    world.collectives.append(tiny)
    assert scaling.to_sweep(world) == [("reduce_scatter", BYTES), ("all_gather", BYTES)]


def test_the_sweep_beside(study: Path) -> None:
    found = launch.findings(launch.read_study(study), study)
    two, four = found.worlds
    gather = next(each for each in four.collectives if each.pattern == "all_gather")
    assert gather.sweep_time_s == pytest.approx(0.04)  # the device's time, emulated
    assert gather.sweep_busbw_gbs == pytest.approx(BYTES * 3 / 4 / 0.04 / 1e9)
    scatter = next(each for each in four.collectives if each.pattern == "reduce_scatter")
    assert scatter.sweep_busbw_gbs is None
    assert (two.scaling_pct, four.scaling_pct) == pytest.approx((100, 100))
    assert found.notes == ["not run yet: default-8"]


def test_a_sweep_that_was_cut_off(tmp_path: Path) -> None:
    path = sweep_file(tmp_path / "sweep.jsonl", 4)
    path.write_text(path.read_text()[:-40])
    assert [point.pattern for point in scaling.read_sweep(path)] == ["all_gather"]
    assert scaling.read_sweep(tmp_path / "none") == []


def test_scaling_counts_tokens(tmp_path: Path) -> None:
    worlds = [
        World(gpus=gpus, links=links, iteration_s=seconds, tokens_per_s=rate)
        for gpus, links, seconds, rate in (
            (4, "a", 1.0, 300.0),
            (1, "a", 1.0, 100.0),
            (2, "b", 1.0, None),
            (4, "b", 2.0, None),
        )
    ]
    scaling.scale(worlds)
    assert [world.scaling_pct for world in worlds] == pytest.approx([75, 100, 100, 50])


def test_what_is_printed(study: Path) -> None:
    found = launch.findings(launch.read_study(study), study)
    for width in (80, 120):
        console = Console(width=width, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
        print_scaling(console, found)
        text = console.export_text()
        assert "emulated a100x4" in text
        assert "published" in text
        assert "…" not in text, "cut off"
    tables = {grid.title.split(",")[0].split(":")[0]: grid for grid in grids(found)}
    collectives = tables["Collectives of an iteration"]
    assert [row[0] for row in collectives.rows] == ["2", "2", "4", "4", "4", "8"]
    assert collectives.published == {4, 5}
    reduced = tables["All-reduce"]
    assert reduced.rows[0][0] == "16 MiB"
    assert reduced.rows[0][1:] == ["67.1", "101", "123", "9.82"]
    assert reduced.rows[1][1] == "not known"
    assert "not run yet: default-8" in remarks(found)
    assert any(note.startswith("2, 4 GPUs: exposed communication is not known") for note in remarks(found))


def test_published_rows_stand_beside_their_model_only(study: Path) -> None:
    found = launch.findings(launch.read_study(study), study)
    for world in found.worlds:
        for each in world.collectives:
            each.size_bytes //= 4
        world.sweep = []
    assert not any(grid.published for grid in grids(found))


def test_markdown_tables_are_whole(study: Path) -> None:
    text = markdown(launch.findings(launch.read_study(study), study))
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            assert len({line.count("|") for line in lines}) == 1
    assert "**emulated a100x4**" in text
    assert "`torchrun {gpus} --json {json}`" in text


def test_the_page_needs_no_network(study: Path) -> None:
    page = study / "page.html"
    done = CliRunner().invoke(cli, ["study", "scaling", "--from", str(study), "--html", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert len(text) < 6e6
    body = text[text.index("<main>") : text.index("</main>")]
    assert "emulated a100x4" in body
    assert "http" not in body
    for chart in ("iteration", "throughput", "bandwidth", "allreduce"):
        assert f'id="{chart}"' in body
    assert '<tr class="quiet">' in body


def test_a_page_of_a_job_without_collectives(tmp_path: Path) -> None:
    world = World(gpus=1, links="default", iteration_s=0.1, iterations=3)
    text = scaling_page(ScalingFindings(command="true", worlds=[world]))
    assert 'id="iteration"' in text
    assert 'id="bandwidth"' not in text


def test_the_command_prints_a_study(study: Path) -> None:
    done = CliRunner().invoke(cli, ["study", "scaling", "--from", str(study), "--json", "-"], catch_exceptions=False)
    assert done.exit_code == 0
    found = msgspec.json.decode(done.stdout.encode(), type=ScalingFindings)
    assert [world.gpus for world in found.worlds] == [2, 4]
    (study / "20260101-default-2" / "run.json").unlink()
    for trace in (study / "20260101-default-2").glob("rank-*.trace"):
        trace.write_bytes(trace.read_bytes()[:5000])
    damaged = CliRunner().invoke(cli, ["study", "scaling", "--from", str(study)], catch_exceptions=False)
    assert damaged.exit_code == 0
    assert "cut off" in damaged.stdout or "no collective was recorded" in damaged.stdout


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda folder: launch.parse_gpus("1,two"), "--gpus 1,two"),
        (lambda folder: launch.parse_gpus("0,1"), "--gpus 0,1"),
        (lambda folder: launch.parse_links("pigeons"), "unknown link 'pigeons'"),
        (lambda folder: launch.read_study(folder), "no study in"),
        (lambda folder: run(folder, ["true"], [1, 2]), "{gpus} is not in it"),
        (lambda folder: run(folder, [], [1]), "no command to run"),
        (lambda folder: run(folder, ["no-such-program", "{gpus}"], [1]), "no-such-program"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, call: object, said: str) -> None:
    with pytest.raises(PowercclError) as error:
        call(tmp_path)  # type: ignore[operator]
    assert said in error.value.message
    assert error.value.hint


def run(folder: Path, command: list[str], gpus: list[int], emulate: list[str] | None = None) -> launch.Study:
    asked = launch.Asked(command=command, gpus=gpus, links=["default"], emulate=emulate or [])
    return launch.run_study(asked, folder / "study", lambda _: None)


def test_worlds_that_have_run_are_not_run_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    command = ["sh", "-c", f"echo {{gpus}} >> {count}"]
    run(tmp_path, command, [1])
    study = run(tmp_path, command, [1, 2])
    assert count.read_text().split() == ["1", "2"]
    assert sorted(study.runs) == ["default-1", "default-2"]
    with pytest.raises(PowercclError, match="holds another study"):
        run(tmp_path, ["sh", "-c", "echo {gpus}"], [1])


def test_a_world_that_fails_costs_no_other(tmp_path: Path) -> None:
    """The others run and are shown; the failed one is named with its reason, what was not started is not failed."""
    folder, mended = tmp_path / "study", tmp_path / "mended"
    job = ("sh", "-c", f"test {{gpus}} -ne 2 -o -e {mended} || {{ echo out of memory; exit 3; }}")
    words = ["study", "scaling", "--no-sweep", "--out", str(folder), "--gpus", "1,2,4", "--", *job]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1
    assert "error: 1 of 3 worlds failed: default-2" in done.stderr
    assert "on 2 GPUs the job ended with exit code 3\nout of memory" in done.stderr
    (log,) = folder.glob("*default-2*/output.log")
    shown = CliRunner().invoke(cli, ["study", "scaling", "--from", str(folder), "--json", "-"])
    assert shown.exit_code == 0
    for text in (done.stdout, shown.stdout):
        assert "not run yet" not in text
    found = msgspec.json.decode(shown.stdout.encode(), type=ScalingFindings)
    assert [world.gpus for world in found.worlds] == [1, 4]
    assert found.failed == {"default-2": f"exit code 3, see {log}"}
    assert f"default-2 failed: exit code 3, see {log}" in remarks(found)
    assert "default-2 failed: exit code 3, see" in " ".join(done.stdout.split())
    study = launch.read_study(folder)
    study.asked.gpus.append(8)
    assert launch.findings(study, folder).notes[1:] == ["not run yet: default-8"]
    mended.touch()
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("running") == 1
    assert not launch.read_study(folder).failed


def test_where_every_world_fails(tmp_path: Path) -> None:
    words = ["study", "scaling", "--out", str(tmp_path / "study"), "--gpus", "1", "--", "false", "{gpus}"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1
    assert "no world of the study" in done.stderr
    assert "default-1 failed: exit code 1, see " in done.stderr


def test_a_study_goes_on_only_on_its_own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"host": "node1", "gpu_models": "4 x NVIDIA H200", "driver": "580", "emulated_platform": ""}
    here = {"": machine_of(machine)}
    monkeypatch.setattr(launch, "_machine", lambda *_: here)
    command = ["sh", "-c", "true {gpus}"]
    run(tmp_path, command, [1])
    run(tmp_path, command, [1, 2])
    here[""] = machine_of({**machine, "gpu_models": "8 x NVIDIA H200", "driver": "590"})
    with pytest.raises(PowercclError) as error:
        run(tmp_path, command, [1, 4])
    assert "GPUs: 4 x NVIDIA H200 there, 8 x NVIDIA H200 here; driver: 580 there, 590 here" in error.value.message
    assert "--out" in error.value.hint
    kept = launch.read_study(tmp_path / "study")
    assert sorted(kept.runs) == ["default-1", "default-2"]
    kept.machine = None
    (tmp_path / "study" / launch.STUDY_FILE).write_bytes(msgspec.json.encode(kept))
    with pytest.raises(PowercclError, match="names no machine"):
        run(tmp_path, command, [1, 4])


def test_an_interruption_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, ["sh", "-c", "kill -TERM $$; true {gpus}"], [1])
    assert ended.value.code == 143


def test_one_gpu_has_no_links(tmp_path: Path) -> None:
    count = tmp_path / "count"
    asked = launch.Asked(
        command=["sh", "-c", f"echo {{gpus}} >> {count}; echo > {{json}}"], gpus=[1], links=["default", "sockets"]
    )
    study = launch.run_study(asked, tmp_path / "study", lambda _: None)
    assert count.read_text().split() == ["1"]
    assert study.runs["sockets-1"] == study.runs["default-1"]


def test_links_are_set_for_the_job(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = ["sh", "-c", f"echo {{gpus}} $NCCL_P2P_DISABLE $NCCL_SHM_DISABLE $NCCL_NET >> {seen}"]
    asked = launch.Asked(command=command, gpus=[2], links=["default", "shm", "sockets"])
    launch.run_study(asked, tmp_path / "study", lambda _: None)
    assert seen.read_text().splitlines() == ["2", "2 1", "2 1 1 Socket"]


def test_emulated_platforms_by_their_gpus(tmp_path: Path) -> None:
    platforms = Path(__file__).parents[2] / "native/testbed/emulator/platforms"
    names = [str(platforms / "a100x4.conf"), str(platforms / "a100x8-two-nodes.conf")]
    with pytest.raises(PowercclError, match="at most 4"):
        run(tmp_path, ["true", "{gpus}"], [1, 8], names[:1])
    native = find_native()
    found = launch._platforms(native, launch.Asked(command=[], gpus=[8], links=["default"], emulate=names))
    assert [launch._platform_for(found, gpus)[1].stem for gpus in (1, 4, 5, 8)] == [  # type: ignore[index]
        *("a100x4", "a100x4", "a100x8-two-nodes", "a100x8-two-nodes"),
    ]
    assert launch._gpus_of(Path(f"{names[0]}:gpus=2,link_scale=4")) == 2


def test_emulated_is_said_where_only_the_samples_say_so(tmp_path: Path) -> None:
    folder = world_folder(tmp_path, "default-2", 2)
    write_info(folder, 4500 * MS)
    world = scaling.examine(World(gpus=2, links="default"), folder, job_file(tmp_path / "job.json"))
    assert world.emulated == "yes"
