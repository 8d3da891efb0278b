"""Bytes to a checked syntax tree, or a refusal that names file and position."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tokenize
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path

#: A script that contains none of these words has nothing for tfboost to do; it is never parsed.
RELEVANT = re.compile(rb"tensorflow|keras|horovod")

#: Deeper trees overflow LibCST's parser and every recursive walk (measured: 300 nested terms pass, 600 do not).
MAX_DEPTH = 250

_NEWLINE = re.compile(r"\r\n|\r|\n")


class SourceError(Exception):
    """A file that cannot be handled. `line` and `column` count from 1; 0 where there is no position."""

    def __init__(self, path: Path | str, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.path, self.message, self.line, self.column = str(path), message, line, column

    def __str__(self) -> str:
        position = f":{self.line}" + (f":{self.column}" if self.column else "") if self.line else ""
        return f"{self.path}{position}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        return SourceError, (self.path, self.message, self.line, self.column)


@dataclass
class Source:
    """A file's exact bytes, its text without the byte order mark, and its syntax tree."""

    path: Path
    data: bytes
    encoding: str
    text: str
    tree: ast.Module = field(repr=False)
    parents: dict[ast.AST, ast.AST] = field(repr=False)  # of every node, from the root downwards

    @cached_property
    def lines(self) -> list[str]:
        """Lines as Python counts them: a form feed or U+2028 ends none."""
        return _NEWLINE.split(self.text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0] + [m.end() for m in _NEWLINE.finditer(self.text)]

    @cached_property
    def quote(self) -> str:
        """The quotes that most of the strings have."""
        found = Counter[str]()
        with contextlib.suppress(tokenize.TokenError, IndentationError):  # what comes after does not matter
            for token in tokenize.generate_tokens(io.StringIO(self.text.lstrip("\ufeff"), newline="").readline):
                if token.type == tokenize.STRING and not token.string.endswith(('"""', "'''")):
                    found[token.string[-1]] += 1
        return "'" if found["'"] > found['"'] else '"'

    def column(self, line: int, byte_column: int) -> int:
        """`ast` counts UTF-8 bytes; people and LibCST count characters."""
        text = self.lines[line - 1]
        if text.isascii():
            return byte_column
        return len(text.encode()[:byte_column].decode(errors="ignore"))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end of a node as character offsets into `text`."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._line_starts[node.lineno - 1] + self.column(node.lineno, node.col_offset),
            self._line_starts[node.end_lineno - 1] + self.column(node.end_lineno, node.end_col_offset),
        )

    def snippet(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node as it stands in the file."""
        start, end = self.span(node)
        return self.text[start:end]


def read(path: Path) -> bytes:
    """Raises `SourceError` where the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from None


def parse(data: bytes, path: Path) -> Source:
    """Raises `SourceError` for whatever is not Python 3 source text."""
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise SourceError(path, "contains a null byte: not a text file", line)
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        text = data.decode(encoding)
    except SyntaxError as error:
        raise SourceError(path, f"cannot be decoded: {error.msg}", 1) from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SourceError(path, f"cannot be decoded as {error.encoding}: {error.reason}", line) from None
    except LookupError as error:
        raise SourceError(path, f"cannot be decoded: {error}", 1) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the user's strings are not ours to report
            tree = ast.parse(data)
    except SyntaxError as error:
        raise SourceError(path, _explain(error), error.lineno or 0, max(error.offset or 0, 0)) from None
    except (RecursionError, MemoryError):
        raise SourceError(path, "cannot be parsed: an expression is nested too deeply") from None
    except ValueError as error:
        raise SourceError(path, f"cannot be parsed: {error}") from None
    return Source(path, data, encoding, text, tree, _parents(tree, path))


def _explain(error: SyntaxError) -> str:
    line = (error.text or "").strip()
    if line.startswith(("%", "!", "?")):
        return "cannot be parsed: notebook magic; export the notebook without magics, or comment the line out"
    if "Missing parentheses in call to 'print'" in error.msg or re.match(r"(print\s|exec\s|raise \w+,)", line):
        return f"cannot be parsed: Python 2 syntax ({error.msg})"
    return f"cannot be parsed: {error.msg}"


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below, in the order of the source; without `Load`, `Add` and the like, which say nothing.

    Does what `ast.iter_child_nodes` does in a third of the time.
    """
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [v for v in value if isinstance(v, ast.AST) and not isinstance(v, _SIGNS)]
        elif isinstance(value, ast.AST) and not isinstance(value, _SIGNS):
            found.append(value)
    return found


_SIGNS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


def _parents(tree: ast.Module, path: Path) -> dict[ast.AST, ast.AST]:
    """Raises `SourceError` where the tree is too deep to be walked."""
    parents: dict[ast.AST, ast.AST] = {}
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        below: list[ast.AST] = []
        for node in level:
            for child in children(node):
                parents[child] = node
                below.append(child)
        if not below:
            return parents
        level = below
    position = next((node.lineno for node in level if hasattr(node, "lineno")), 0)
    raise SourceError(path, f"cannot be handled: nested more than {MAX_DEPTH} levels deep", position)
