# SPDX-License-Identifier: Apache-2.0
"""Which parameters are searched where, and which configurations are mended."""

from pathlib import Path
from typing import Any

import pytest

from powerccl.errors import PowercclError
from powerccl.platforms.parameters import LINKS, UNSET, Machine, make_space, names_in, read_data


def machine(*links: str, nccl: str = "2.28.9") -> Machine:
    return Machine("NVIDIA H200", 4, 1, nccl, links)


def names(*links: str, nccl: str = "2.28.9", patterns: tuple[str, ...] = ("all_reduce",), **more: Any) -> set[str]:
    environment = more.pop("environment", {})
    space = make_space(machine(*links, nccl=nccl), patterns, environment, **more)
    return {parameter.name for parameter in space.parameters}


ALL_OF_WINDOWS = {parameter.name for parameter in read_data()[0] if parameter.windows} - {
    *("NCCL_SYM_CTAS", "NCCL_SYM_GIN_KERNELS_ENABLE", "NCCL_HIER_CE_COLL_NUM_CTX"),
    "NCCL_CE_COLL_AG_MULTICAST_THRESHOLD",
}


def test_the_data_is_sound() -> None:
    parameters, conflicts = read_data()
    assert len(parameters) >= 45  # the publication's own filter left so many
    assert len({p.name for p in parameters}) == len(parameters)
    for parameter in parameters:
        assert parameter.name.startswith("NCCL_") and parameter.what and parameter.values
        assert all(part in (*LINKS, "any") for link in parameter.links for part in link.split("+"))
        assert parameter.choices[0] == UNSET and len(parameter.choices) > 1
    known = {p.name for p in parameters}
    assert all(set(conflict.names) <= known for conflict in conflicts)


def test_links_version_patterns_and_environment_filter() -> None:
    assert "NCCL_NSOCKS_PERTHREAD" in names("sockets") and "NCCL_NSOCKS_PERTHREAD" not in names("nvlink")
    assert "NCCL_IB_QPS_PER_CONNECTION" in names("ib") and "NCCL_IB_QPS_PER_CONNECTION" not in names("sockets")
    assert "NCCL_NVLS_ENABLE" in names("nvlink", "nvls") and "NCCL_NVLS_ENABLE" not in names("nvlink")
    assert "NCCL_NVLSTREE_MAX_CHUNKSIZE" not in names("nvls")  # both nvls and ib
    assert "NCCL_MIN_CTAS" not in names("sockets", nccl="2.16.2")
    assert "NCCL_MAX_P2P_NCHANNELS" not in names("sockets")
    assert "NCCL_MAX_P2P_NCHANNELS" in names("sockets", patterns=("all_to_all",))
    assert "NCCL_BUFFSIZE" not in names("sockets", environment={"NCCL_BUFFSIZE": "1048576"})


@pytest.mark.parametrize(
    ("nccl", "there"),
    [
        ("2.28.9", {"NCCL_CTA_POLICY", "NCCL_SYM_KERNEL"}),
        ("2.29.7", {"NCCL_CTA_POLICY", "NCCL_SYM_KERNEL", "NCCL_SYM_CE_THRESHOLD"}),
        ("2.30.7", {"NCCL_CTA_POLICY", "NCCL_SYM_KERNEL", "NCCL_SYM_CE_THRESHOLD", "NCCL_SYM_TMA_ENABLE"}),
        (
            "2.32.3",
            {
                *("NCCL_CTA_POLICY", "NCCL_SYM_KERNEL", "NCCL_SYM_CE_THRESHOLD", "NCCL_SYM_TMA_ENABLE"),
                *("NCCL_CE_CHUNK_SIZE", "NCCL_CE_INTRA_GPU_MEMCPY_ENABLE", "NCCL_HIER_CE_COLL_AG_RAIL_RING_ENABLE"),
            },
        ),
    ],
)
def test_symmetric_windows_have_parameters_of_their_own(nccl: str, there: set[str]) -> None:
    newer = {name for name in ALL_OF_WINDOWS if name not in there}
    found = names("nvlink", "ib", patterns=("all_gather",), nccl=nccl, windows=True)
    assert there <= found and not newer & found
    assert not there & names("nvlink", "ib", patterns=("all_gather",), nccl=nccl)


def test_what_a_user_adds_fixes_and_forbids() -> None:
    assert "NCCL_COLLNET_ENABLE" not in names("ib")  # risky
    assert "NCCL_COLLNET_ENABLE" in names("ib", add=("NCCL_COLLNET_ENABLE",))
    space = make_space(
        machine("sockets"), ["all_reduce"], {}, ["NCCL_NEW_THING=1,2"], ["NCCL_BUFFSIZE=8388608"], ["NCCL_NTHREADS"]
    )
    found = {p.name: p for p in space.parameters}
    assert found["NCCL_NEW_THING"].choices == (UNSET, "1", "2")
    assert "NCCL_BUFFSIZE" not in found and "NCCL_NTHREADS" not in found
    assert space.left_out["NCCL_NTHREADS"] == "forbidden" and "fixed" in space.left_out["NCCL_BUFFSIZE"]
    assert space.mend({})["NCCL_BUFFSIZE"] == "8388608"  # defaults and candidates alike


def test_what_nccl_does_not_read_is_refused(tmp_path: Path) -> None:
    """NCCL_FOO would be searched for minutes, and come out best by chance."""
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"\x7fELF\0NCCL_NEW_THING\0NCCL_%s of NCCL_TEXT here\0NCCL_OTHER\0")
    assert names_in(library) == {"NCCL_NEW_THING", "NCCL_OTHER"}
    assert names("sockets", add=("NCCL_NEW_THING=1,2",), read_by_nccl=lambda: names_in(library)) >= {"NCCL_NEW_THING"}
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"add": ("NCCL_NEW_THINGS=1,2",)}, "did you mean 'NCCL_NEW_THING'?"),
        ({"fix": ("NCCL_FOO=1",)}, "in the environment"),
    )
    for options, hint in refused:
        with pytest.raises(PowercclError, match="this NCCL reads no such variable") as error:
            names("sockets", read_by_nccl=lambda: names_in(library), **options)
        assert hint in error.value.hint
    assert names_in(tmp_path / "none") == frozenset()  # what cannot be read refuses nothing
    assert "NCCL_FOO" in names("sockets", add=("NCCL_FOO=1,2",), read_by_nccl=lambda: names_in(tmp_path / "none"))


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("add", "NCCL_NTHREAD", "did you mean 'NCCL_NTHREADS'"),
        ("add", "PATH=1", "NCCL_NAME=VALUE"),
        ("fix", "NCCL_BUFFSIZE", "NCCL_NAME=VALUE"),
        ("forbid", "NCCL_BUFSIZE", "did you mean 'NCCL_BUFFSIZE'"),
    ],
)
def test_wrong_words_are_refused_with_a_hint(option: str, value: str, hint: str) -> None:
    with pytest.raises(PowercclError) as error:
        more: dict[str, Any] = {option: (value,)}
        names("sockets", **more)
    assert hint in error.value.hint


def test_conflicts_are_mended() -> None:
    space = make_space(machine("sockets"), ["all_reduce"], {})
    assert space.mend({"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "4"}) == {"NCCL_MAX_CTAS": "4"}
    assert space.mend({"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "4"}) == {"NCCL_MAX_CTAS": "4", "NCCL_MIN_CTAS": "4"}
    assert space.mend({"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "16"}) == {"NCCL_NSOCKS_PERTHREAD": "16"}
    assert space.mend({"NCCL_LL128_NTHREADS": "128", "NCCL_PROTO": "Simple"}) == {"NCCL_PROTO": "Simple"}
    assert space.mend({"NCCL_LL128_NTHREADS": "128", "NCCL_BUFFSIZE": UNSET}) == {"NCCL_LL128_NTHREADS": "128"}


def test_a_fixed_value_outlives_a_conflict() -> None:
    space = make_space(machine("sockets"), ["all_reduce"], {}, fix=["NCCL_MIN_CTAS=16"])
    assert space.mend({"NCCL_MAX_CTAS": "4"}) == {"NCCL_MIN_CTAS": "16"}


def test_likeness_prefers_the_same_machine() -> None:
    here = machine("sockets")
    assert here.likeness(here) == 4
    assert here.likeness(machine("sockets", nccl="2.27.3")) == 3
    assert here.likeness(machine("nvlink")) == 0
    assert here.likeness(Machine("Tesla T4", 4, 1, "2.28.9", ("sockets",))) == 0
