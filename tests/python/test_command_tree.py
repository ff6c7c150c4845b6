# SPDX-License-Identifier: Apache-2.0
"""One meaning for each option over all verbs, and examples that the verbs take."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tool_module import load_tool

from powerccl.commands import cli

# Options whose values differ between verbs, and why.
VALUES_DIFFER = {
    "--csv": "report writes several tables, into a folder; the others write one",
    "--emulate": "a study runs on several emulated platforms, so it takes a list",
    "--from": "tune reads a run, study one of its own folders",
    "--gpus": "a study has several world sizes, so it takes a list",
    "--interval": "an exporter writes more seldom than a screen shows",
    "--mpi": "run chooses how ranks wait; demo and bench choose whether MPI takes part",
    "--out": "a search and a study are folders; a profile and a proof are files",
    "--ranks": "a prediction needs ranks that communicate; one rank of MPI can be measured",
    "--sizes": "profile also takes a range, which tune has no use for",
    "--ways": "profile measures the table that the other verbs take",
}
# Options whose help texts begin otherwise, and why.
MEANINGS_DIFFER = {
    "--runs-dir": "demo keeps no run without it; top and export add to what runs",
}


def verbs(command: click.Command = cli, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the tree with its words."""
    if words:
        yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from verbs(below, (*words, name))


def options() -> dict[str, list[tuple[str, click.Option]]]:
    """Every option by each of its names, with the verbs that have it."""
    of_names = defaultdict(list)
    for words, command in verbs():
        for option in command.params:
            if isinstance(option, click.Option):
                for name in (*option.opts, *option.secondary_opts):
                    of_names[name].append((" ".join(words), option))
    return of_names


def value(option: click.Option) -> str:
    """What follows the option's name: kind, bounds and metavar."""
    kind = option.type
    bounds = f" {kind.min} to {kind.max}" if isinstance(kind, click.IntRange | click.FloatRange) else ""
    choices = f" {kind.choices}" if isinstance(kind, click.Choice) else ""
    name = "text" if isinstance(kind, click.Path) else kind.name  # a path is text that click makes a Path of
    return f"{'flag' if option.is_flag else name}{bounds}{choices} {option.metavar} x{option.nargs}"


def test_an_option_takes_the_same_values_in_all_verbs() -> None:
    differ = {name: {value(option) for _, option in users} for name, users in options().items()}
    assert {name for name, values in differ.items() if len(values) > 1} == set(VALUES_DIFFER), differ


def test_an_option_means_the_same_in_all_verbs() -> None:
    """Texts of one option begin with the same verb or noun."""
    firsts = {name: {str(option.help).split()[0] for _, option in users} for name, users in options().items()}
    differing = {name for name, words in firsts.items() if len(words) > 1}
    assert differing - set(VALUES_DIFFER) == set(MEANINGS_DIFFER), {name: firsts[name] for name in differing}


def test_help_texts_are_of_one_style() -> None:
    for name, users in options().items():
        for verb, option in users:
            if option.hidden:
                continue
            where = f"{verb} {name}"
            text = (option.help or "").split("  [")[0]
            assert text and text[0].isalnum() and text.endswith("."), where
            takes_value = not option.is_flag and not isinstance(option.type, click.Choice)
            assert bool(option.metavar) == takes_value, f"{where}: a value has a metavar"
    for words, command in verbs():
        assert (command.help or "").split("\n")[0].endswith("."), words


@pytest.mark.parametrize(("words", "command"), list(verbs()), ids=[" ".join(words) for words, _ in verbs()])
def test_examples_are_there_and_parse(words: tuple[str, ...], command: click.Command) -> None:
    block = (command.help or "").rpartition("\b\n")[2].replace("\\\n", " ")
    examples = [line.strip() for line in block.splitlines() if line.strip()]
    assert any(f"powerccl {' '.join(words)}" in example for example in examples)
    for example in examples:
        typed = shlex.split(example.split(" | ")[0])
        typed = typed[typed.index("powerccl") + 1 :]
        context = click.Context(cli)
        current: click.Command = cli
        while isinstance(current, click.Group) and typed:
            found = current.get_command(context, typed[0])
            assert found is not None, example
            current, typed = found, typed[1:]
        current.make_context(example, typed)  # raises a usage error where an option does not exist


def test_json_without_a_file_goes_to_stdout(tmp_path: Path) -> None:
    runner = CliRunner()
    assert "usable" in json.loads(runner.invoke(cli, ["doctor", "--json"]).stdout)
    assert "usable" in json.loads(runner.invoke(cli, ["doctor", "--json", "-"]).stdout)
    file = tmp_path / "checks.json"
    shown = runner.invoke(cli, ["doctor", "--json", str(file)]).stdout
    assert "usable" in json.loads(file.read_text())
    assert "Next:" in shown or "Does not work:" in shown  # the text is printed as well


def test_pages_have_every_option() -> None:
    pages = load_tool("command_pages")
    reference = pages.reference_page()
    manuals: dict[str, str] = pages.man_pages()
    assert len(manuals) == 1 + len(list(verbs()))
    for words, command in verbs():
        manual = manuals[f"powerccl-{'-'.join(words)}.1"]
        section = reference.partition(f"# powerccl {' '.join(words)}\n")[2].partition("\n#")[0]
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert f"- `{option.opts[0]}" in section or f", {option.opts[0]}" in section, (words, option.opts)
                assert option.opts[0].replace("-", "\\-") in manual, (words, option.opts)


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff")
def test_man_pages_are_sound() -> None:
    for name, text in load_tool("command_pages").man_pages().items():
        checked = subprocess.run(
            ["groff", "-man", "-ww", "-z", "-Kutf8"], input=text, capture_output=True, text=True, check=True
        )
        assert not checked.stderr, name
