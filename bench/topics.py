# SPDX-License-Identifier: Apache-2.0
"""Figures by topic: what `scripts/figures-harm.py` and `scripts/figures-trust.py` have in common.

A package has a module a topic, each with `measure(native, folder)`. It runs its cases in `folder`, which is empty and
its own, and returns figures by their full name. A case that cannot run on this machine raises; it is never counted as
passed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.figures import Figures

from powerccl.launch.native import NativeFiles, find_native

Measure = Callable[[NativeFiles, Path], Figures]


def main(package: str, about: str) -> int:
    """Run the topics of a package; `--only` runs some of them and keeps the others' figures that the file has."""
    found = importlib.import_module(package)
    topics = sorted(
        module.name
        for module in pkgutil.iter_modules(found.__path__)
        if hasattr(importlib.import_module(f"{package}.{module.name}"), "measure")
    )
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=topics, default=topics, metavar="TOPIC", help=", ".join(topics))
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # ignored in the background, and then by jobs as well
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    native = find_native()
    figures = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    failed = []
    for topic in arguments.only:
        begin_s = time.monotonic()
        prefix = f"{package.rpartition('.')[2]}-{topic}-"
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
            try:
                new = importlib.import_module(f"{package}.{topic}").measure(native, Path(folder))
            except Exception as error:  # one topic's fault leaves the others to be measured
                failed.append(topic)
                print(f"{topic}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
        figures.update(new)
        for name, figure in sorted(new.items()):
            print(f"{name:40} {figure['value']:>12} {figure['unit']:6} n={figure['n']}", flush=True)
        print(f"{topic}: {time.monotonic() - begin_s:.0f} s", file=sys.stderr, flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(dict(sorted(figures.items())), indent=2) + "\n")
    return 1 if failed else 0
