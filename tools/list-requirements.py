#!/usr/bin/env python3
"""Print, one a line, requirements of pyproject.toml: list-requirements.py PYPROJECT ARRAY...

ARRAY is `dependencies`, an extra (without the extras that it names) or a dependency group. Needed because
`pip install --group` is not everywhere yet and tomllib is missing before Python 3.11.
"""

import re
import sys
from pathlib import Path


def requirements(text: str, name: str) -> list[str]:
    """Return the strings of one array, in order."""
    array = re.search(rf"^{name} = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    if array is None:
        sys.exit(f"{sys.argv[1]}: no array `{name}`")
    return re.findall(r'^\s*"((?!powerccl\[)[^"]+)",', array.group(1), re.MULTILINE)


pyproject = Path(sys.argv[1]).read_text(encoding="utf-8")
for array in sys.argv[2:]:
    print("\n".join(requirements(pyproject, array)))
