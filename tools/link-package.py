#!/usr/bin/env python3
"""Make `powerccl` of this checkout importable and runnable in a virtual environment, without building a wheel.

An editable install would build the native part a second time; a path file and a console script do the same.
"""

import sys
import sysconfig
from pathlib import Path

venv = Path(sys.argv[1]).resolve()
source = Path(__file__).resolve().parent.parent / "python"
purelib = Path(sysconfig.get_paths(vars={"base": str(venv), "platbase": str(venv)})["purelib"])
(purelib / "powerccl-checkout.pth").write_text(f"{source}\n", encoding="utf-8")
script = venv / "bin" / "powerccl"
script.write_text(
    f"#!{venv / 'bin' / 'python'}\nimport sys\n\nfrom powerccl.commands import main\n\nsys.exit(main())\n",
    encoding="utf-8",
)
script.chmod(0o755)
