# SPDX-License-Identifier: Apache-2.0
"""`python -m powerccl` is the same as `powerccl`."""

from powerccl.commands import main

if __name__ == "__main__":
    main()
