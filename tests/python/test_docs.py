# SPDX-License-Identifier: Apache-2.0
"""What docs/guides and the README tell users to type: verbs and options exist, and links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from powerccl.commands import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "packaging/README.md"])
BLOCK = re.compile(r"^ *```(?:\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def commands_of(page: Path) -> list[str]:
    """Each line of a code block that calls powerccl, without what stands before the call."""
    found = []
    for block in BLOCK.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            called = re.search(r"(?:^|[|;&]|\$|sudo|srun)\s*(powerccl (?![·:]).*)", line)
            if called:
                found.append(called[1].split("  # ")[0].split(" | ")[0].split(" || ")[0].split(" > ")[0].strip())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_taken(page: Path) -> None:
    for text in commands_of(page):
        words = shlex.split(text, comments=True)[1:]
        if not words or "..." in words or "…" in words or any(word.isupper() and word[0] == "[" for word in words):
            continue
        name, *rest = words
        verb = cli.get_command(click.Context(cli), name) if not name.startswith("-") else cli
        assert verb is not None, f"{page.name}: no verb in `{text}`"
        while isinstance(verb, click.Group) and rest and not rest[0].startswith("-"):
            verb, rest = verb.get_command(click.Context(verb), rest[0]), rest[1:]
            assert verb is not None, f"{page.name}: no such study in `{text}`"
        options = {option for parameter in verb.params for option in (*parameter.opts, *parameter.secondary_opts)}
        options |= {"-h", "--help", "--version"}
        before = rest[: rest.index("--")] if "--" in rest else rest
        if verb.context_settings.get("ignore_unknown_options"):
            continue  # powerccl bench hands on what it does not know
        for word in before:
            if word.startswith("-") and len(word) > 1:
                assert word.partition("=")[0] in options, f"{page.name}: `{text}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if not re.match(r"\w+:", target):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} -> {target}"


def test_commands_were_found() -> None:
    assert len(commands_of(ROOT / "docs/guides/save-energy-pytorch.md")) > 8
