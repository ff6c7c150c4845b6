#!/usr/bin/env python3
"""Check that native folders include, and native targets link, only what ALLOWED lets them.

docs/concepts/architecture.md shows the same arrows as a picture, and says what each folder does. bench, physics and
emulator speak foreign ABIs: they include nothing of what lives in a job. bench reaches NVML by device. bench and
emulator include abi for the clock of times that cross processes. The emulated NCCL also includes NCCL's plugin
interfaces, which the adapters share.
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
    "bench": {"device", "abi"},
    "physics": set(),
    "emulator": {"physics", "abi"},
    "sim": {"clock", "record", "policy", "abi", "libc", "physics", "bench"},
}
# Where a room stands under native/. What every part uses stands beside them.
PARTS = {
    "job": {"adapters", "runtime", "clock", "record", "policy", "base"},
    "node": {"agent", "daemon", "device"},
    "testbed": {"bench", "physics", "emulator", "sim"},
}
NVIDIA = {"cuda.h": {"bench", "emulator", "adapters"}, "nvml.h": {"emulator", "device"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
TARGET = re.compile(r"add_(?:library|executable)\((powerccl[\w-]+)")
LINKS = re.compile(r"target_link_libraries\(\S+ ([^)]*)\)|\bLINK ([^)]*)\)")


def place_of(room: str) -> str:
    """Where a room stands under native/."""
    return next((f"{part}/{room}" for part, rooms in PARTS.items() if room in rooms), room)


def room_of(path: Path, root: Path) -> str:
    """The room that a file stands in, by its place: a place that is not on the map is returned as it is."""
    parts = path.relative_to(root).parts[:-1]
    place = "/".join(parts[: 2 if parts[:1] and parts[0] in PARTS else 1])
    return next((room for room in ALLOWED if place_of(room) == place), place)


def include_faults(root: Path) -> list[str]:
    """Return one line for each include that goes against the arrows."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".c"}:
            continue
        room = room_of(path, root)
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
                found.append(f"{path}: include {name} by its room")
    return found


def link_faults(root: Path) -> list[str]:
    """Return one line for each target that links a library of a folder that its own folder may not include."""
    lists = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("CMakeLists.txt"))}
    rooms = {target: room_of(path, root) for path, text in lists.items() for target in TARGET.findall(text)}
    rooms["powerccl_abi"] = "abi"  # its target stands in native/CMakeLists.txt, as it is headers alone
    found = []
    for path, text in lists.items():
        room = room_of(path, root)
        for libraries in LINKS.findall(text):
            for library in " ".join(libraries).split():
                target = rooms.get(library, room)
                if target not in ALLOWED.get(room, set(ALLOWED)) | {room}:
                    found.append(f"{path}: {room} may not link {library}")
    return found


if __name__ == "__main__":
    native = Path(sys.argv[1] if len(sys.argv) > 1 else "native")
    lines = include_faults(native) + link_faults(native)
    print("\n".join(lines) if lines else "native arrows: kept")
    sys.exit(bool(lines))
