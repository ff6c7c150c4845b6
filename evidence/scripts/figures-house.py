#!/usr/bin/env python3
"""Measure the repository itself: lines by kind, imports between features, and what recording a job installs.

`--wheel FILE` (of `make wheel`) is installed without extras into an environment of its own; without it, none is.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, about, one, show, write

CODE = {".cpp", ".h", ".c", ".def", ".py", ".sh"}
MIB = 1 << 20


def lines(kinds: set[str], *folders: str) -> int:
    """Lines of the repository's files of these kinds in these folders."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines()]
    return sum(file.read_bytes().count(b"\n") for file in files if file.suffix in kinds and file.is_file())


def features() -> list[str]:
    """Packages that import-linter's contract puts side by side above the core."""
    layers = re.search(r"layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert layers is not None
    (row,) = [row for row in re.findall(r'"([^"]+)"', layers[1]) if row.count("|") > 2]
    return [name.strip().removeprefix("powerccl.") for name in row.split("|")]


def feature_imports() -> int:
    """Imports of one feature by another, those inside functions included."""
    found, names = 0, features()
    for name in names:
        for file in (ROOT / "python/powerccl" / name).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                parts = (module or "").split(".")
                found += len(parts) > 1 and parts[0] == "powerccl" and parts[1] in set(names) - {name}
    return found


def installed_mib(wheel: Path) -> float:
    """What the wheel and its dependencies take on the disk, without pip."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([f"{folder}/bin/pip", "install", "-q", "--no-compile", str(wheel)], check=True)
        (packages,) = Path(folder).glob("lib/python*/site-packages")
        own = [
            each for each in packages.iterdir() if not re.match(r"pip\b|setuptools|pkg_resources|_distutils", each.name)
        ]
        files = [file for each in own for file in ([each] if each.is_file() else each.rglob("*")) if file.is_file()]
        return sum(file.stat().st_size for file in files) / MIB


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wheel", type=Path)
    options = parser.parse_args()
    found: Figures = {
        "house.product_lines": one(lines(CODE - {".sh"}, "native", "python"), "lines"),
        "house.test_lines": one(lines(CODE, "tests", "evidence/tests"), "lines"),
        "house.evidence_lines": one(lines(CODE, "evidence") - lines(CODE, "evidence/tests"), "lines"),
        "house.json_lines": one(lines({".json"}), "lines"),
        "house.feature_imports": one(feature_imports(), "1"),
    }
    if options.wheel:
        found["house.record_install_mib"] = one(round(installed_mib(options.wheel.resolve()), 1), "MiB")
    show(found)
    conditions = "Lines with comments and blank ones; tests with their cases (tests/harm, trust, accounts)."
    write(options.out, found, **about("evidence/scripts/figures-house.py --wheel dist/*.whl", conditions))


if __name__ == "__main__":
    main()
