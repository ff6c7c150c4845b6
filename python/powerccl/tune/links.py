# SPDX-License-Identifier: Apache-2.0
"""What collectives on this host go over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from powerccl.errors import choose
from powerccl.launch.emulation import platform_name
from powerccl.launch.gpus import nvlink_generation
from powerccl.platforms.parameters import LINKS


def find_links(environment: Mapping[str, str], gpu: str, emulate: str) -> tuple[str, ...]:
    """What collectives on this host go over, from NCCL's variables and the driver; of LINKS."""
    on = ("1", "true", "yes")
    forced = all(environment.get(f"NCCL_{name}_DISABLE", "0").lower() in on for name in ("P2P", "SHM"))
    if forced or "sockets" in platform_name(emulate):
        verbs = Path("/sys/class/infiniband")
        has_verbs = not emulate and verbs.is_dir() and any(verbs.iterdir())
        return ("ib",) if has_verbs and environment.get("NCCL_IB_DISABLE", "0") == "0" else ("sockets",)
    generation = (6 if "H200" in gpu else 0) if emulate else nvlink_generation()
    if not generation:
        return ("pcie",)
    with_switch = generation >= 6 and environment.get("NCCL_NVLS_ENABLE", "") != "0" and not emulate
    return ("nvlink", "nvls") if with_switch else ("nvlink",)


def parse_links(text: str) -> tuple[str, ...]:
    """Links of `--links`.

    Raises:
        UsageError: one of them is not known.
    """
    links = tuple(part.strip() for part in text.split(",") if part.strip())
    return tuple(choose("link", link, LINKS) for link in links)
