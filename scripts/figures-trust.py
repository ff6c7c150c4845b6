#!/usr/bin/env python3
"""Measure whether PowerCCL's figures can be trusted: a flat map name -> {value, unit, low, high, n}.

Each topic is a module of bench/trust. `--only` runs some of them and keeps the others' figures that the file has.
TRUST_RUNS: how many emulated runs, and damaged ones, the topic `figures` makes (200).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.topics import main

if __name__ == "__main__":
    sys.exit(main("bench.trust", __doc__.splitlines()[0]))
