"""What became of each file, as text for people, as a unified diff, and as JSON.

The JSON document is a contract; `version` changes only when a key changes its meaning or goes away:

    version     1
    tfboost     version of tfboost
    command     "rewrite" or "check"
    files       a list, in the order in which the files were given or found:
        path        as it was given or found; "<stdin>" for standard input
        status      "changed", "unchanged", "not-applicable" (no TensorFlow in it) or "failed"
        target      null, or what the script is taken to run on:
            tensorflow  {"lowest": "2.15", "highest": "2.15"}, highest null where it is open
            keras       2, 3, or null where it may be either
            cpu         true when the machine is known to have no GPU
            why         how that is known
        applied     a list, one for each fix that was made or, with `check`, would be:
            codemod, message
            line, column    where, counted from 1; the column in characters
            hardware        "any", or what the fix is meant for
            before, after   the lines that it changed, as they were and as they are, with what other fixes
                            changed in them; places apart from each other are joined by a line "..."; null
                            where a fix changed only what an earlier fix had written
        refused     a list, one for each opportunity that was not taken:
            codemod, line, column, reason
            hint            what to try by hand, or ""
        error       null, or for "failed": line, column (0 where there is no position) and message
        written     path of the file that was written, or null
        diff        unified diff, "" where nothing changes
    summary     numbers of files: "files", "changed", "unchanged", "not_applicable", "failed", "written";
                numbers of fixes and refusals by codemod: "applied", "refused"
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import shown
from .target import OPEN, Target

if TYPE_CHECKING:
    from .codemod import Codemod
    from .engine import Refused, Result
    from .source import SourceError

Opcode = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class Change:
    """One fix that was made, with the lines that it touched before and after."""

    codemod: str
    line: int
    column: int
    message: str
    hardware: str
    before: str | None = None
    after: str | None = None


@dataclass
class FileReport:
    """What became of one file."""

    path: Path
    status: str
    target: Target | None = None
    applied: list[Change] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    error: SourceError | None = None
    written: Path | None = None
    diff: bytes = b""
    after: bytes = b""
    together: tuple[Path, ...] = ()  # the files that it was rewritten with


def of_result(result: Result, together: tuple[Path, ...] = ()) -> FileReport:
    """The report on a result of the engine."""
    report = FileReport(
        result.path,
        result.status,
        result.target,
        refused=result.refused,
        error=result.error,
        after=result.after,
        together=together,
    )
    if result.error:
        return FileReport(result.path, "failed", error=result.error)
    before, after = _lines(result.before), _lines(result.after)
    opcodes = _opcodes(before, after)
    report.diff = unified_diff(before, after, opcodes, result.path)
    for fix in result.applied:
        touched = [op for op in opcodes if any(_touches(op, *lines) for lines in fix.lines)]
        old, new = (
            (_snippet(touched, before, old=True), _snippet(touched, after, old=False)) if touched else (None, None)
        )
        report.applied.append(Change(fix.codemod, fix.line, fix.column, fix.message, fix.hardware, old, new))
    report.applied.sort(key=lambda c: (c.line, c.column))
    report.refused.sort(key=lambda r: (r.line, r.column))
    return report


# -- differences ---------------------------------------------------------------------------------------------


def _lines(data: bytes) -> list[bytes]:
    """Lines as `patch` counts them, each with its end."""
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


def _opcodes(before: list[bytes], after: list[bytes]) -> list[Opcode]:
    """The places that differ."""
    import difflib

    start, end = 0, 0
    shortest = min(len(before), len(after))
    while start < shortest and before[start] == after[start]:
        start += 1
    while end < shortest - start and before[-1 - end] == after[-1 - end]:
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        (tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"
    ]


def unified_diff(before: list[bytes], after: list[bytes], opcodes: list[Opcode], path: Path, context: int = 3) -> bytes:
    """A diff that `patch -p0` applies, byte for byte; empty where nothing differs."""
    if not opcodes:
        return b""
    name = _quoted(path)
    parts = [b"--- " + name + b"\n", b"+++ " + name + b"\n"]
    for hunk in _hunks(opcodes, context):
        first, last = hunk[0], hunk[-1]
        a, b = max(first[1] - context, 0), min(last[2] + context, len(before))
        c, d = first[3] - (first[1] - a), last[4] + (b - last[2])
        parts.append(f"@@ -{_range(a, b)} +{_range(c, d)} @@\n".encode())
        at = a
        for _, old, old_end, new, new_end in hunk:
            parts += [_line(b" ", line) for line in before[at:old]]
            parts += [_line(b"-", line) for line in before[old:old_end]]
            parts += [_line(b"+", line) for line in after[new:new_end]]
            at = old_end
        parts += [_line(b" ", line) for line in before[at:b]]
    return b"".join(parts)


def _hunks(opcodes: list[Opcode], context: int) -> list[list[Opcode]]:
    hunks = [[opcodes[0]]]
    for opcode in opcodes[1:]:
        if opcode[1] - hunks[-1][-1][2] <= 2 * context:
            hunks[-1].append(opcode)
        else:
            hunks.append([opcode])
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


def coloured(diff: bytes) -> bytes:
    """A diff for a terminal."""
    codes = {b"---": b"1", b"+++": b"1", b"@@": b"36", b"-": b"31", b"+": b"32"}
    lines = []
    for line in diff.split(b"\n"):
        code = next((code for start, code in codes.items() if line.startswith(start)), None)
        lines.append(b"\x1b[%sm%s\x1b[0m" % (code, line) if code else line)
    return b"\n".join(lines)


def _touches(opcode: Opcode, first: int, last: int) -> bool:
    """Whether a difference lies in lines `first` to `last` (from 1) of the original, or directly at them."""
    _, start, end, _, _ = opcode
    return (start < last and end >= first) or start == end in (first - 1, last)


def _snippet(opcodes: list[Opcode], lines: list[bytes], *, old: bool) -> str:
    ranges = ((op[1], op[2]) if old else (op[3], op[4]) for op in opcodes)
    places = (b"".join(lines[start:end]).decode(errors="replace") for start, end in ranges)
    return "...\n".join(place if place.endswith("\n") or not place else place + "\n" for place in places)


# -- JSON ----------------------------------------------------------------------------------------------------


def as_json(reports: Sequence[FileReport], command: str) -> str:
    """The document that this module's docstring describes."""
    import json

    from . import __version__

    document = {
        "version": 1,
        "tfboost": __version__,
        "command": command,
        "files": [_file(r) for r in reports],
        "summary": _counts(reports),
    }
    return json.dumps(document, indent=2) + "\n"


def _file(report: FileReport) -> dict[str, Any]:
    error = report.error
    return {
        "path": str(report.path),
        "status": report.status,
        "target": _target(report.target) if report.target else None,
        "applied": [
            {
                "codemod": c.codemod,
                "line": c.line,
                "column": c.column,
                "message": c.message,
                "hardware": c.hardware,
                "before": c.before,
                "after": c.after,
            }
            for c in report.applied
        ],
        "refused": [
            {"codemod": r.codemod, "line": r.line, "column": r.column, "reason": r.reason, "hint": r.hint}
            for r in report.refused
        ],
        "error": {"line": error.line, "column": error.column, "message": error.message} if error else None,
        "written": str(report.written) if report.written else None,
        "diff": report.diff.decode(errors="replace"),
    }


def _target(target: Target) -> dict[str, Any]:
    lowest, highest = ("{}.{}".format(*v) if v < OPEN else None for v in (target.lowest, target.highest))
    return {
        "tensorflow": {"lowest": lowest, "highest": highest},
        "keras": target.keras,
        "cpu": target.cpu,
        "why": target.why,
    }


def _counts(reports: Sequence[FileReport]) -> dict[str, Any]:
    status = Counter(r.status for r in reports)
    return {
        "files": len(reports),
        "changed": status["changed"],
        "unchanged": status["unchanged"],
        "not_applicable": status["not-applicable"],
        "failed": status["failed"],
        "written": sum(r.written is not None for r in reports),
        "applied": dict(sorted(Counter(c.codemod for r in reports for c in r.applied).items())),
        "refused": dict(sorted(Counter(f.codemod for r in reports for f in r.refused).items())),
    }


# -- text ----------------------------------------------------------------------------------------------------


def as_text(reports: Sequence[FileReport], *, preview: bool) -> str:
    """Every fix and every refusal with its place, then what to do about them."""
    parts = [_section(r) for r in reports if r.target and (r.applied or r.refused)]
    return "\n".join([*filter(None, parts), _summary(reports, preview)])


def _section(report: FileReport) -> str:
    assert report.target is not None
    name = shown(report.path)
    lines = [f"{name}: {report.target} ({report.target.why})"]
    for change in report.applied:
        meant = f" [for {change.hardware}]" if change.hardware != "any" else ""
        lines.append(f"  {name}:{change.line}:{change.column} {change.codemod}: {change.message}{meant}")
    alike: dict[tuple[str, str, str], list[Refused]] = {}
    for refused in report.refused:
        alike.setdefault((refused.codemod, refused.reason, refused.hint), []).append(refused)
    for (codemod, reason, hint), places in alike.items():
        where = f"{name}:{places[0].line}:{places[0].column}"
        more = f" (also line {', '.join(str(r.line) for r in places[1:])})" if len(places) > 1 else ""
        lines.append(f"  {where} {codemod} not applied: {reason}{more}" + (f"; {hint}" if hint else ""))
    return "\n".join(lines) + "\n"


def _summary(reports: Sequence[FileReport], preview: bool) -> str:
    counts = _counts(reports)
    lines = []
    if counts["applied"]:
        done = "would be applied" if preview else "applied"
        lines.append(
            f"{_plural(sum(counts['applied'].values()), 'change')} {done} in "
            f"{_plural(counts['changed'], 'file')}: {_listed(counts['applied'])}"
        )
    else:
        lines.append(_nothing(reports))
    if counts["refused"]:
        lines.append(f"not applied: {_listed(counts['refused'])}")
        if len(reports) > 1:
            lines += _reasons(reports)
    if hints := dict.fromkeys(r.hint for report in reports for r in report.refused if r.hint):
        lines.append("to try by hand:")
        lines += [f"  - {hint}" for hint in hints]
    if counts["failed"]:
        lines.append(f"{_plural(counts['failed'], 'file')} could not be handled")
    written = [shown(r.written) for r in reports if r.written]
    if preview and counts["changed"]:
        lines.append(
            "nothing was written: -o OUT writes the result elsewhere, --in-place changes the "
            + ("file itself" if counts["changed"] == 1 else "files themselves")
        )
    elif len(written) == 1:
        lines.append(f"written: {written[0]}")
    elif written:
        lines.append(f"written: {len(written)} files")
    return "\n".join(lines) + "\n"


def _nothing(reports: Sequence[FileReport]) -> str:
    handled = [r for r in reports if r.status != "failed"]
    if not reports:
        return "no Python files found"
    if not handled:
        return "nothing was changed"
    if all(r.status == "not-applicable" for r in handled):
        return f"nothing to do: no TensorFlow or Keras in {_names(handled)}"
    return f"nothing to change in {_names(handled)}"


def _names(reports: Sequence[FileReport]) -> str:
    return shown(reports[0].path) if len(reports) == 1 else f"{len(reports)} files"


def _reasons(reports: Iterable[FileReport]) -> list[str]:
    places: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for refused in report.refused:
            place = f"{shown(report.path)}:{refused.line}"
            places.setdefault((refused.codemod, refused.reason), []).append(place)
    lines = []
    for (codemod, reason), where in sorted(places.items(), key=lambda item: -len(item[1])):
        more = f" and {len(where) - 3} more" if len(where) > 3 else ""
        lines.append(f"  {codemod}: {reason} ({', '.join(where[:3])}{more})")
    return lines


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(name if number == 1 else f"{name} ({number})" for name, number in counts.items())


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


def check_lines(reports: Sequence[FileReport]) -> str:
    """`path:line:col: name message` for each opportunity."""
    return "".join(
        f"{shown(r.path)}:{c.line}:{c.column}: {c.codemod} {c.message}\n" for r in reports for c in r.applied
    )


def check_summary(reports: Sequence[FileReport]) -> str:
    """What `check` says last."""
    counts = _counts(reports)
    total = sum(counts["applied"].values())
    lines = []
    if total:
        noun = "opportunity" if total == 1 else "opportunities"
        where = _plural(counts["changed"], "file")
        lines.append(f"{total} {noun} in {where}: `tfboost rewrite` shows and applies them")
    else:
        lines.append(_nothing(reports))
    if counts["failed"]:
        lines.append(f"{_plural(counts['failed'], 'file')} could not be handled")
    return "\n".join(lines) + "\n"


# -- codemods ------------------------------------------------------------------------------------------------


def catalogue(found: Sequence[Codemod]) -> str:
    """One line for each codemod."""
    width = max((len(c.name) for c in found), default=0)
    return "".join(f"{c.name:{width}}  -O{c.level}  {c.summary}\n" for c in found)


def catalogue_json(found: Sequence[Codemod]) -> str:
    """The codemods as JSON, with their pages."""
    import json

    return (
        json.dumps(
            {
                "version": 1,
                "codemods": [
                    {
                        "name": c.name,
                        "level": c.level,
                        "phase": c.phase,
                        "hardware": c.hardware,
                        "summary": c.summary,
                        "page": c.doc,
                    }
                    for c in found
                ],
            },
            indent=2,
        )
        + "\n"
    )


def page(codemod: Codemod) -> str:
    """What `explain` shows."""
    meant = "any hardware" if codemod.hardware == "any" else codemod.hardware
    return f"{codemod.name} (-O{codemod.level}, {codemod.phase}, for {meant})\n\n{codemod.doc}\n"
