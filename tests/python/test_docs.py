# SPDX-License-Identifier: Apache-2.0
"""What `make lint` checks pages and arrows with finds what it looks for: tools/check-prose.py and others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from c_struct import body_of, fields_of
from tool_module import load_tool

from powerccl.traces import records

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("check-prose")


def test_sentences_are_counted_as_a_reader_reads_them(tool: ModuleType) -> None:
    page = (
        "# A heading is none\n\nOne *two* `three four five` six. [Seven eight](x.md) nine!\n\n"
        "```console\n$ no words here\n```\n- ten eleven\n- twelve\n  thirteen\n\n| a cell | 12 |\n"
    )
    found = [(each.line, each.words, each.counted) for each in tool.sentences(page)]
    assert found == [(3, 4, True), (3, 3, True), (8, 2, True), (9, 2, True), (12, 2, False)]


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("word " * 26 + ".", "1: 26 words in a sentence"),
        ("Fine.\n\nWhoever reads this.", "3: “Whoever”"),
        ("Give `--slowdown 2`.", "1: `--slowdown` is now --max-slowdown"),
        ("Set POWERCCL_BUDGET.", "1: `POWERCCL_BUDGET`"),
    ],
)
def test_prose_faults(tool: ModuleType, page: str, fault: str) -> None:
    (found,) = tool.prose_faults(page)
    assert found.startswith(fault)


def test_sound_prose(tool: ModuleType) -> None:
    assert not list(tool.prose_faults("word " * 25 + ".\n\nGive `--max-slowdown 2`. `doors` is a name.\n"))


HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// LONG
// goes on here.
struct Lease {  // a trailing comment,
                // which somebody continues
  int found = 0;     // of <link.h>, NCCL's src/proxy.h and abi/lease.h
  const char* text = "nobody // is told \\" gone.h";
  int mark = 'x';    /* See gone.h and
                        also `its` code. */
};
// A table:
//     indented code may name whoever
"""
SCRIPT = """\
'''Docstring: LONG.

Columns: rank, MANY.
'''
FIELD = 1  # by itself


class Row:
    found: int = 0


def read(its: str) -> str:
    '''Nobody's text, as gone.py has it.'''
    mine = "at once" + its  # train.py is a user's
    return mine
"""


def code_faults_of(tool: ModuleType, name: str, text: str) -> list[str]:
    faults = tool.code_faults(name, text.replace("LONG", "Long " + "word " * 24 + "end").replace("MANY", "gpu, " * 30))
    return [fault.split(",")[0].split(": write")[0] for fault in faults]


def test_comments_messages_and_names_of_native_code(tool: ModuleType) -> None:
    assert code_faults_of(tool, "native/abi/a.h", HEADER) == [
        "2: 29 words in a sentence",
        "5: “somebody”",
        "8: no file gone.h",
        "7: “nobody”",
        "7: “told”",
        "6: a variable `found` (1 times): name what it holds",
    ]


def test_comments_messages_and_names_of_python(tool: ModuleType) -> None:
    assert code_faults_of(tool, "python/powerccl/a.py", SCRIPT) == [
        "1: 27 words in a sentence",
        "5: “by itself”",
        "13: “Nobody”",
        "13: no file gone.py",
        "14: “at once”",
        "12: a variable `its` (2 times): name what it holds",
        "14: a variable `mine` (2 times): name what it holds",
    ]


def test_all_code_is_read(tool: ModuleType) -> None:
    files = tool.code_files()
    assert {"native/abi/lease.h", "native/abi/environment.def", "python/powerccl/traces/rank.py"} <= set(files)


def test_dead_links(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `code` heading, *here*\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#a-code-heading-here) [b](https://x.y/z#q) [c](other.md#none)\n\n"
        "[d](gone.md) `[e](f)` [g](http:/h)\n"
    )
    assert list(tool.link_faults(page)) == [
        "1: no heading other.md#none",
        "3: no file gone.md",
        "3: no address http:/h",
    ]


def test_commands(tool: ModuleType) -> None:
    page = (
        "Text.\n```console\n$ powerccl run -q \\\n>   -- app --own; powerccl report  # record\n$ make lint\n"
        "for i in 1 2; do powerccl top; done | tail\npowerccl · a line of output\n```\n`powerccl nothing`\n"
    )
    commands = list(tool.commands_of(page))
    assert [(number, " ".join(text.split())) for number, text in commands] == [
        (3, "powerccl run -q -- app --own"),
        (3, "powerccl report"),
        (5, "make lint"),
        (6, "powerccl top"),
    ]
    assert not any(tool.command_fault(text, {"lint"}) for _, text in commands)
    assert tool.command_fault("powerccl run --nonsense -- app", set()).startswith("no option --nonsense")
    assert tool.command_fault("powerccl nonsense", set()).startswith("no such verb")
    assert tool.command_fault("make nonsense", {"lint"}).startswith("no target nonsense")
    assert not tool.command_fault("powerccl study scaling --help", set())


def test_pages_and_help_texts_are_found(tool: ModuleType) -> None:
    names = {str(page.relative_to(ROOT)) for page in tool.pages()}
    assert {"README.md", "CHANGELOG.md", "docs/guides/install-cluster.md", "docs/guides/save-energy-mpi.md"} <= names
    texts = dict(tool.help_texts())
    assert {"powerccl", "powerccl run", "powerccl run --policy", "powerccl study scaling"} <= set(texts)
    assert len(list(tool.commands_of((ROOT / "docs/guides/save-energy-pytorch.md").read_text()))) > 8


@pytest.mark.parametrize(
    ("page", "faults"),
    [
        ("`native/abi/lease.h`: `powerccl_lease_set`, `no_such`.", ["1: no no_such in native/abi/lease.h"]),
        ("See `native/abi/no.h`.", ["1: no file native/abi/no.h"]),
        ("`native/{abi,job/base}/*.h` and `tests/e2e`.", []),
        ("`native/abi/lease.h`: `powerccl_lease_set`. Then `elsewhere`.", []),
        ("| `native/abi/lease.h`: `powerccl_lease_set` | `elsewhere` |", []),
        ("As `kNoSuchConstant` and `no_such_function()` say.", [
            "1: kNoSuchConstant is nowhere in the sources", "1: no_such_function() is nowhere in the sources"]),
        ("`POWERCCL_CLOCKS`, `kLongestSleepNs`, `open_clock()` and `NCCL_WHATEVER`.", []),
    ],
)  # fmt: skip
def test_files_and_names_in_pages_exist(tool: ModuleType, page: str, faults: list[str]) -> None:
    assert list(tool.name_faults(page)) == faults


ROW = re.compile(r"^\| *(?:`(\w+)`)? *\| (\d+) \| ([a-z]+\d*)(?:\[(\d+)\])? \| `(\w+)`", re.MULTILINE)
BYTES = {"char": 1, "u8": 1, "u16": 2, "u32": 4, "i32": 4, "u64": 8}


def tables_of(page: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Struct ("" as the row above), field, and its offset and bytes, of each row."""
    for name, offset, kind, count, field in ROW.findall(re.sub(r"^\| (?=\d+ \|)", "| | ", page, flags=re.MULTILINE)):
        yield name, field, (int(offset), BYTES[kind] * int(count or 1))


def test_the_page_on_traces_has_each_field_of_each_record() -> None:
    page = (ROOT / "docs/reference/trace-format.md").read_text()
    layouts = {records.KINDS[kind].upper(): layout for kind, layout in records.LAYOUTS.items()} | {
        "Header": records.HEADER
    }
    for heading, layout in layouts.items():
        (section,) = re.findall(rf"^##+ {heading}\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
        shown = {field: place for _, field, place in tables_of(section)}
        fields = (layout.fields or {}).items()
        begin = 0 if heading == "Header" else 8
        assert shown == {
            name: (place[1], place[0].itemsize)
            for name, place in fields
            if place[1] >= begin and not name.startswith("reserved")
        }, heading


def test_the_page_on_leases_has_each_field_of_each_message() -> None:
    header = (ROOT / "native/abi/lease.h").read_text()
    lengths = {name: int(number) for name, number in re.findall(r"^#define (\w+) (\d+)u$", header, re.MULTILINE)}
    shown: dict[str, dict[str, tuple[int, int]]] = {}
    present = ""
    page = (ROOT / "docs/reference/lease-protocol.md").read_text()
    for name, field, place in tables_of(page[page.index("## Structs") :]):
        present = name or present
        shown.setdefault(present, {})[field] = place
    common = "powerccl_lease_header"
    assert set(shown) == set(re.findall(r"^struct (\w+) \{", header, re.MULTILINE))
    for name, fields in shown.items():
        assert fields == fields_of(body_of(header, name), 0 if name == common else 24, lengths), name


def test_the_architecture_page_has_a_row_for_each_folder_of_its_picture() -> None:
    drawing = load_tool("draw-architecture")
    rules = load_tool("check-arrows")
    drawn = {f"native/{rules.place_of(room)}" for room in rules.ALLOWED}
    drawn |= {f"python/powerccl/{name}" for layer in drawing.python_layers() for name in layer}
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/concepts/architecture.md").read_text(), re.MULTILINE)
    assert drawn <= set(rows)
    assert all((ROOT / row).exists() for row in rows if "{" not in row)


def test_arrows_that_a_chain_stands_for_are_not_drawn_and_what_a_chain_may_not_is_said() -> None:
    drawing = load_tool("draw-architecture")
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"b"}}
    assert drawing.without_shortcuts(arrows) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"b"}}
    assert drawing.forbidden_shortcuts(arrows) == ["d → c"]


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("job/policy/a.cpp", '#include "record/streams.h"', "policy may not include record/streams.h"),
        ("job/record/a.cpp", '#include "../base/log.h"', "include ../base/log.h by its room"),
        ("new/a.cpp", "", "room `new` is not on the map"),
        ("job/agent/a.cpp", "", "room `job/agent` is not on the map"),
        ("job/policy/CMakeLists.txt", "target_link_libraries(powerccl_policy PUBLIC powerccl_base)", "may not link"),
    ],
)
def test_arrows_are_kept(tmp_path: Path, path: str, text: str, fault: str) -> None:
    tool = load_tool("check-arrows")
    for name, content in {"job/base/CMakeLists.txt": "add_library(powerccl_base STATIC a.cpp)", path: text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (found,) = tool.include_faults(tmp_path) + tool.link_faults(tmp_path)
    assert fault in found
