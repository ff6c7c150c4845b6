# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the native programs: they keep the contracts that the Python side relies on, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

RUN_ID = "0123456789abcdef" * 2  # of the fixture `run`

AGENT = """#!/bin/sh
folder="$2"
echo "$$ $*" > "$folder/agent-was-here"
echo ready
cat > /dev/null
echo gone > "$folder/agent-is-gone"
"""

EMULATOR = f"""#!{sys.executable}
import socket, sys
path = sys.argv[sys.argv.index("--socket") + 1]
listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listening.bind(path)
listening.listen(16)
print("ready", flush=True)
sys.stdin.read()
"""

BENCH_SWEEP = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
value = lambda name, default="": arguments[arguments.index(name) + 1] if name in arguments else default
clocks = [int(c) for c in value("--clocks").split(",")] if value("--clocks") else [None]
path = value("--json-lines")
done = 0
if os.path.exists(path):
    done = max(0, open(path).read().count(chr(10)) - 1)
out = open(path, "a")
if done == 0:
    print(json.dumps(dict(type="header", emulated=True, ranks=8, gpu="Tesla T4", nccl_version="2.28.9",
                          clock_control="set" if clocks[0] else "none")), file=out, flush=True)
limit = int(os.environ.get("FAKE_BENCH_STOPS_AFTER", "1000000"))
managed = os.environ.get("POWERCCL_POLICY") == "per-call"
size, sizes = int(value("-b")), []
while size <= int(value("-e")):
    sizes.append(size)
    size *= int(value("-f"))
patterns = [a for a in arguments[: arguments.index("-b")]]
count = 0
for clock in clocks:
    for pattern in patterns:
        for size in sizes:
            count += 1
            if count <= done:
                continue
            if count > limit:
                print("powerccl-bench: a rank failed", file=sys.stderr)
                sys.exit(4)
            busbw = 3.0 if (clock or 1590) >= 480 else 1.5
            time_us = size / busbw / 1e3 + (20 if managed else 0)
            print(json.dumps(dict(type="point", pattern=pattern, size_bytes=size, clock_requested_mhz=clock,
                                  time_us=time_us, busbw_gbs=size / time_us / 1e3, sm_clock_mhz=clock or 1590.0,
                                  watts_per_gpu=40.0)), file=out, flush=True)
print("done", count)
"""

GPUS_MODULE_JSON = (
    '{"names": ["Tesla T4", "Tesla T4"], "driver": "580", "emulated": true, "reason": "", '
    '"clocks_mhz": [300, 480, 900, 1590]}'
)

# What a profile asks of powerccld: every clock is granted.
SWEPT_CLOCKS = """
import socket, time
import powerccl.bench.clocks as swept
from powerccl.platforms.measurements import clocks_to_profile

class Granted:
    dry = False
    attend = staticmethod(time.sleep)

    def __init__(self, *_):
        pass

    def choose(self, supported, wanted):
        return wanted or clocks_to_profile(supported)

    def connect_bench(self):
        self.ours, theirs = socket.socketpair()
        return theirs

    def switch_cost(self, *_):
        return None

    def release(self):
        pass

    close = release

swept.SweptClocks = Granted
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def native_folder(root: Path) -> Path:
    """A folder laid out as the native part installs itself."""
    write_program(root / "bin/powerccl-agent", AGENT)
    write_program(root / "bin/powerccl-emulator", EMULATOR)
    write_program(root / "bin/powerccl-bench", BENCH_SWEEP)
    for name in (
        *("bin/powerccld", "lib/libpowerccl-nccl.so", "emulator/libcuda.so.1", "emulator/libnvidia-ml.so.1"),
        "emulator/libnccl.so.2",
    ):
        write_program(root / name, "")
    write_program(root / "share/platforms/t4x8.conf", "")
    write_program(root / "share/platforms/h200x4.conf", "")
    return root


def fail(text: str) -> None:
    """In place of what says something, where nothing is to be said."""
    pytest.fail(f"said: {text}")
