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
                            where all that it changed is in another file
            notes           a list of texts: how to go on from there, such as the command that starts it
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
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .diffs import Diff
from .files import shown
from .target import OPEN, Target

if TYPE_CHECKING:
    from .codemod import Codemod
    from .engine import Refused, Result
    from .source import SourceError


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
    notes: tuple[str, ...] = ()


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
    diff = Diff(result.before, result.after)
    report.diff = diff.unified(result.path)
    for fix in result.applied:
        old = new = None
        if touched := diff.touched(fix.lines):
            old = _snippet([diff.before[p.start : p.end] for p in touched])
            new = _snippet([diff.after[p.new : p.new_end] for p in touched])
        report.applied.append(Change(fix.codemod, fix.line, fix.column, fix.message, fix.hardware, old, new, fix.notes))
    report.applied.sort(key=lambda c: (c.line, c.column))
    report.refused.sort(key=lambda r: (r.line, r.column))
    return report


def _snippet(places: Iterable[list[bytes]]) -> str:
    texts = (b"".join(lines).decode(errors="replace") for lines in places)
    return "...\n".join(text if text.endswith("\n") or not text else text + "\n" for text in texts)


def coloured(diff: bytes) -> bytes:
    """A diff for a terminal."""
    codes = {b"---": b"1", b"+++": b"1", b"@@": b"36", b"-": b"31", b"+": b"32"}
    lines = []
    for line in diff.split(b"\n"):
        code = next((code for start, code in codes.items() if line.startswith(start)), None)
        lines.append(b"\x1b[%sm%s\x1b[0m" % (code, line) if code else line)
    return b"\n".join(lines)


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
                "notes": _notes(report, c),
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


def _notes(report: FileReport, change: Change) -> list[str]:
    script = shlex.quote(shown(report.written)) if report.written else "OUT"
    return [note.replace("{script}", script) for note in change.notes]


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
    """Every fix and every refusal with its place, then what to do about them; refusals of several files grouped."""
    one = len(reports) == 1
    parts = [_section(r, refused=one) for r in reports if r.target and (r.applied or (one and r.refused))]
    return "\n".join([*parts, _summary(reports, preview)])


def _section(report: FileReport, *, refused: bool) -> str:
    assert report.target is not None
    name = shown(report.path)
    lines = [f"{name}: {report.target} ({report.target.why})"]
    for change in report.applied:
        meant = f" [for {change.hardware}]" if change.hardware != "any" else ""
        lines.append(f"  {name}:{change.line}:{change.column} {change.codemod}: {change.message}{meant}")
    alike: dict[tuple[str, str], list[Refused]] = {}
    for r in report.refused if refused else ():
        alike.setdefault((r.codemod, r.reason), []).append(r)
    for (codemod, reason), places in alike.items():
        more = f" (also line {', '.join(str(r.line) for r in places[1:])})" if len(places) > 1 else ""
        lines.append(f"  {name}:{places[0].line}:{places[0].column} {codemod} not applied: {reason}{more}")
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
    hints: dict[str, list[str]] = {}
    for place, refused in _refusals(reports):
        if refused.hint:
            hints.setdefault(refused.hint, []).append(place)
    if hints:
        lines.append("to try by hand:")
        lines += [f"  - {hint} ({_places(places, 3)})" for hint, places in hints.items()]
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
    lines += [note for r in reports for change in r.applied for note in _notes(r, change)]
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


def _refusals(reports: Sequence[FileReport]) -> Iterator[tuple[str, Refused]]:
    """Every refusal with its place, `train.py:12`: below the folder that all files are in where that is elsewhere."""
    names = [shown(r.path) for r in reports]
    if len(names) > 1 and all(map(os.path.isabs, names)):
        common = os.path.commonpath(names)
        names = [os.path.relpath(name, common) for name in names]
    for name, report in zip(names, reports, strict=True):
        for refused in report.refused:
            yield f"{name}:{refused.line}", refused


def _reasons(reports: Sequence[FileReport]) -> list[str]:
    """The refusals of several files: those that differ only in the line that they mention are one."""
    alike: dict[tuple[str, str], dict[str, list[str]]] = {}
    for place, refused in _refusals(reports):
        key = refused.codemod, _LINE.sub("", refused.reason)
        alike.setdefault(key, {}).setdefault(refused.reason, []).append(place)
    lines = []
    for (codemod, text), reasons in sorted(alike.items(), key=lambda item: -sum(map(len, item[1].values()))):
        reason = text if len(reasons) > 1 else next(iter(reasons))
        places = [place for found in reasons.values() for place in found]
        lines += [f"  {codemod}: {reason}", f"    {_places(places)}"]
    return lines


#: What names a place in a reason: `(line 12)`, `(model.py:12)`.
_LINE = re.compile(r" \((line \d+|[^\s()]+:\d+)\)")


def _places(places: Iterable[str], most: int | None = None) -> str:
    unique = list(dict.fromkeys(places))
    more = f" and {len(unique) - most} more" if most and len(unique) > most else ""
    return ", ".join(unique[:most]) + more


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
    return "".join(f"{c.name:{width}}  {c.shown_level}  {c.summary}\n" for c in found)


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
                        "level": "distribute" if c.distribute else c.level,
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
    return f"{codemod.name} ({codemod.shown_level}, {codemod.phase}, for {meant})\n\n{codemod.doc}\n"
