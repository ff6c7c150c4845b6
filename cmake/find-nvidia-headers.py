"""Print the folder of this interpreter's wheels that holds both cuda.h and nvml.h; print nothing if there is none."""

import sys
from pathlib import Path

for entry in sys.path:
    for include in sorted(Path(entry or ".").glob("nvidia/*/include")):
        if (include / "cuda.h").is_file() and (include / "nvml.h").is_file():
            print(include)
            sys.exit(0)
