"""How two versions of a file differ: the places, a diff for `patch`, and which line of the first became which."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .files import shown


class Place(NamedTuple):
    """Lines `start` to `end` (from 0, the end not included) became lines `new` to `new_end`."""

    start: int
    end: int
    new: int
    new_end: int


def patch_lines(data: bytes) -> list[bytes]:
    """Lines as `patch` counts them, each with its end."""
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


def python_lines(data: bytes) -> list[bytes]:
    """Lines as Python counts them, which a lone carriage return ends too."""
    return data.splitlines(keepends=True)


class Diff:
    def __init__(self, before: bytes, after: bytes, lines_of: Callable[[bytes], list[bytes]] = patch_lines) -> None:
        self.before, self.after = lines_of(before), lines_of(after)

    @cached_property
    def places(self) -> list[Place]:
        """Where they differ."""
        import difflib

        before, after = self.before, self.after
        start, end = 0, 0
        shortest = min(len(before), len(after))
        while start < shortest and before[start] == after[start]:
            start += 1
        while end < shortest - start and before[-1 - end] == after[-1 - end]:
            end += 1
        old, new = before[start : len(before) - end], after[start : len(after) - end]
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        return [
            Place(a + start, b + start, c + start, d + start)
            for tag, a, b, c, d in matcher.get_opcodes()
            if tag != "equal"
        ]

    @cached_property
    def _rows(self) -> list[int]:
        """For each line as Python counts them the line here, both from 1."""
        return [0, *(row for row, line in enumerate(self.before, 1) for _ in python_lines(line))]

    def touched(self, ranges: Iterable[tuple[int, int]]) -> list[Place]:
        """The places in these lines of the first version (as Python counts them, from 1), or directly at them."""
        row = self._rows
        rows = [(row[first] if first <= last else row[last] + 1, row[last]) for first, last in ranges]
        return [place for place in self.places if any(self._touches(place, *row) for row in rows)]

    def _touches(self, place: Place, first: int, last: int) -> bool:
        if place.start < place.end:
            return place.start < last and place.end >= first
        up, down = place, place  # an inserted line may as well stand behind an equal one that follows it
        while up.start and self.before[up.start - 1] == self.after[up.new_end - 1]:
            up = Place(*(n - 1 for n in up))
        while down.end < len(self.before) and self.before[down.start] == self.after[down.new]:
            down = Place(*(n + 1 for n in down))
        return up.start <= last and down.start >= first - 1

    # -- from the second version back to the first -----------------------------------------------------------

    def origin(self, line: int) -> tuple[int, int]:
        """The lines of the first version (from 1) that a line of the second one comes from.

        For an inserted line they are empty: the line below it, and the one above.
        """
        shift = 0
        for place in self.places:
            if line <= place.new:
                break
            if line <= place.new_end:
                if place.end - place.start == place.new_end - place.new:
                    shift = place.start - place.new
                    break
                return place.start + 1, place.end
            shift = place.end - place.new_end
        return line + shift, line + shift

    def position(self, line: int, column: int) -> tuple[int, int]:
        """Where a place of the second version is in the first one: the column stays where the text before it does."""
        first, last = self.origin(line)
        if not first <= last:
            return max(last, 1), 1
        old, new = (lines.decode(errors="replace") for lines in (self.before[first - 1], self.after[line - 1]))
        if old[: column - 1] != new[: column - 1]:
            column = len(old) - len(old.lstrip()) + 1
        return first, column

    # -- as text ---------------------------------------------------------------------------------------------

    def unified(self, path: Path, context: int = 3) -> bytes:
        """A diff that `patch -p0` applies, byte for byte; empty where nothing differs."""
        if not self.places:
            return b""
        name = _quoted(path)
        parts = [b"--- " + name + b"\n", b"+++ " + name + b"\n"]
        for hunk in self.hunks(context):
            first, last = hunk[0], hunk[-1]
            a, b = max(first.start - context, 0), min(last.end + context, len(self.before))
            c, d = first.new - (first.start - a), last.new_end + (b - last.end)
            parts.append(f"@@ -{_range(a, b)} +{_range(c, d)} @@\n".encode())
            at = a
            for place in hunk:
                parts += [_line(b" ", line) for line in self.before[at : place.start]]
                parts += [_line(b"-", line) for line in self.before[place.start : place.end]]
                parts += [_line(b"+", line) for line in self.after[place.new : place.new_end]]
                at = place.end
            parts += [_line(b" ", line) for line in self.before[at:b]]
        return b"".join(parts)

    def hunks(self, context: int) -> list[list[Place]]:
        hunks = [[self.places[0]]]
        for previous, place in pairwise(self.places):
            if place.start - previous.end <= 2 * context:
                hunks[-1].append(place)
            else:
                hunks.append([place])
        return hunks


def _range(start: int, end: int) -> str:
    length = end - start
    return f"{start + (length > 0)}" + ("" if length == 1 else f",{length}")


def _line(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _quoted(path: Path) -> bytes:
    """A file's name as `patch` reads it: quoted with control characters, closed by a tab with blanks."""
    name = os.fsencode(shown(path))
    if any(c < 32 or c in b'"\\' for c in name) and os.sep == "/":
        return b'"' + b"".join(b"\\%03o" % c if c < 32 or c in b'"\\' else bytes([c]) for c in name) + b'"'
    return name + b"\t" if b" " in name else name
