# SPDX-License-Identifier: Apache-2.0
"""Platform files of the emulator (native/testbed/emulator/platforms/*.conf), read and changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

# Platforms that model a GPU, by a word of the names that NVML gives it. Others are taken for the first one.
MODELS = {"H100": "h100x8", "H200": "h200x4", "A100": "a100x4", "A800": "a100x4", "T4": "t4x8"}
# The nearest ones of GPUs that have a board file.
NEAREST = {"A40": "a100x4", "V100": "a100x4", "RTX 8000": "a100x4"}


def model_of(gpu: str) -> str:
    """The emulated platform that models a GPU; the first one where none does."""
    models = MODELS | NEAREST
    return next((model for word, model in models.items() if word in gpu), next(iter(models.values())))


def modelled(gpu: str, platforms: Path) -> tuple[str, bool]:
    """The platform file of a GPU, and whether it models that GPU; else its figures are another one's.

    `platforms`: the folder of platform files, of whose boards the one with this GPU's name is put in.
    """
    conf = (platforms / f"{model_of(gpu)}.conf").read_text()
    if value_of(conf, "gpu_name") == gpu:
        return conf, True
    for file in sorted((platforms / "boards").glob("*.conf")):
        board = keys_of(file.read_text())
        if board["gpu_name"] == gpu:
            return changed(conf, board), True
    return conf, any(word in gpu for word in MODELS)


def keys_of(conf: str) -> dict[str, str]:
    """All keys of a platform's or a board's file."""
    lines = (line.partition("#")[0] for line in conf.splitlines())
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


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
