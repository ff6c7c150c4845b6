#!/usr/bin/env python3
"""Check that native rooms include only what design allows.

adapters -> runtime -> clock -> {record, policy}, record -> base -> {abi, libc}, and policy -> libc.
{adapters, agent, daemon} -> device -> {abi, libc}.
bench and emulator speak foreign ABIs: they include nothing of what lives in a job.
{emulator, sim} -> physics: emulated GPUs, in real time and in virtual time; sim -> {clock, bench} as well.
"""

import re
import sys
from pathlib import Path

ALLOWED: dict[str, set[str]] = {
    "libc": set(),
    "abi": set(),
    "policy": {"libc"},
    "base": {"abi", "libc"},
    "record": {"base", "abi", "libc"},
    "clock": {"record", "policy", "base", "abi", "libc"},
    "runtime": {"clock", "record", "policy", "base", "abi", "libc"},
    "device": {"abi", "libc"},
    "adapters": {"runtime", "clock", "record", "base", "device", "abi", "libc"},
    "agent": {"device", "abi"},
    "daemon": {"device", "abi"},
    "bench": set(),
    "physics": set(),
    "emulator": {"physics"},
    "sim": {"clock", "record", "policy", "abi", "libc", "physics", "bench"},
}
NVIDIA = {"cuda.h": {"bench", "emulator", "adapters"}, "nvml.h": {"bench", "emulator", "device"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)


def faults(root: Path) -> list[str]:
    """Return one line for each include that goes against the arrows."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".c"}:
            continue
        room = path.relative_to(root).parts[0]
        if room not in ALLOWED:
            found.append(f"{path}: room `{room}` is not on the map (tools/check-arrows.py)")
            continue
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = name.split("/")[0]
            if target in ALLOWED and target not in ALLOWED[room] | {room}:
                found.append(f"{path}: {room} may not include {name}")
            if name in NVIDIA and room not in NVIDIA[name]:
                found.append(f"{path}: {room} may not include {name}")
            if name.startswith("../"):
                found.append(f"{path}: include {name} by its path from native/")
    return found


lines = faults(Path(sys.argv[1]))
print("\n".join(lines) if lines else "native arrows: kept")
sys.exit(bool(lines))
