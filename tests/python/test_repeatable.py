# SPDX-License-Identifier: Apache-2.0
"""The same run folder gives the same bytes, whatever the number of threads and the order of hashes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import MS, TraceWriter, write_info, write_power

PACKAGE = Path(__file__).parents[2] / "python" / "powerccl"
PATTERNS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all")
RANKS, ROUNDS = 8, 6


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight ranks whose patterns and sizes all take the same time: nothing but chance would put them in an order."""
    folder = tmp_path_factory.mktemp("alike")
    end_ns = 0
    for rank in range(RANKS):
        writer, call, now = TraceWriter(rank=rank, nranks=RANKS), 0, 10 * MS
        writer.comm(0)
        for _ in range(ROUNDS):
            for pattern in PATTERNS:
                for size in (1 << 16, 1 << 20, 1 << 24):
                    call += 1
                    writer.call(call, now, size + 8 * (call % 7), pattern)
                    writer.kernel(call, now + rank * 1000, now + 3 * MS, size + 8 * (call % 7), pattern)
                    now += 4 * MS
        writer.write(folder)
        end_ns = now
    write_power(folder, RANKS, end_ns, 300.1)
    write_info(folder, end_ns)
    return folder


def test_report_gives_the_same_bytes_each_time(alike: Path, tmp_path: Path) -> None:
    made = []
    for number, threads in enumerate((1, 2, 8, 16)):
        out = tmp_path / f"{number}.json"
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "POLARS_MAX_THREADS": str(threads)}
        environment["PYTHONPATH"] = str(PACKAGE.parent)
        command = [sys.executable, "-m", "powerccl", "report", str(alike), "--json", str(out)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        made.append(out.read_bytes())
    assert len(set(made)) == 1


def test_groups_keep_their_order() -> None:
    """Polars' groups come in the order of random hashes, and sums over them in another last digit, unless told."""
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            polars = node.func.attr == "group_by" or (
                node.func.attr == "unique" and not (isinstance(owner, ast.Name) and owner.id == "np")
            )
            if polars and "maintain_order" not in {each.arg for each in node.keywords}:
                missing.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not missing
