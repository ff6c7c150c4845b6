# SPDX-License-Identifier: Apache-2.0
"""Figures by topic: PYTHONPATH=tests python -m support.topics accounts|harm|trust --out FILE [--only TOPIC...].

Each of these packages has a module a topic, with `measure(native, folder)`. It runs its cases in `folder`,
which is empty and its own, and returns figures by their full name. A case that cannot run on this machine raises; it is
never counted as passed. `--only` keeps the figures of other topics that the file has.
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

from powerccl.launch.native import NativeFiles, find_native
from support.figures import Figures, show, write

Measure = Callable[[NativeFiles, Path], Figures]


def topics_of(package: str) -> list[str]:
    """Names of the modules that measure."""
    names = sorted(each.name for each in pkgutil.iter_modules(importlib.import_module(package).__path__))
    return [name for name in names if hasattr(importlib.import_module(f"{package}.{name}"), "measure")]


def main() -> int:
    """Run topics of a package, and write what they measured after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", choices=("accounts", "harm", "trust"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", metavar="TOPIC")
    arguments = parser.parse_args()
    package, topics = arguments.package, topics_of(arguments.package)
    wanted = arguments.only or topics
    if unknown := sorted(set(wanted) - set(topics)):
        parser.error(f"--only: {unknown[0]} is none of {', '.join(topics)}")
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # ignored in the background, and then by jobs as well
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    native = find_native()
    figures = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    failed = []
    for topic in wanted:
        begin_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"{package}-{topic}-", ignore_cleanup_errors=True) as folder:
            try:
                new = importlib.import_module(f"{package}.{topic}").measure(native, Path(folder))
            except Exception as error:  # one topic's fault leaves the others to be measured
                failed.append(topic)
                print(f"{topic}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
        figures.update(new)
        show(dict(sorted(new.items())))
        print(f"{topic}: {time.monotonic() - begin_s:.0f} s", file=sys.stderr, flush=True)
        write(arguments.out, dict(sorted(figures.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
