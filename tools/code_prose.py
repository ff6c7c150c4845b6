"""Comments, docstrings, messages and names of a source file, for check-prose.py."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

# In this order: a comment sign inside a string is none, and a quote inside a comment opens no string.
NATIVE_TOKEN = re.compile(
    r"""//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/
    |R"(?P<mark>[^\s()\\]*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<string>(?:\\.|[^"\\\n])*)"
    |(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'|(?P<name>(?<!\.)(?<!->)\b[A-Za-z_]\w*)|\#\s*include\s[^\n]*""",
    re.DOTALL | re.VERBOSE,
)
# Not prose: licences, and what checkers read.
DIRECTIVE = re.compile(r"SPDX-|clang-format|NOLINT|NOQA|noqa|type: ignore|pragma:|!/|mypy:|fmt: ")


class Source(NamedTuple):
    """What a source file says to its readers, each with the line it starts in."""

    comments: list[tuple[int, str]]
    strings: list[tuple[int, str]]
    names: list[tuple[int, str]]


class _Comment(NamedTuple):
    line: int
    column: int
    alone: bool
    text: str


def _joined(comments: list[_Comment]) -> Iterator[tuple[int, str]]:
    """Comments of adjacent lines as one text, if the later ones begin in the same column and have their line alone."""
    block: list[_Comment] = []
    for comment in [*comments, None]:
        last = block[-1] if block else None
        if comment and last and comment.alone and (comment.line, comment.column) == (last.line + 1, last.column):
            block.append(comment)
            continue
        if block:
            yield block[0].line, "\n".join(each.text for each in block)
        block = [comment] if comment else []


def native_source(text: str) -> Source:
    """Comments, strings and names of C or C++."""
    comments: list[_Comment] = []
    source = Source([], [], [])
    line, line_start, position = 1, 0, 0
    for token in NATIVE_TOKEN.finditer(text):
        passed = text.count("\n", position, token.start())
        if passed:
            line, line_start = line + passed, text.rindex("\n", 0, token.start()) + 1
        position = token.start()
        comment = token["line"] if token["line"] is not None else token["block"]
        if comment is not None:
            if not DIRECTIVE.search(comment):
                alone = not text[line_start : token.start()].strip()
                # `///<` is no part of the text, and `* ` begins a line of a block.
                plain = re.sub(r"^[/!<]+|^\s*\*(?= |$)", "", comment, flags=re.MULTILINE)
                comments.append(_Comment(line, token.start() - line_start, alone, plain))
        elif token["string"] or token["raw"]:
            source.strings.append((line, token["string"] or token["raw"]))
        elif token["name"]:
            source.names.append((line, token["name"]))
    source.comments.extend(_joined(comments))
    return source


def python_source(text: str) -> Source:
    """Comments, docstrings, strings and names of Python."""
    comments: list[_Comment] = []
    source = Source([], [], [])
    docstrings: set[ast.AST] = set()
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None and isinstance(node.body[0], ast.Expr):
                constant = node.body[0].value
                docstrings.add(constant)
                source.comments.append((constant.lineno, " " * constant.col_offset + docstring))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            source.strings.append((node.lineno, node.value))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # Fields are not looked at: some of them are names in files that users read.
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name | ast.arg):
                    source.names.append((inner.lineno, inner.id if isinstance(inner, ast.Name) else inner.arg))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.search(token.string):
            alone = not token.line[: token.start[1]].strip()
            comments.append(_Comment(token.start[0], token.start[1], alone, token.string.lstrip("#")))
    source.comments.extend(_joined(comments))
    return source
