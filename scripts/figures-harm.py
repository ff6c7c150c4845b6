#!/usr/bin/env python3
"""Measure whether PowerCCL harms what it runs beside: a flat map name -> {value, unit, low, high, n}.

Each topic is a module of bench/harm. `--only` runs some of them and keeps the others' figures that the file has.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.topics import main

if __name__ == "__main__":
    sys.exit(main("bench.harm", __doc__.splitlines()[0]))
