# SPDX-License-Identifier: Apache-2.0
"""`powerccl` from the folder that this file is in; started by `record` beside it."""

import sys

here = sys.path[0]
# Behind the container's own packages nothing is hidden, in front nothing is older than what PowerCCL needs.
sys.path[:1] = [f"{here}/{sys.version_info.major}.{sys.version_info.minor}", f"{here}/all"]

from powerccl.commands import main  # noqa: E402

main()
