# SPDX-License-Identifier: Apache-2.0
"""Where the fields of a C struct lie, read from its header's text."""

from __future__ import annotations

import re

Fields = dict[str, tuple[int, int]]  # offset and bytes of each


def fields_of(body: str, begin: int = 0, lengths: dict[str, int] | None = None) -> Fields:
    """Those of a struct's body, aligned by themselves, without reserved ones. `lengths`: of arrays, by macro."""
    found: Fields = {}
    offset = begin
    for bits, names in re.findall(r"(?:char|u?int(\d+)_t)\s+([^;]+);", re.sub(r"//[^\n]*", "", body)):
        size = int(bits or 8) // 8
        for name, count in re.findall(r"(\w+)(?:\[(\w+)\])?", names):
            length = (lengths or {}).get(count) or int(count or 1)
            offset = -(-offset // size) * size
            found[name] = (offset, size * length)
            offset += size * length
    return {name: place for name, place in found.items() if not name.startswith("reserved")}


def body_of(text: str, name: str) -> str:
    """The body of a struct with a name of its own."""
    found = re.search(rf"^struct {name} \{{\n(.*?)^\}};", text, re.DOTALL | re.MULTILINE)
    assert found, name
    return found[1]
