# SPDX-License-Identifier: Apache-2.0
"""`powerccl` from the folder that this file is in; started by `record` beside it."""

import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
# Behind the container's own packages nothing is hidden, in front nothing is older than what PowerCCL needs.
sys.path[:0] = [f"{here}/{sys.version_info.major}.{sys.version_info.minor}", f"{here}/all"]

try:
    from powerccl.commands import main
    from powerccl.launch import recording  # noqa: F401 - what `run` imports later, packages of the processor's included
except ImportError as error:  # a Python that no package was made for
    print(f"powerccl: {error}; the job runs unrecorded", file=sys.stderr)
    command = sys.argv[sys.argv.index("--") + 1 :]
    os.execvp(command[0], command)

main()
