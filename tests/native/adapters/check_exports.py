"""Check what a library for jobs exports and needs: check_exports.py LIBRARY EXPORT... (exit 1 if not so).

An EXPORT is a regular expression: all that is exported must match one, and each must match something.

It may need nothing but libc (and the loader, which some toolchains name for thread-local variables), of glibc nothing
that 2.17 does not have: the loader ends a program whose glibc lacks a version that a preloaded library asks for.
"""

import re
import subprocess
import sys

# The second and the third are part of libc since 2.34, which has them as empty files.
ALLOWED_NEEDED = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
OLDEST_GLIBC = (2, 17)


def main() -> int:
    library, wanted = sys.argv[1], set(sys.argv[2:])
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    table = subprocess.run(["readelf", "--dyn-syms", "-W", library], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in table.splitlines()]
    symbols = [row for row in rows if len(row) >= 8 and row[0].rstrip(":").isdigit()]
    exported = {row[7].split("@")[0] for row in symbols if row[4] != "LOCAL" and row[6] not in ("UND", "ABS")}
    # libgcc's and libstdc++'s helpers would be undefined here if they had crept in.
    foreign = {row[7] for row in symbols if row[6] == "UND" and (row[7].startswith("_Z") or "@GLIBCXX" in row[7])}
    too_new = {
        row[7]
        for row in symbols
        if (found := re.search(r"@GLIBC_([\d.]+)", row[7])) and tuple(map(int, found[1].split("."))) > OLDEST_GLIBC
    }
    faults = []
    if "libc.so.6" not in needed or not needed <= ALLOWED_NEEDED:
        faults.append(f"needs {sorted(needed)}, may need {sorted(ALLOWED_NEEDED)}")
    unwanted = {name for name in exported if not any(re.fullmatch(pattern, name) for pattern in wanted)}
    missing = {pattern for pattern in wanted if not any(re.fullmatch(pattern, name) for name in exported)}
    if unwanted or missing:
        faults.append(f"exports {sorted(exported)}, should export {sorted(wanted)}")
    if too_new:
        faults.append(f"needs a newer glibc than 2.17 for {sorted(too_new)}: see native/libc/versions.h")
    if foreign:
        faults.append(f"takes from elsewhere {sorted(foreign)}")
    for fault in faults:
        print(f"{library}: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
