#!/usr/bin/env python3
"""End `make test`: say in one line which tests were skipped, why, and the command that installs what is missing.

And which failed and were run again, since a test that needs that is to be mended.

Reads what tests/conftest.py left. Where the variable CI is set, a test that is skipped for a missing package is a
fault, and so are more than MOST skipped ones: the exit code is 1.
"""

import argparse
import collections
import json
import os
import re
import sys
from pathlib import Path

MOST = 10
# By what a skip says: the Debian packages that it lacks. What matches none needs hardware, rights or a kernel feature.
PACKAGES = {
    r"debian-mpich|mpicc\.mpich|mpich.* is not installed|libmpich\.a": "mpich libmpich-dev",
    r"debian-openmpi|mpicc\.openmpi|openmpi.* is not installed": "openmpi-bin libopenmpi-dev",
    r"Fortran|gfortran": "gfortran",
    r"slurmctld|slurmd|munge|srun": "slurmctld slurmd slurm-client munge",
    r"no groff": "groff",
    r"no musl-gcc": "musl-tools",
    r"no .*-m32|32-bit": "gcc-multilib",
    r"no (libraries for )?clang": "clang libclang-rt-dev",
    r"Chromium": "chromium",
    r"promtool|prometheus": "prometheus",
    r"no ip\b|no tc\b|iproute": "iproute2",
    r"taskset": "util-linux",
    r"bindfs": "bindfs",
    r"no compiler|no cc\b|no gcc": "gcc",
    r"locale": "locales",
}


def packages_of(reason: str) -> str:
    """The packages that a skip lacks; empty: none that would help."""
    return next((names for said, names in PACKAGES.items() if re.search(said, reason)), "")


def main() -> int:
    """Print the line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what tests/conftest.py left of each suite")
    parser.add_argument("--out", type=Path, help="write ci.skipped there, as a figure")
    options = parser.parse_args()
    files = [json.loads(file.read_text()) for file in options.files]
    skipped = [each["reason"] for file in files for each in file["skipped"]]
    ran = sum(file["ran"] for file in files)
    if again := [test for file in files for test in file["again"]]:
        print(f"failed and were run again, as on a busy host: {' '.join(again)}")
    if options.out:
        figure = {"value": len(skipped), "unit": "1", "low": None, "high": None, "n": ran + len(skipped)}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"figures": {"ci.skipped": figure}}, indent=1) + "\n")
    if not skipped:
        return 0
    missing = sorted({name for reason in skipped for name in packages_of(reason).split()})
    reasons = collections.Counter(re.sub(r"\s+", " ", reason)[:60] for reason in skipped)
    why = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
    line = f"skipped {len(skipped)} of {ran + len(skipped)} tests: {why}"
    if missing:
        line += f". Install what is missing: sudo apt-get install {' '.join(missing)}"
    print(line)
    return int(bool(os.environ.get("CI")) and (bool(missing) or len(skipped) > MOST))


if __name__ == "__main__":
    sys.exit(main())
