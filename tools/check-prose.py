#!/usr/bin/env python3
"""Check what people read: pages, the help of all verbs, and comments, docstrings, messages and names of the code.

A page may name a file of the repository, and behind a colon names in it: `native/abi/lease.h`: `NAME`, `NAME`.
Files and such names must exist, and so must constants (kName, NAME_OF_ONE) and functions (name()) anywhere.

Comments and docstrings have the pages' rules for sentences and words. A file that they name must exist. Other projects'
files are marked: in angle brackets (<link.h>), or behind the owner's name (NCCL's src/proxy.h).

Prints a line a fault, then the mean and the longest sentence of the README and the guides. --out FILE also writes the
two as figures. Ends with 1 if there is a fault.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shlex
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from code_prose import native_source, python_source

ROOT = Path(__file__).resolve().parent.parent
# Words of one sentence. Readers of a second language lose the thread of longer ones.
MOST_WORDS = 25
MOST_MEAN = 16.0  # of README and guides
# An old page that is not rewritten yet: its links and commands are checked, not its prose.
LATER = {"docs/decisions/0011-emulated-clock-changes.md"}
# Words of our own, and the field's term to write instead. Code spans may hold names, but no option that was renamed.
BANNED = {
    r"doors?": "adapter, hook or plugin",
    r"whoever|whosoever|somebody|nobody|everybody": "the people or the process, by name",
    r"lots": "expert load",
    r"conductor": "clock policy",
    r"deeds?": "window outcome",
    r"rhythms?": "iteration, period",
    r"timetables?": "iteration profile",
    r"told|tells? of|telling of": "says, reports, shows, receives",
    r"(?:hears?|heard|knows?|knew) of": "receives, is notified, reads",
    r"left alone|let be": "unmanaged, skipped",
    r"anew": "again",
    r"at once": "immediately, or together",
    r"by itself": "without a command, or alone",
    r"there is one": "the fact in full",
    r"stands?(?! for| in for| still|-)|lies|lie|lay(?! (?:\w+ )?out)": "is",
    r"slack (?:that )?(?:is )?taken up": "slack reclamation",
    r"(?:gives?|gave) way": "reduce",
    r"as ever": "unchanged, or the exact behaviour",
    r"spared": "unmanaged, or idle",
    r"quick switching": "low switching latency",
    r"slow switching": "high switching latency",
    r"meetings?": "matched collectives",
    r"crews?": "worker pool",
    r"oneself": "the subject, by name",
}
ANY_BANNED = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)
RENAMED = {
    "--slowdown": "--max-slowdown",
    "--budget": "--max-slowdown, or --mpi-max-delay",
    "POWERCCL_BUDGET": "POWERCCL_MAX_SLOWDOWN",
    "percall": "per-call",
}
# Variables that say nothing of what they hold.
BANNED_NAMES = {"its", "found", "mine", "theirs", "ours", "whoever", "nobody", "somebody", "everybody"}
CODE = ("native", "python/powerccl")
CODE_KINDS = (".h", ".cpp", ".c", ".def", ".py")
# A file of the sources, not behind an owner's name or in brackets or quotes.
SOURCE_NAMED = re.compile(r"(?<![\w<./\"{*-])[\w./-]*\w\.(?:cpp|h|c|py|def|conf|scn|cmake|md)\b(?![>.]\w)")
OWNED = re.compile(r"(?:\w's|<[^<>\n]*|\"[^\"\n]*)\s*$")
# Names of files that users give their programs.
EXAMPLES = {"train.py", "app.py", "a.py"}
# Pages that tell of names and files as they were.
PAST = ("docs/decisions/", "CHANGELOG.md")
FILE = r"(?:bench|cmake|docs|examples|native|packaging|evidence|python|tests|tools)/[\w./{},*-]*"
FILE_NAMED = re.compile(rf"`({FILE})(?: [^`]*)?`(:?)")  # a program may have its arguments
SPAN = re.compile(r"`([^`\n]+)`")
WORD = re.compile(r"\w+")
CONSTANT = re.compile(r"k[A-Z]\w+|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|[\w:.]+\(\)")
# Names of others.
FOREIGN = re.compile(r"(?:NCCL|CUDA|SLURM|OMPI|LD|TORCH|DCGM)_")
FENCE = re.compile(r"^ *(`{3,}|~{3,})(.*?)\n(.*?)^ *\1 *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Commands of a line: behind a prompt, a separator or a word that hands on, up to the next separator or comment.
CALL = re.compile(
    r"(?:^|[|;&$>]|\b(?:do|sudo|srun))\s*((?:powerccl(?= [\w-])|make(?= [\w\s=-]+(?:  #|$))).*?)(?=$|  #| [|>;]|; )"
)


@dataclass(frozen=True)
class Sentence:
    """A sentence, the line of its page that it starts in, and how many words it has.

    `counted`: in the mean. Cells of tables are mostly names and figures, and would flatter it.
    """

    line: int
    text: str
    words: int
    counted: bool


def pages() -> list[Path]:
    """Every page that users read, sorted."""
    single = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
    folders = ("packaging", "docs")
    return [
        *(ROOT / name for name in single if (ROOT / name).exists()),
        *(page for folder in folders for page in sorted((ROOT / folder).rglob("*.md"))),
    ]


def is_guide(page: Path) -> bool:
    """Whether a page counts in the printed figures: the README, the tutorial and the guides."""
    name = str(page.relative_to(ROOT))
    return name in ("README.md", "docs/tutorial.md", "docs/index.md") or name.startswith("docs/guides/")


def without_code(text: str) -> str:
    """The page without its fenced blocks; every line stays in its place."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def _blocks(text: str) -> Iterator[tuple[int, str, bool]]:
    """Paragraphs, list items and table cells (last: False), with the line they start in."""
    start = 1
    lines: list[str] = []
    for number, line in enumerate([*without_code(text).split("\n"), ""], 1):
        bare = line.strip().lstrip("> ")
        item = re.match(r"([-*+]|\d+\.|\[\^[\w-]+\]:)\s+", bare)
        if lines and (not bare or item or bare[0] in "#|<!"):
            yield start, " ".join(lines), True
            lines = []
        if bare.startswith("|"):
            yield from ((number, cell, False) for cell in re.split(r"(?<!\\)\|", bare.strip("|")))
        elif bare and not bare.startswith(("#", "<", "!!!", "???", "---", "===")):
            start = start if lines else number
            lines.append(bare[item.end() :] if item else bare)
    if lines:
        yield start, " ".join(lines), True


def sentences(text: str) -> Iterator[Sentence]:
    """Sentences of a page's prose. A code span is one word; headings and fenced code are none."""
    for line, block, counted in _blocks(text):
        plain = re.sub(r"!\[[^\]]*\]\([^)]*\)|\[\^[\w-]+\]|<[^>]+>", "", block)
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
        plain = re.sub(r"`[^`]*`", "code", plain)
        plain = re.sub(r"(\*\*|\*|__)(\S(?:.*?\S)?)\1", r"\2", plain)
        for part in re.split(r"(?<=[.!?])[\")*]?\s+(?=[\"(*]?[A-Z0-9]|k[A-Z]|\w+_\w|\w+: |code)", plain):
            words = [word for word in part.split() if re.search(r"\w", word)]
            if len(words) > 1 and re.search("[a-z]", part):
                yield Sentence(line, part.strip(), len(words), counted)


def prose_faults(text: str) -> Iterator[str]:
    """`LINE: what is wrong` for each long sentence and each word that has a better one."""
    for each in sentences(text):
        if each.words > MOST_WORDS:
            yield f"{each.line}: {each.words} words in a sentence, {MOST_WORDS} at most: {each.text[:90]}…"
    for number, line in enumerate(text.split("\n"), 1):
        for old, new in RENAMED.items():
            if re.search(rf"(?<![\w-]){re.escape(old)}(?![\w-])", line):
                yield f"{number}: `{old}` is now {new}"
    yield from word_faults(without_code(text))


def word_faults(text: str) -> Iterator[str]:
    """`LINE: what is wrong` for each word that has a better one."""
    for number, line in enumerate(re.sub(r"`[^`\n]*`", "", text).split("\n"), 1):
        for match in ANY_BANNED.finditer(line):
            better = next(new for old, new in BANNED.items() if re.fullmatch(old, match[0], re.IGNORECASE))
            yield f"{number}: “{match[0]}”: write {better}"


def _placed(faults: Iterator[str], first: int) -> Iterator[str]:
    """Faults of a part of a file whose first line is `first`."""
    for fault in faults:
        number, _, what = fault.partition(":")
        yield f"{int(number) + first - 1}:{what}"


def _comment_faults(text: str) -> Iterator[str]:
    """Faults of one comment or docstring: long sentences, words, files that are not there."""
    # Code and tables in comments are indented, examples in help texts are marked, and columns are a list.
    prose = re.sub(r"^(?:    |\t).*$", "", textwrap.dedent(text), flags=re.MULTILINE)
    for listed in (r"^\s*Columns: .*?(?=\n\s*\n|\Z)", r"\x08\n.*?(?=\n\s*\n|\Z)"):
        prose = re.sub(listed, lambda match: "\n" * match[0].count("\n"), prose, flags=re.MULTILINE | re.DOTALL)
    for each in sentences(prose):
        if each.words > MOST_WORDS:
            yield f"{each.line}: {each.words} words in a sentence, {MOST_WORDS} at most: {each.text[:90]}…"
    yield from word_faults(prose)
    for match in SOURCE_NAMED.finditer(text):
        name = match[0]
        known = any(path == name or path.endswith(f"/{name}") for path in _tracked())
        if not known and name not in EXAMPLES and not OWNED.search(text[: match.start()]):
            yield f"{text.count(chr(10), 0, match.start()) + 1}: no file {name}"


def code_faults(name: str, text: str) -> Iterator[str]:
    """`LINE: what is wrong` in the comments, messages and names of a source file."""
    source = python_source(text) if name.endswith(".py") else native_source(text)
    for line, comment in sorted(source.comments):
        yield from _placed(_comment_faults(comment), line)
    for line, message in source.strings:
        if " " in message:  # else a key or a name
            yield from _placed(word_faults(message), line)
    lines: dict[str, list[int]] = {}
    for line, word in source.names:
        if word in BANNED_NAMES:
            lines.setdefault(word, []).append(line)
    for word, places in lines.items():
        yield f"{places[0]}: a variable `{word}` ({len(places)} times): name what it holds"


def code_files() -> list[str]:
    """Source files whose comments and names are checked."""
    return sorted(name for name in _tracked() if name.startswith(CODE) and name.endswith(CODE_KINDS))


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`: headings as GitHub and MkDocs both spell them, and explicit ids."""
    text = without_code(page.read_text(encoding="utf-8"))
    found = set(re.findall(r"(?:id=\"|\{:? ?#)([\w-]+)", text))
    for heading in re.findall(r"^#+ +(.*?)(?: \{.*\})?$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain)))
    return found


def link_faults(page: Path) -> Iterator[str]:
    """Links to files and headings that are not there."""
    for number, line in enumerate(without_code(page.read_text(encoding="utf-8")).split("\n"), 1):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"\w+:", target):
                if not re.match(r"https?://[\w.-]+\.\w+(:\d+)?(/|$)|https?://127\.|mailto:", target):
                    yield f"{number}: no address {target}"
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists():
                yield f"{number}: no file {target}"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield f"{number}: no heading {target}"


@functools.cache
def _tracked() -> frozenset[str]:
    """Files of the repository and their folders."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = {name for name in listed.stdout.split("\n") if (ROOT / name).is_file()}
    return frozenset(files | {str(parent) for name in files for parent in Path(name).parents})


@functools.cache
def _words(name: str) -> frozenset[str]:
    """What a file has of words; "": all sources together, without tests."""
    if name:
        return frozenset(WORD.findall((ROOT / name).read_text(encoding="utf-8", errors="replace")))
    kinds = (".h", ".cpp", ".c", ".def", ".in", ".py", ".txt", ".cmake")
    sources = (path for path in _tracked() if path.endswith(kinds) and not path.startswith("tests/"))
    return frozenset(word for path in sources for word in _words(path))


def _files(pattern: str) -> list[str]:
    """Files and folders that a pattern with {a,b} and * names."""
    if found := re.search(r"\{([^{}]*)\}", pattern):
        each = (pattern[: found.start()] + part + pattern[found.end() :] for part in found[1].split(","))
        several = [_files(one) for one in each]
        return [name for names in several for name in names] if all(several) else []
    wanted = re.compile(re.escape(pattern.rstrip("/")).replace(r"\*", "[^/]*"))
    return [name for name in _tracked() if wanted.fullmatch(name)]


def name_faults(text: str) -> Iterator[str]:
    """`LINE: what is named and is not there`."""
    for line, block, _ in _blocks(text):
        for found in FILE_NAMED.finditer(block):
            files = _files(found[1])
            if not files:
                yield f"{line}: no file {found[1]}"
            if not files or not found[2] or not all((ROOT / name).is_file() for name in files):
                continue
            words = frozenset(word for name in files for word in _words(name))
            said = re.split(rf"(?<=\w[.;]) |(?<=`[.;]) |(?<=`\)[.;]) |`{FILE}`", block[found.end() :])[0]
            for name in SPAN.findall(said):
                if re.fullmatch(r"[\w:.]+(?:\(\))?", name) and WORD.findall(name)[-1] not in words:
                    yield f"{line}: no {name} in {found[1]}"
        for name in SPAN.findall(block):
            if CONSTANT.fullmatch(name) and not FOREIGN.match(name) and WORD.findall(name)[-1] not in _words(""):
                yield f"{line}: {name} is nowhere in the sources"


def commands_of(text: str) -> Iterator[tuple[int, str]]:
    """Each command in a page's fenced blocks, with its line, without what stands before and behind it."""
    for found in FENCE.finditer(text):
        number = text[: found.start(3)].count("\n") + 1
        for line in re.split(r"(?<!\\)\n", found[3]):  # a command may go on behind a backslash
            for called in CALL.finditer(re.sub(r"\\\n(?:> )?", " ", line)):
                yield number, called[1].strip()
            number += line.count("\n") + 1


def command_fault(text: str, targets: set[str]) -> str:
    """Why a command would be refused; empty: it would not."""
    from powerccl.commands import cli

    words = shlex.split(text.partition(" -- ")[0], comments=True)
    if words[0] == "make":
        missing = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"no target {missing[0]} in the Makefile" if missing else ""
    words = words[1:]
    if not words or any(word in ("...", "…") or (word.isupper() and word[0] == "[") for word in words):
        return ""
    name, *rest = words
    verb = cli.get_command(click.Context(cli), name) if not name.startswith("-") else cli
    while isinstance(verb, click.Group) and verb is not cli and rest and not rest[0].startswith("-"):
        verb, rest = verb.get_command(click.Context(verb), rest[0]), rest[1:]
    if verb is None:
        return f"no such verb: `{text}`"
    if verb.context_settings.get("ignore_unknown_options"):
        return ""  # powerccl bench hands on what it does not know
    shown = [parameter for parameter in verb.params if not getattr(parameter, "hidden", False)]
    options = {option for parameter in shown for option in (*parameter.opts, *parameter.secondary_opts)}
    options |= {"-h", "--help", "--version"}
    unknown = [word for word in rest if len(word) > 1 and word[0] == "-" and word.partition("=")[0] not in options]
    return f"no option {unknown[0]}: `{text}`" if unknown else ""


def help_texts() -> Iterator[tuple[str, str]]:
    """The help of every verb and of each of its options, by name."""
    from powerccl.commands import cli

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, str]]:
        yield name, re.sub(r"\x08\n.*?(?=\n\n|\Z)", "", command.help or "", flags=re.DOTALL)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.help and not parameter.hidden:
                yield f"{name} {parameter.opts[-1]}", parameter.help
        if isinstance(command, click.Group):
            context = click.Context(command)
            for each in command.list_commands(context):
                if found := command.get_command(context, each):
                    yield from walk(f"{name} {each}", found)

    yield from walk("powerccl", cli)


def main() -> int:
    """Check everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    parser.add_argument("files", nargs="*", type=Path, help="pages to check; all of them, and the help texts, if none")
    options = parser.parse_args()
    chosen = [file.resolve() for file in options.files] or pages()
    rules = re.findall(
        r"^([\w -]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )  # one may have several targets
    targets = {target for rule in rules for target in rule.split()}
    faults: list[str] = []
    counted: list[Sentence] = []
    for page in chosen:
        text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
        if name not in LATER:
            faults += [f"{name}:{fault}" for fault in prose_faults(text)]
        faults += [f"{name}:{fault}" for fault in link_faults(page)]
        if not name.startswith(PAST):
            faults += [f"{name}:{fault}" for fault in name_faults(text)]
        for number, command in commands_of(text):
            if why := command_fault(command, targets):
                faults.append(f"{name}:{number}: {why}")
        if is_guide(page):
            counted += [each for each in sentences(text) if each.counted]
    if not options.files:
        for name, text in help_texts():
            faults += [f"{name} --help:{fault}" for fault in prose_faults(text)]
        for name in code_files():
            faults += [f"{name}:{fault}" for fault in code_faults(name, (ROOT / name).read_text(encoding="utf-8"))]
    if counted:
        mean, longest = statistics.mean(each.words for each in counted), max(each.words for each in counted)
        print(f"README and guides: {len(counted)} sentences of {mean:.1f} words, the longest of {longest}")
        if not options.files and mean > MOST_MEAN:
            faults.append(f"README and guides: {mean:.1f} words in the mean sentence, {MOST_MEAN:.0f} at most")
        if options.out:
            figures = {
                name: {"value": round(value, 2), "unit": "words", "low": None, "high": None, "n": len(counted)}
                for name, value in (("words.mean", mean), ("words.longest", longest))
            }
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps({"figures": figures}, indent=1) + "\n")
    print("\n".join(faults), file=sys.stderr, end="\n" * bool(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
