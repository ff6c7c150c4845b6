# SPDX-License-Identifier: Apache-2.0
"""Platform files of the emulator (native/testbed/emulator/platforms/*.conf), read and changed."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Platforms that model a GPU, by a word of the names that NVML gives it. Others are taken for the first one.
MODELS = {"H100": "h100x8", "H200": "h200x4", "A100": "a100x4", "A800": "a100x4", "T4": "t4x8"}


def model_of(gpu: str) -> str:
    """The emulated platform that models a GPU; the first one where none does."""
    return next((model for word, model in MODELS.items() if word in gpu), next(iter(MODELS.values())))


def value_of(conf: str, key: str) -> str:
    """What a platform file says of a key.

    Raises:
        KeyError: nothing.
    """
    line = re.search(rf"^{re.escape(key)}\s*=\s*([^#\n]*)", conf, re.MULTILINE)
    if not line:
        raise KeyError(key)
    return line[1].strip()


def points_of(conf: str, key: str) -> list[tuple[str, float]]:
    """A curve of a platform file: where, such as `64K`, and what.

    Raises:
        KeyError: there is none.
    """
    pairs = (point.split(":") for point in value_of(conf, key).split())
    return [(at, float(value)) for at, value in pairs]


def changed(conf: str, values: Mapping[str, str]) -> str:
    """A platform file with other values; a key that it lacks is added."""
    for key, value in values.items():
        line = f"{key} = {value}"
        conf, count = re.subn(rf"^{re.escape(key)}\s*=.*$", line, conf, count=1, flags=re.MULTILINE)
        conf = conf if count else f"{conf}\n{line}\n"
    return conf
