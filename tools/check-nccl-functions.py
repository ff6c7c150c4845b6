#!/usr/bin/env python3
"""Check that the library stands before every function of NCCL that it has to.

check-nccl-functions.py [WHEEL | LIBRARY ...]   compares nvidia-nccl wheels or libnccl.so.2 files
Without arguments: looks whether the package index has a release newer than the last one looked at. If so, fetches and
compares it. Without an index it says so and is content.
Each function has to stand in preload_functions.def, or below with the reason why not.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "nvidia-nccl-cu13"
LOOKED_AT = (2, 32, 3)  # the newest release whose functions were compared; 2.28.9, 2.29.7 and 2.30.7 were too
LIST = Path(__file__).parent.parent / "native/job/adapters/nccl/preload_functions.def"
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"

# Patterns of functions that need nobody before them.
NEEDLESS = {
    r"ncclGet(Version|UniqueId|ErrorString|LastError)": "asks NCCL, moves nothing",
    r"ncclComm(Count|CuDevice|UserRank|GetAsyncError|GetUniqueId|MemStats|QueryProperties)": "asks a communicator",
    r"ncclComm(Resume)": "its calls begin anew, and each is seen",
    r"ncclComm(Register|Deregister|WindowRegister|WindowDeregister)|ncclWinGetUserPtr": "names memory, moves nothing",
    r"ncclMem(Alloc|Free)": "memory",
    r"ncclRedOp\w+": "defines an operator",
    r"ncclResetDebugInit(Internal)?|ncclParam\w+|ncclSetEncryption": "settings",
    r"ncclDevComm(Create|Destroy)|ncclTeam\w+": "for the user's own kernels",
    r"nccl(Gin|LLA2A|Lsa)\w+|ncclGet\w*(Pointer|Info)": "for the user's own kernels",
}


def stood_before() -> set[str]:
    """Return the functions of NCCL in the library's list."""
    return set(re.findall(r"^POWERCCL_NCCL_\w+\((nccl\w+)", LIST.read_text(), re.MULTILINE))


def functions_of(library: Path) -> set[str]:
    """Return what a libnccl.so.2 exports to programs; pnccl names are the same functions once more."""
    command = ["nm", "--dynamic", "--defined-only", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r" [TW] (nccl[A-Z]\w+)$", listed, re.MULTILINE))
    if "ncclAllReduce" not in found:
        raise SystemExit(f"check-nccl-functions.py: {library} is no NCCL")
    return found


def in_file(path: Path) -> set[str]:
    """Return the functions of a wheel or a library."""
    if path.suffix != ".whl":
        return functions_of(path)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
        return functions_of(Path(wheel.extract(LIBRARY, folder)))


def unknown(functions: set[str]) -> list[str]:
    """Return the functions that nobody has thought of."""
    needless = re.compile("|".join(f"(?:{pattern})" for pattern in NEEDLESS))
    return sorted(name for name in functions - stood_before() if not needless.fullmatch(name))


def newest_release() -> tuple[int, ...] | None:
    """Return the newest release in the package index; None: there is no index."""
    command = [sys.executable, "-m", "pip", "index", "versions", PACKAGE, "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return None
    found = re.search(r"\((\d+(?:\.\d+)+)\)", done.stdout)
    return tuple(int(part) for part in found[1].split(".")) if done.returncode == 0 and found else None


def compare(path: Path, name: str) -> bool:
    """Say which functions of a file are unknown; False if there are any."""
    missing = unknown(in_file(path))
    if missing:
        print(f"{name} has functions that the library knows nothing of: {', '.join(missing)}", file=sys.stderr)
        print(f"hint: add them to {LIST.name}, or to {Path(__file__).name} with the reason why not", file=sys.stderr)
    return not missing


def main() -> int:
    """Compare what is named, or what is new."""
    if len(sys.argv) > 1:
        known = [compare(Path(path), Path(path).name) for path in sys.argv[1:]]  # each says what it lacks
        return 0 if all(known) else 1
    newest = newest_release()
    if newest is None:
        print("NCCL's functions: no package index to look for a new release in")
        return 0
    if newest <= LOOKED_AT:
        return 0
    version = ".".join(map(str, newest))
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*download, "--dest", folder, f"{PACKAGE}=={version}"], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        if not compare(wheel, f"NCCL {version}"):
            return 1
    print(f"NCCL {version} is new and has no function that the library does not know: set LOOKED_AT")
    return 0


if __name__ == "__main__":
    sys.exit(main())
