# SPDX-License-Identifier: Apache-2.0
"""Text of others on its way out: to terminals, CSV, HTML, JSON, Prometheus and Perfetto.

A host, program or folder may be called anything. Terminals obey control characters, and spreadsheets run a field that
begins with `=`. Characters that turn the direction of writing make a name look like another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

# C0 and C1 controls, DEL, characters that set direction, line and paragraph ends, lone surrogates and invisible tags.
_RAW = (
    "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_FIELD = re.compile(f"[{_RAW}]")
_LINES = re.compile(f"(?!\\n)[{_RAW}]")
_FORMULA = ("=", "+", "-", "@")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8, as os.fsdecode keeps it
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def field(text: str) -> str:
    """One name or value: what is not to be printed becomes visible, as in Python's own escapes. Line ends, too."""
    return text if text.isascii() and text.isprintable() else _FIELD.sub(_escaped, text)


def lines(text: str) -> str:
    """The same of text that may have several lines."""
    return text if text.isascii() and text.isprintable() else _LINES.sub(_escaped, text)


def cell(value: object) -> object:
    """A CSV cell: text that a spreadsheet would take as a formula gets an apostrophe in front. Numbers stay."""
    if not isinstance(value, str):
        return value
    text = field(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", text) is not None


def to_json(value: object, indent: int = 0, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """JSON that may go to a terminal; a name that is not UTF-8, which JSON cannot hold, as `field` shows it."""
    import msgspec

    try:
        data = msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        data = msgspec.json.encode(encodable(msgspec.to_builtins(value, enc_hook=enc_hook)))
    return json(msgspec.json.format(data, indent=indent) if indent else data) + b"\n"


def encodable(value: Any) -> Any:
    """Builtins of msgspec.to_builtins with all text as `field` shows it."""
    if isinstance(value, str):
        return field(value)
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    return [encodable(each) for each in value] if isinstance(value, list) else value


def json(data: bytes) -> bytes:
    """Encoded JSON for a terminal: characters as `field` replaces are escaped, which readers of JSON undo.

    They occur inside of strings only: msgspec has escaped those below a space, and line ends are its own.
    """
    if data.isascii() and b"\x7f" not in data:
        return data
    return _LINES.sub(_json_escape, data.decode("utf-8", "surrogatepass")).encode()


def _json_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
