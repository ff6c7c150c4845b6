# SPDX-License-Identifier: Apache-2.0
"""What `powerccl run --ways` puts into a job's Python, against a PyTorch that only looks like one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import powerccl.hooks

HOOKS = Path(powerccl.hooks.__file__).parent
FAKE = Path(__file__).parent / "fake_torch"

# The start of every job: NCCL's version is what the test says, and a model of three layers trains.
BEGIN = """
import json, os, sys
import powerccl_windows
import torch
import torch.distributed as dist
from types import SimpleNamespace

class Backend:
    mem_allocator = "ncclMemAlloc"
    registered, refuses = [], False
    def register_mem_pool(self, pool, symm):
        if self.refuses:
            raise RuntimeError("no room for a window")
        self.registered.append((pool, symm))
    def deregister_mem_pool(self, pool):
        self.registered.remove((pool, True))

backend = Backend()
group = SimpleNamespace(group_name="0", _get_backend=lambda device: backend, size=lambda: 2)

def sharded(count):
    from torch.distributed.fsdp import FSDPModule, fully_shard
    return [fully_shard(FSDPModule()) for _ in range(count)]

def train(layers, steps, elements=1 << 20):
    for _ in range(steps):
        for layer in layers:
            comm = layer.state._fsdp_param_group._all_gather_comm
            output = comm.allocate((elements,), dtype=torch.bfloat16, device="cuda:0")
            assert comm(output, None, group, False) == ("work", False)
            del output
"""
END = """
print(json.dumps({"registered": len(backend.registered), "exchanges": len(dist.exchanges),
    "in_pool": sum(each is not None for each in dist.gathered), "gathers": len(dist.gathered),
    "policy": os.environ.get("NCCL_CTA_POLICY")}))
"""


def run(
    tmp_path: Path, body: str, nccl: str = "(2, 30, 7)", least: str = f"{1 << 20}@2", notes: int = 1, **environment: str
) -> tuple[dict[str, Any], dict[str, object] | None]:
    """What a job printed, and what its rank left in the run folder."""
    program = tmp_path / "job.py"
    has_version = f"powerccl_windows.nccl_version = lambda: {nccl}\nimport torch\n"
    program.write_text(BEGIN.replace("import torch\n", has_version, 1) + body + END)
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{HOOKS}:{FAKE}",
        "POWERCCL_WINDOWS_FROM": least,
        "POWERCCL_RUN_FOLDER": str(folder),
        **environment,
    }
    done = subprocess.run([sys.executable, str(program)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    note = folder / f"windows-{os.uname().nodename}-0.json"
    groups = json.loads(note.read_text())["groups"] if note.exists() else [None]
    assert len(groups) == notes
    return json.loads(done.stdout), groups[-1]


def test_the_note_goes_to_the_nodes_folder_where_there_is_one(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    code = f"import sys; sys.path.insert(0, {str(HOOKS)!r}); import powerccl_windows; powerccl_windows._note('off')"
    (tmp_path / "run").mkdir()
    variables = {"PATH": os.environ["PATH"], "POWERCCL_RUN_FOLDER": str(tmp_path / "run")}
    for folder in (str(local), str(tmp_path / "none"), ""):
        subprocess.run([sys.executable, "-c", code], env={**variables, "POWERCCL_LOCAL_FOLDER": folder}, check=True)
        assert len(list(local.iterdir())) == 1
        assert len(list((tmp_path / "run").iterdir())) == (0 if folder == str(local) else 1)


def test_windows_are_registered_once_all_ranks_agree(tmp_path: Path) -> None:
    found, note = run(tmp_path, "layers = sharded(3)\ntrain(layers, 40)\n")
    assert found["registered"] == 1 and found["policy"] == "2"
    assert found["exchanges"] == 2  # places, and that registering went well
    assert found["in_pool"] == found["gathers"] - 3  # each module's first tells its group
    assert note == {"state": "on", "reason": "", "bytes": 2 << 20, "learned": 64}


def test_a_model_of_many_layers_learns_behind_its_first_gathers(tmp_path: Path) -> None:
    # Each module's first gather tells its group, and comes from no pool.
    found, note = run(tmp_path, "train(sharded(80), 3)\n")
    assert found["registered"] == 1
    assert note is not None and note["learned"] == 64


def test_sizes_that_were_not_compared_stay_as_they_are(tmp_path: Path) -> None:
    body = """
layers = sharded(3)
train(layers, 40)
before = sum(each is not None for each in dist.gathered)
train(layers, 10, elements=1 << 21)
assert sum(each is not None for each in dist.gathered) == before
"""
    found, _ = run(tmp_path, body)
    assert found["registered"] == 1


def test_a_segment_is_the_same_by_address_and_by_age(tmp_path: Path) -> None:
    body = """
def layout(places):
    windows = powerccl_windows.Windows(group)
    windows.pool = torch.cuda.MemPool(None)
    windows.pool.segments = [{"address": start, "total_size": 100} for start in (1000, 2000)]
    windows.placed = [(address, 10) for address in places]
    return windows._layout()[0]

assert layout([1000, 2000] * 4) == layout([1000, 2000] * 4)
assert layout([1000, 2000] * 4) != layout([2000, 1000] * 4)  # the second segment was made first
assert layout([1000, 2000] * 4) != layout([1000, 2010] * 4)
"""
    run(tmp_path, body)


def test_small_outputs_stay_as_they_are(tmp_path: Path) -> None:
    found, note = run(tmp_path, "train(sharded(3), 40, elements=1 << 10)\n")
    assert (found["registered"], found["exchanges"], found["in_pool"], note) == (0, 0, 0, None)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ('{**mine, "digest": "another"}', "equal offsets"),
        ('{**mine, "digest": "", "failed": "CUDA out of memory"}', "CUDA out of memory"),
        ("dist.silent", "not all ranks could compare"),
        ('{**mine, "host": "another"}', "several hosts"),
    ],
)
def test_ranks_that_differ_stay_as_they_are(tmp_path: Path, other: str, reason: str) -> None:
    found, note = run(tmp_path, f"dist.other = lambda mine: {other}\ntrain(sharded(3), 40)\n")
    assert found["registered"] == 0
    assert note is not None and note["state"] == "off" and reason in str(note["reason"])


@pytest.mark.parametrize(("verdict", "state"), [("on", "on"), ("equal offsets", "off"), ("", "off")])
def test_the_first_ranks_verdict_is_everybodys(tmp_path: Path, verdict: str, state: str) -> None:
    script = "dist.rank = 1\n"
    if verdict:
        script += f"dist.store.values['powerccl/0.0/places-64/verdict'] = b'{verdict}'\n"
        script += "dist.store.values['powerccl/0.0/registered/verdict'] = b'on'\n"
    found, note = run(tmp_path, script + "train(sharded(3), 40)\n")
    assert found["registered"] == (state == "on")
    assert note is not None and note["state"] == state


def test_memory_that_is_short_leaves_the_job_as_it_is(tmp_path: Path) -> None:
    found, note = run(tmp_path, "torch.cuda.full = True\ntrain(sharded(3), 40)\n")
    assert (found["registered"], found["in_pool"]) == (0, 0)
    assert found["exchanges"] == 1  # the other ranks must hear of it
    assert note is not None and "out of memory" in str(note["reason"])


@pytest.mark.parametrize("here", [True, False])
def test_a_window_that_one_rank_cannot_register_is_none_on_all(tmp_path: Path, here: bool) -> None:
    script = (
        "backend.refuses = True\n"
        if here
        else "dist.other = lambda mine: mine if isinstance(mine, dict) else 'no room for a window'\n"
    )
    found, note = run(tmp_path, script + "train(sharded(3), 40)\n")
    assert found["registered"] == 0
    assert note is not None and note["state"] == "off" and "no room for a window" in str(note["reason"])


def test_places_that_never_settle_are_given_up(tmp_path: Path) -> None:
    found, note = run(tmp_path, "layers = sharded(3)\nfor n in range(400):\n    train(layers, 1, (1 << 20) + 2 * n)\n")
    assert found["registered"] == 0 and found["exchanges"] == 3
    assert note is not None and "again and again" in str(note["reason"])


def test_an_older_nccl_changes_nothing(tmp_path: Path) -> None:
    found, note = run(tmp_path, "train(sharded(3), 40)\n", nccl="(2, 28, 9)")
    assert (found["registered"], found["in_pool"], found["policy"]) == (0, 0, None)
    assert note is not None and "this job has NCCL 2.28.9" in str(note["reason"])


def test_another_nccl_below_does_not_get_our_policy(tmp_path: Path) -> None:
    ours = run(tmp_path, "", nccl="(2, 28, 9)", NCCL_CTA_POLICY="2", POWERCCL_WINDOWS_POLICY="1")
    assert ours[0]["policy"] is None
    assert run(tmp_path, "", nccl="(2, 28, 9)", NCCL_CTA_POLICY="2")[0]["policy"] == "2", "the user's own"


def test_a_group_of_another_size_stays_as_it_is(tmp_path: Path) -> None:
    found, note = run(tmp_path, "train(sharded(3), 40)\n", least=f"{1 << 20}@8")
    assert (found["registered"], found["in_pool"], found["exchanges"]) == (0, 0, 0)
    assert note is not None and "measured with 8 ranks, and this group has 2" in str(note["reason"])
    assert run(tmp_path, "train(sharded(3), 40)\n", least=str(1 << 20))[0]["registered"] == 1
    assert run(tmp_path, "train(sharded(3), 40)\n", least="much")[0]["policy"] is None


def test_a_later_group_of_the_same_name_compares_anew(tmp_path: Path) -> None:
    body = """
train(sharded(3), 40)
group = SimpleNamespace(**vars(group))
dist.other = lambda mine: {**mine, "digest": "another"}
train(sharded(3), 40)
assert len(backend.registered) == 1
"""
    program = tmp_path / "second"
    program.mkdir()
    found, note = run(program, body, notes=2)
    assert found["exchanges"] == 3
    assert note is not None and (note["state"], "equal offsets" in str(note["reason"])) == ("off", True)


def test_a_users_own_choices_win(tmp_path: Path) -> None:
    body = """
from torch.distributed.fsdp import FSDPModule, fully_shard
first, second = sharded(2)
first.set_allocate_memory_from_process_group_for_comm(True)
assert type(first.state._fsdp_param_group._all_gather_comm).__name__ == "DefaultAllGather"
own = object()
second.set_custom_all_gather(own)
assert second.state._fsdp_param_group._all_gather_comm is own
assert fully_shard.__doc__ == "Shard it."
"""
    found, _ = run(tmp_path, body, NCCL_CTA_POLICY="0")
    assert found["policy"] == "0"


def test_a_users_sitecustomize_still_runs(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = 'ran'\n")
    body = (
        f"assert os.environ['THEIRS'] == 'ran' and sys.modules['sitecustomize'].__file__.startswith({str(theirs)!r})\n"
    )
    found, _ = run(tmp_path, body, PYTHONPATH=f"{HOOKS}:{theirs}:{FAKE}")
    assert found["policy"] == "2"


def test_each_group_has_the_size_of_its_ranks(tmp_path: Path) -> None:
    body = "layers = sharded(3)\ntrain(layers, 40)\n"
    found, note = run(tmp_path, body, least=f"{1 << 40}@4,{1 << 20}@2")
    assert found["registered"] == 1 and note is not None and note["state"] == "on"
    _, note = run(tmp_path, body, least=f"{1 << 20}@4,{1 << 20}@8")
    assert note is not None and note["reason"] == "ways were measured with 4 and 8 ranks, and this group has 2"
    unread = tmp_path / "unread"
    unread.mkdir()
    found, note = run(unread, body, least=f"{1 << 20}@2,much")
    assert (found["policy"], note) == (None, None)


def test_without_the_variable_nothing_is_hooked(tmp_path: Path) -> None:
    body = "assert type(sharded(1)[0].state._fsdp_param_group._all_gather_comm).__name__ == 'DefaultAllGather'\n"
    found, note = run(tmp_path, body, POWERCCL_WINDOWS_FROM="")
    assert (found["policy"], note) == (None, None)
