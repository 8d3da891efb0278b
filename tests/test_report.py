"""Diffs that `patch` applies byte for byte, the JSON contract, and the text that people read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewriter import __version__, report
from rewriter.diffs import Diff
from rewriter.engine import Applied, Refused, Result
from rewriter.report import Change, FileReport, as_json, as_text, check_lines, of_result
from rewriter.source import SourceError
from rewriter.target import OPEN, Target, named

TARGET = Target((2, 15), (2, 15), 2, "requirements.txt: tensorflow==2.15")


def diff(before: bytes, after: bytes, name: str = "x.py") -> bytes:
    return of_result(Result(Path(name), before, after, TARGET)).diff


def patched(folder: Path, name: str, before: bytes, after: bytes) -> bytes:
    (folder / name).write_bytes(before)
    done = subprocess.run(
        ["patch", "-p0"], input=diff(before, after, name), cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(folder.glob("*.rej"))
    return (folder / name).read_bytes()


CASES = {
    "middle": (b"a\nb\nc\nd\ne\nf\ng\nh\n", b"a\nb\nc\nX\ne\nf\ng\nh\n"),
    "two hunks": (
        b"".join(b"%d\n" % n for n in range(40)),
        b"".join(b"%d\n" % n for n in range(40) if n not in (3, 30)),
    ),
    "first line": (b"a\nb\n", b"new\na\nb\n"),
    "only line": (b"a\n", b"b\n"),
    "crlf": (b"a\r\nb\r\nc\r\n", b"a\r\nX\r\nc\r\n"),
    "mixed newlines": (b"a\r\nb\nc\rd\n", b"a\r\nX\nc\rd\n"),
    "no newline at end": (b"a\nb", b"a\nc"),
    "newline comes": (b"a\nb", b"a\nb\n"),
    "newline goes": (b"a\nb\n", b"a\nb"),
    "end untouched without newline": (b"a\nb\nc\nd\ne\nf", b"X\nb\nc\nd\ne\nf"),
    "form feed and latin-1": (b"a\n\x0c\nb\n\xe9\n", b"a\n\x0c\nX\n\xe9\n"),
    "byte order mark": (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfnew\nb\n"),
}


@pytest.mark.parametrize("case", CASES)
def test_patch_applies(tmp_path: Path, case: str) -> None:
    before, after = CASES[case]
    assert patched(tmp_path, "x.py", before, after) == after


@pytest.mark.parametrize("name", ["a b.py", "ä.py", 'q"q.py', "tab\there.py", "back\\slash.py"])
def test_patch_finds_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert patched(tmp_path, name, b"a\nb\n", b"a\nc\n") == b"a\nc\n"


def test_no_difference() -> None:
    assert diff(b"a\n", b"a\n") == b""


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"\rd\n"]), max_size=30)


@given(lines, lines, st.booleans(), st.booleans())
def test_diff_applies(before: list[bytes], after: list[bytes], cut_before: bool, cut_after: bool) -> None:
    """Read back by the rules of the format, which `patch` follows."""
    old, new = b"".join(before), b"".join(after)
    old, new = old[:-1] if cut_before and old else old, new[:-1] if cut_after and new else new
    assert _apply(old, diff(old, new)) == new


def _apply(old: bytes, text: bytes) -> bytes:
    source, result, at = old.split(b"\n"), [], 0
    source = [line + b"\n" for line in source[:-1]] + ([source[-1]] if source[-1] else [])
    marked = text.replace(b"\n\\ No newline at end of file\n", b"").split(b"\n") if b"\\ No" not in text else None
    rows = marked if marked is not None else _joined(text)
    rows = [row if row.endswith(b"\n") or marked is None else row + b"\n" for row in rows if row]
    for row in rows[2:]:
        if row.startswith(b"@@"):
            start, _, length = row.split()[1][1:].partition(b",")
            begin = int(start) - (length != b"0")
            result += source[at:begin]
            at = begin
        elif row[:1] == b" ":
            assert source[at] == row[1:]
            result.append(source[at])
            at += 1
        elif row[:1] == b"-":
            assert source[at] == row[1:]
            at += 1
        else:
            result.append(row[1:])
    return b"".join(result + source[at:])


def _joined(text: bytes) -> list[bytes]:
    rows: list[bytes] = []
    for row in text.split(b"\n")[:-1]:
        if row.startswith(b"\\ No newline"):
            rows[-1] = rows[-1][:-1]
        else:
            rows.append(row + b"\n")
    return rows


BEFORE = b"import tensorflow as tf\n\nds = tf.data.Dataset.range(3)\nm.compile(\n    'sgd',\n)\nm.fit(ds)\n"
AFTER = (
    b"import tensorflow as tf\nset_policy()\n\nds = tf.data.Dataset.range(3).prefetch(1)\n"
    b"m.compile(\n    'sgd',\n    jit_compile=True,\n)\nm.fit(ds)\n"
)


def example() -> FileReport:
    return of_result(
        Result(
            Path("train.py"),
            BEFORE,
            AFTER,
            TARGET,
            [
                Applied("xla", 4, 1, "compiled", "GPU", ((4, 6),)),
                Applied("prefetch", 3, 6, "ahead", lines=((3, 3),)),
                Applied("mixed-precision", 1, 1, "16 bits", lines=((1, 1), (3, 3))),
                Applied("later", 9, 1, "again"),
            ],
            [Refused("lamb", 4, 1, "small batch", "try a larger batch"), Refused("tf32", 2, 1, "off")],
        )
    )


def test_snippets() -> None:
    applied = {c.codemod: (c.before, c.after) for c in example().applied}
    assert applied == {
        "mixed-precision": (
            "...\nds = tf.data.Dataset.range(3)\n",
            "set_policy()\n...\nds = tf.data.Dataset.range(3).prefetch(1)\n",
        ),
        "prefetch": ("ds = tf.data.Dataset.range(3)\n", "ds = tf.data.Dataset.range(3).prefetch(1)\n"),
        "xla": ("", "    jit_compile=True,\n"),
        "later": (None, None),
    }


def test_snippets_beside_equal_lines_and_lone_carriage_returns() -> None:
    slid = of_result(
        Result(
            Path("a.py"),
            b"import a\n\nf()\n",
            b"import a\n\nset()\n\nf()\n",
            TARGET,
            [Applied("x", 1, 1, "", "any", ((1, 1),))],
        )
    )
    assert (slid.applied[0].before, slid.applied[0].after) == ("", "set()\n\n")
    cr = of_result(Result(Path("a.py"), b"a\rb\rc\n", b"a\rB\rc\n", TARGET, [Applied("x", 2, 1, "", "any", ((2, 2),))]))
    assert (cr.applied[0].before, cr.applied[0].after) == ("a\rb\rc\n", "a\rB\rc\n")


ORIGIN = Diff(b"a\nb(1)\nc\nd\ne\n", b"new\na\n  b(2)\nc\nd(\n x\n)\ne\nmore\n")


@pytest.mark.parametrize(
    ("line", "lines", "position"),
    [
        (1, (1, 0), (1, 1)),  # inserted above the first line
        (2, (1, 1), (1, 9)),
        (3, (2, 2), (2, 1)),  # changed: its column, unless the text before it changed
        (4, (3, 3), (3, 9)),
        (6, (4, 4), (4, 1)),  # one line became three
        (8, (5, 5), (5, 9)),
        (9, (6, 5), (5, 1)),  # inserted at the end
    ],
)
def test_origin(line: int, lines: tuple[int, int], position: tuple[int, int]) -> None:
    assert ORIGIN.origin(line) == lines
    assert ORIGIN.position(line, 9) == position


def test_json_contract() -> None:
    failed = FileReport(Path("bad.py"), "failed", error=SourceError("bad.py", "cannot be parsed", 3, 1))
    other = FileReport(Path("other.py"), "not-applicable")
    one = example()
    one.written = Path("out/train.py")
    document = json.loads(as_json([one, failed, other], "rewrite"))
    assert list(document) == ["version", "tfboost", "command", "files", "summary"]
    assert (document["version"], document["tfboost"], document["command"]) == (1, __version__, "rewrite")
    first, second, third = document["files"]
    assert all(
        list(f) == ["path", "status", "target", "applied", "refused", "error", "written", "diff"]
        for f in document["files"]
    )
    assert (first["path"], first["status"], first["written"]) == ("train.py", "changed", "out/train.py")
    assert first["target"] == {
        "tensorflow": {"lowest": "2.15", "highest": "2.15"},
        "keras": 2,
        "cpu": False,
        "why": "requirements.txt: tensorflow==2.15",
    }
    assert first["applied"][1] == {
        "codemod": "prefetch",
        "line": 3,
        "column": 6,
        "message": "ahead",
        "hardware": "any",
        "before": "ds = tf.data.Dataset.range(3)\n",
        "after": "ds = tf.data.Dataset.range(3).prefetch(1)\n",
        "notes": [],
    }
    assert first["refused"] == [
        {"codemod": "tf32", "line": 2, "column": 1, "reason": "off", "hint": ""},
        {"codemod": "lamb", "line": 4, "column": 1, "reason": "small batch", "hint": "try a larger batch"},
    ]
    assert first["diff"].startswith("--- train.py\n+++ train.py\n@@ -1,7 +1,9 @@\n")
    assert (second["status"], second["error"]) == (
        "failed",
        {"line": 3, "column": 1, "message": "cannot be parsed"},
    )
    assert (third["status"], third["target"], third["error"], third["written"]) == (
        "not-applicable",
        None,
        None,
        None,
    )
    assert document["summary"] == {
        "files": 3,
        "changed": 1,
        "unchanged": 0,
        "not_applicable": 1,
        "failed": 1,
        "written": 1,
        "applied": {"later": 1, "mixed-precision": 1, "prefetch": 1, "xla": 1},
        "refused": {"lamb": 1, "tf32": 1},
    }


def test_every_key_is_documented() -> None:
    document = json.loads(as_json([example()], "check"))
    keys = {
        *document,
        *document["files"][0],
        *document["files"][0]["applied"][0],
        *document["files"][0]["target"],
        *document["files"][0]["refused"][0],
        *document["summary"],
    }
    assert report.__doc__ is not None
    assert [key for key in sorted(keys) if key not in report.__doc__] == []


def test_open_target_in_json() -> None:
    result = Result(Path("a.py"), b"", b"", named("keras3"))
    assert json.loads(as_json([of_result(result)], "check"))["files"][0]["target"]["tensorflow"] == {
        "lowest": "2.16",
        "highest": None,
    }
    assert named("keras3").highest == OPEN


def test_names_that_are_not_text_stay_json() -> None:
    name = b"\xff.py".decode("utf-8", "surrogateescape")
    assert json.loads(as_json([FileReport(Path(name), "unchanged")], "check"))["files"][0]["path"] == name


def test_text() -> None:
    assert (
        as_text([example()], preview=True)
        == """\
train.py: TensorFlow 2.15, Keras 2 (requirements.txt: tensorflow==2.15)
  train.py:1:1 mixed-precision: 16 bits
  train.py:3:6 prefetch: ahead
  train.py:4:1 xla: compiled [for GPU]
  train.py:9:1 later: again
  train.py:2:1 tf32 not applied: off
  train.py:4:1 lamb not applied: small batch

4 changes would be applied in 1 file: later, mixed-precision, prefetch, xla
not applied: lamb, tf32
to try by hand:
  - try a larger batch (train.py:4)
nothing was written: -o OUT writes the result elsewhere, --in-place changes the file itself
"""
    )


def test_text_of_several_files_groups_reasons() -> None:
    reports = [
        FileReport(Path(f"{n}.py"), "unchanged", TARGET, refused=[Refused("xla", n, 1, "strings", "split it")])
        for n in range(1, 6)
    ]
    text = as_text([*reports, FileReport(Path("x.py"), "failed", error=SourceError("x.py", "no"))], preview=False)
    assert (
        text
        == """\
nothing to change in 5 files
not applied: xla (5)
  xla: strings
    1.py:1, 2.py:2, 3.py:3, 4.py:4, 5.py:5
to try by hand:
  - split it (1.py:1, 2.py:2, 3.py:3 and 2 more)
1 file could not be handled
"""
    )


def test_text_of_several_files_elsewhere() -> None:
    """Each refusal once, by names below the common folder; those that differ only in a line are one."""
    reports = [
        FileReport(
            Path(f"/data/project/{name}"),
            "unchanged",
            TARGET,
            [Change("prefetch", 2, 1, "ahead", "any")],
            [Refused("xla", 4, 1, f"`tf.print` {where} prints")],
        )
        for name, where in [("a.py", "(line 7)"), ("b/a.py", "(b/model.py:3)")]
    ]
    text = as_text(reports, preview=False)
    assert "  /data/project/b/a.py:2:1 prefetch: ahead\n" in text
    assert text.count("xla") == 2
    assert "\nnot applied: xla (2)\n  xla: `tf.print` prints\n    a.py:4, b/a.py:4\n" in text


@pytest.mark.parametrize(
    ("reports", "text"),
    [
        ([], "no Python files found\n"),
        ([FileReport(Path("a.py"), "not-applicable")], "nothing to do: no TensorFlow or Keras in a.py\n"),
        (
            [FileReport(Path("a.py"), "not-applicable")] * 2,
            "nothing to do: no TensorFlow or Keras in 2 files\n",
        ),
        ([FileReport(Path("a.py"), "unchanged", TARGET)], "nothing to change in a.py\n"),
    ],
)
def test_text_where_nothing_happens(reports: list[FileReport], text: str) -> None:
    assert as_text(reports, preview=False) == text


def test_check_lines() -> None:
    assert check_lines([example()]).splitlines()[0] == "train.py:1:1: mixed-precision 16 bits"
