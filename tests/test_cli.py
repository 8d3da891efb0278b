"""The command line in real processes: what goes where, exit codes, bad input, groups of files, workers."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewriter import cli, files, work
from rewriter.codemod import registry
from rewriter.source import RELEVANT, SourceError

from .cli import FAST, PREFETCH, ROOT, SCRIPT, tfboost

PLAIN = b"import os\nprint(os.name)\n"
BROKEN = b"import tensorflow as tf\nx = (\n"
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a file away")


def tree(folder: Path, **contents: bytes) -> Path:
    """Files below a folder; in a name `__` stands for `/`."""
    for name, content in contents.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class TestCommands:
    def test_help_and_version(self, tmp_path: Path) -> None:
        done = tfboost("--help", cwd=tmp_path)
        assert done.returncode == 0
        assert all(word in done.stdout for word in (b"rewrite", b"diff", b"check", b"list", b"explain", b"Exit codes"))
        assert tfboost("--version", cwd=tmp_path).stdout.startswith(b"tfboost ")
        assert b"-O, --level 1|2|3" in tfboost("rewrite", "-h", cwd=tmp_path).stdout

    def test_list(self, tmp_path: Path) -> None:
        lines = tfboost("list", cwd=tmp_path).stdout.decode().splitlines()
        assert [line.split()[0] for line in lines] == list(registry())
        document = json.loads(tfboost("list", "--format", "json", cwd=tmp_path).stdout)
        assert document["version"] == 1
        assert [list(c) for c in document["codemods"]] == [
            ["name", "level", "phase", "hardware", "summary", "page"]
        ] * len(registry())

    def test_explain(self, tmp_path: Path) -> None:
        page = tfboost("explain", "prefetch", cwd=tmp_path).stdout.decode()
        assert page.startswith("prefetch (-O1, input, for any hardware)\n\n")
        assert registry()["prefetch"].doc in page
        done = tfboost("explain", "prefech", cwd=tmp_path)
        assert (done.returncode, b"did you mean `prefetch`?" in done.stderr) == (2, True)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-O4"], "4 is not in the range"),
            (["-Ofast"], "-O"),
            (["--level", "0"], "0 is not in the range"),
            (["--select", "prefetch,prefetsch"], "unknown codemod `prefetsch`; did you mean `prefetch`?"),
            (["--ignore", "xal"], "unknown codemod `xal`"),
            (["--amp-dtype", "half"], "must be float16 or bfloat16"),
            (["--target", "tf"], "unknown target `tf`"),
            (["--target", "tf9.9"], "unknown target `tf9.9`"),
            (["--format", "xml"], "must be text or json"),
            (["-o", "b.py", "--in-place"], "give one of"),
            (["--diff", "--in-place"], "give one of"),
            (["--python", "/no/python"], "cannot be run"),
            (["--python", "cat"], "not a Python interpreter"),
            (["--python", "true"], "not a Python interpreter"),
            (["-j", "0"], "0 is not in the range"),
            (["--frobnicate"], "--frobnicate"),
            (["-"], "stands alone"),
            (["-o", "a.py"], "--in-place does that"),
            (["-o", "./sub/../a.py"], "--in-place does that"),
        ],
    )
    def test_wrong_usage(self, tmp_path: Path, arguments: list[str], message: str) -> None:
        tree(tmp_path, a=SCRIPT)
        before = snapshot(tmp_path)
        done = tfboost("rewrite", "a.py", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, b"")
        assert message in done.stderr.decode()
        assert snapshot(tmp_path) == before

    def test_levels(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        counts = []
        for option in (["-O1"], ["-O", "2"], [], ["--level", "3"]):
            done = tfboost("rewrite", "a.py", *option, "--target", "tf2.15", "--format", "json", cwd=tmp_path)
            counts.append([registry()[c["codemod"]].level for c in json.loads(done.stdout)["files"][0]["applied"]])
        assert max(counts[0]) == 1
        assert max(counts[1]) == 2
        assert counts[1] == counts[2]

    def test_amp_dtype(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT.replace(b"([", b"([tf.keras.layers.Dense(8), "))
        run = ["diff", "a.py", "--target", "tf2.15", "--select", "mixed-precision"]
        assert b"mixed_bfloat16" in tfboost(*run, "--amp-dtype", "bfloat16", cwd=tmp_path).stdout
        assert b"mixed_float16" in tfboost(*run, cwd=tmp_path).stdout


class TestRewrite:
    def test_preview_writes_nothing(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        for options in ([], ["--diff"]):
            done = tfboost("rewrite", *PREFETCH, "a.py", *options, cwd=tmp_path)
            assert done.returncode == 0
            assert done.stdout.startswith(b"--- a.py\n+++ a.py\n@@ ")
            assert b"prefetch: " in done.stderr
            assert b"nothing was written" in done.stderr
        assert snapshot(tmp_path) == {"a.py": SCRIPT}

    def test_output_file(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        (tmp_path / "a.py").chmod(0o750)
        done = tfboost("rewrite", *PREFETCH, "a.py", "-o", "new/fast.py", cwd=tmp_path)
        assert done.returncode == 0
        assert snapshot(tmp_path) == {"a.py": SCRIPT, "new/fast.py": FAST}
        assert stat.S_IMODE((tmp_path / "new/fast.py").stat().st_mode) == 0o750
        assert done.stdout.decode().endswith("written: new/fast.py\n")

    def test_output_keeps_the_permissions_that_it_had(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT, b=PLAIN)
        (tmp_path / "b.py").chmod(0o600)
        assert tfboost("rewrite", *PREFETCH, "a.py", "-o", "b.py", cwd=tmp_path).returncode == 0
        assert (tmp_path / "b.py").read_bytes() == FAST
        assert stat.S_IMODE((tmp_path / "b.py").stat().st_mode) == 0o600

    def test_output_of_what_does_not_change(self, tmp_path: Path) -> None:
        tree(tmp_path, a=PLAIN)
        assert tfboost("rewrite", "a.py", "-o", "b.py", cwd=tmp_path).returncode == 0
        assert (tmp_path / "b.py").read_bytes() == PLAIN

    def test_output_folder(self, tmp_path: Path) -> None:
        tree(tmp_path, src__a=SCRIPT, src__sub__a=SCRIPT, src__plain=PLAIN)
        for _ in range(2):  # the folder lies below what is read: its own output is not taken again
            assert tfboost("rewrite", *PREFETCH, "src", "-o", "src/out", cwd=tmp_path).returncode == 0
            assert snapshot(tmp_path / "src/out") == {"a.py": FAST, "plain.py": PLAIN, "sub/a.py": FAST}
        assert tfboost("rewrite", *PREFETCH, "src/a.py", "src/sub/a.py", "-o", "two", cwd=tmp_path).returncode == 0
        assert snapshot(tmp_path / "two") == {"a.py": FAST, "sub/a.py": FAST}
        (tmp_path / "three").mkdir()
        assert tfboost("rewrite", *PREFETCH, "src/a.py", "-o", "three", cwd=tmp_path).returncode == 0
        assert tfboost("rewrite", *PREFETCH, "src/a.py", "-o", "four/", cwd=tmp_path).returncode == 0
        assert snapshot(tmp_path / "three") == snapshot(tmp_path / "four") == {"a.py": FAST}

    def test_output_of_several_cannot_be_a_file(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT, b=SCRIPT, c=PLAIN)
        done = tfboost("rewrite", "a.py", "b.py", "-o", "c.py", cwd=tmp_path)
        assert (done.returncode, b"give a folder" in done.stderr) == (2, True)
        done = tfboost("rewrite", ".", "-o", ".", cwd=tmp_path)
        assert (done.returncode, b"--in-place does that" in done.stderr) == (2, True)

    def test_output_into_what_cannot_be_written(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT, b=PLAIN)
        done = tfboost("rewrite", "a.py", "-o", "b.py/fast.py", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.decode().startswith("b.py/fast.py: cannot be written: ")

    def test_in_place(self, tmp_path: Path) -> None:
        tree(tmp_path, src__a=SCRIPT, src__fast=FAST, src__plain=PLAIN)
        (tmp_path / "src/a.py").chmod(0o755)
        times = {name: (tmp_path / "src" / name).stat().st_mtime_ns for name in ("fast.py", "plain.py")}
        done = tfboost("rewrite", "--in-place", *PREFETCH, "src", cwd=tmp_path)
        assert done.returncode == 0
        assert snapshot(tmp_path / "src") == {"a.py": FAST, "fast.py": FAST, "plain.py": PLAIN}
        assert stat.S_IMODE((tmp_path / "src/a.py").stat().st_mode) == 0o755
        assert {name: (tmp_path / "src" / name).stat().st_mtime_ns for name in times} == times
        assert done.stdout.decode().endswith("written: src/a.py\n")
        assert b"nothing to change" in tfboost("rewrite", "--in-place", *PREFETCH, "src", cwd=tmp_path).stdout

    def test_stdin(self, tmp_path: Path) -> None:
        crlf = SCRIPT.replace(b"\n", b"\r\n")
        done = tfboost("rewrite", *PREFETCH, "-", cwd=tmp_path, stdin=crlf)
        assert (done.returncode, done.stdout) == (0, FAST.replace(b"\n", b"\r\n"))
        assert b"<stdin>:3:6 prefetch" in done.stderr
        assert b"nothing was written" not in done.stderr
        assert tfboost("rewrite", "-", cwd=tmp_path, stdin=PLAIN).stdout == PLAIN
        assert tfboost("rewrite", "-", cwd=tmp_path, stdin=b"").stdout == b""
        done = tfboost("rewrite", *PREFETCH, "-", "-o", "b.py", cwd=tmp_path, stdin=SCRIPT)
        assert (tmp_path / "b.py").read_bytes() == FAST
        assert tfboost("rewrite", "-", "--in-place", cwd=tmp_path, stdin=SCRIPT).returncode == 2
        done = tfboost("rewrite", "-", cwd=tmp_path, stdin=BROKEN)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"<stdin>:2:5: cannot be parsed: ")
        assert tfboost("check", *PREFETCH, "-", cwd=tmp_path, stdin=SCRIPT).stdout.startswith(b"<stdin>:3:6: prefetch ")

    def test_to_standard_output(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        done = tfboost("rewrite", *PREFETCH, "a.py", "-o", "-", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, FAST)
        if Path("/dev/stdout").exists():
            done = tfboost("rewrite", *PREFETCH, "-q", "a.py", "-o", "/dev/stdout", cwd=tmp_path)
            assert (done.returncode, done.stdout) == (0, FAST)

    def test_json(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT, b=BROKEN, c=PLAIN)
        done = tfboost("rewrite", *PREFETCH, "--format", "json", "--in-place", ".", cwd=tmp_path)
        assert done.returncode == 2
        one, two, three = json.loads(done.stdout)["files"]
        assert (one["path"], one["status"], one["written"]) == ("a.py", "changed", "a.py")
        assert one["applied"][0]["after"].endswith(".prefetch(tf.data.AUTOTUNE)\n")
        assert (two["path"], two["status"], two["error"]["line"]) == ("b.py", "failed", 2)
        assert (three["path"], three["status"]) == ("c.py", "not-applicable")
        done = tfboost("rewrite", *PREFETCH, "--format", "json", "-", cwd=tmp_path, stdin=SCRIPT)
        assert done.stdout == FAST
        assert json.loads(done.stderr)["files"][0]["path"] == "<stdin>"

    def test_target_is_told(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        (tmp_path / "requirements.txt").write_text("tensorflow==2.15.*\n")
        assert (
            b"a.py: TensorFlow 2.15, Keras 2 (requirements.txt: tensorflow==2.15.*)"
            in tfboost("rewrite", *PREFETCH, "a.py", cwd=tmp_path).stderr
        )
        done = tfboost("rewrite", *PREFETCH, "a.py", "--python", sys.executable, cwd=tmp_path)
        assert f"{sys.executable} has no TensorFlow; requirements.txt".encode() in done.stderr

    def test_quiet(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        done = tfboost("rewrite", "-q", "--in-place", *PREFETCH, "a.py", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


class TestDiff:
    @pytest.mark.parametrize(
        "change",
        [
            lambda s: s,
            lambda s: s.replace(b"\n", b"\r\n"),
            lambda s: s.rstrip(b"\n"),
            lambda s: s.replace(b"\n", b"\r\n").rstrip(b"\r\n"),
        ],
        ids=["lf", "crlf", "no newline", "crlf no newline"],
    )
    def test_patch_applies(self, tmp_path: Path, change: object) -> None:
        before, after = change(SCRIPT), change(FAST)  # type: ignore[operator]
        tree(tmp_path, a=before, sub__b=before, fine=FAST)
        done = tfboost("diff", *PREFETCH, ".", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b"")
        subprocess.run(["patch", "-p0"], input=done.stdout, cwd=tmp_path, check=True, capture_output=True)
        assert snapshot(tmp_path) == {"a.py": after, "fine.py": FAST, "sub/b.py": after}

    def test_stdin(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        done = tfboost("diff", *PREFETCH, "-", cwd=tmp_path, stdin=SCRIPT)
        subprocess.run(["patch", "-p0", "a.py"], input=done.stdout, cwd=tmp_path, check=True, capture_output=True)
        assert snapshot(tmp_path) == {"a.py": FAST}

    def test_colours(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        assert b"\x1b" not in tfboost("diff", *PREFETCH, "a.py", cwd=tmp_path).stdout
        assert b"\x1b[32m+ds = " in tfboost("diff", *PREFETCH, "a.py", cwd=tmp_path, env={"FORCE_COLOR": "1"}).stdout

    @pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
    @pytest.mark.parametrize(("variable", "expected"), [("LANG", True), ("NO_COLOR", False)])
    def test_on_a_terminal(self, tmp_path: Path, variable: str, expected: bool) -> None:
        import pty

        tree(tmp_path, a=SCRIPT)
        parent, child = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "rewriter", "diff", *PREFETCH, "a.py"],
            cwd=tmp_path,
            stdout=child,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", variable: "C"},
        ) as process:
            os.close(child)
            shown = b""
            try:
                while more := os.read(parent, 10_000):
                    shown += more
            except OSError:
                pass
        assert process.returncode == 0
        assert (b"\x1b[31m-ds = " in shown) is expected
        os.close(parent)

    def test_reader_goes_away(self, tmp_path: Path) -> None:
        tree(tmp_path, **{f"s{n}": SCRIPT for n in range(30)})
        command = [sys.executable, "-m", "rewriter", "rewrite", *PREFETCH, "--in-place", "."]
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            errors = process.stderr.read()
        assert (process.returncode, errors) == (0, b"")
        assert set(snapshot(tmp_path).values()) == {FAST}


class TestCheck:
    def test_finds(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT, b=FAST, c=PLAIN)
        done = tfboost("check", *PREFETCH, ".", cwd=tmp_path)
        assert done.returncode == 1
        (line,) = done.stdout.decode().splitlines()
        assert line.startswith("a.py:3:6: prefetch the next batch")
        assert done.stderr == b"1 opportunity in 1 file: `tfboost rewrite` shows and applies them\n"
        assert snapshot(tmp_path)["a.py"] == SCRIPT

    def test_nothing(self, tmp_path: Path) -> None:
        tree(tmp_path, b=FAST, c=PLAIN)
        done = tfboost("check", *PREFETCH, ".", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"nothing to change in 2 files\n")
        (tmp_path / "empty").mkdir()
        done = tfboost("check", "empty", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b"no Python files found\n")

    def test_json(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        done = tfboost("check", *PREFETCH, "--format", "json", "a.py", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (1, b"")
        assert json.loads(done.stdout)["summary"]["applied"] == {"prefetch": 1}

    def test_failure_outweighs_a_finding(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT, b=BROKEN)
        done = tfboost("check", *PREFETCH, ".", cwd=tmp_path)
        assert (done.returncode, done.stdout.count(b"prefetch")) == (2, 1)


class TestBadInput:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (BROKEN, "bad.py:2:5: cannot be parsed: "),
            (b"import keras\nprint 'x'\n", "bad.py:2:1: cannot be parsed: Python 2 syntax"),
            (b"import keras\n%matplotlib inline\n", "bad.py:2:1: cannot be parsed: notebook magic"),
            (b"import keras\nx = '\xff'\n", "bad.py:2: cannot be decoded"),
            (b"import keras\n\0\n", "bad.py:2: contains a null byte"),
            (b"# coding: klingon\nimport keras\n", "bad.py:1: cannot be decoded"),
            (b"import keras\nx = " + b"(" * 300 + b")" * 300 + b"\n", "bad.py:2:"),
            (b"import keras\nx = " + b"+".join([b"1"] * 9000) + b"\n", "bad.py"),
        ],
    )
    def test_one_line_and_the_others_go_on(self, tmp_path: Path, content: bytes, message: str) -> None:
        tree(tmp_path, a=SCRIPT, bad=content, c=SCRIPT)
        done = tfboost("rewrite", "--in-place", "-q", *PREFETCH, ".", cwd=tmp_path)
        assert done.returncode == 2
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith(message)
        assert snapshot(tmp_path) == {"a.py": FAST, "bad.py": content, "c.py": FAST}

    def test_broken_files_without_tensorflow_are_nobodys_business(self, tmp_path: Path) -> None:
        tree(tmp_path, a=b"print 'x'\n", b=b"\xff\xfe\0")
        done = tfboost("check", "-O2", ".", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, b"")

    def test_paths_that_are_not_there(self, tmp_path: Path) -> None:
        tree(tmp_path, a=SCRIPT)
        done = tfboost("rewrite", "--in-place", "-q", *PREFETCH, "no.py", "a.py", "x" * 300 + ".py", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.decode().splitlines()[0] == "no.py: cannot be read: No such file or directory"
        assert "x.py: cannot be read: File name too long" in done.stderr.decode().splitlines()[1]
        assert (tmp_path / "a.py").read_bytes() == FAST

    def test_empty_file_and_folder_named_like_a_file(self, tmp_path: Path) -> None:
        tree(tmp_path, empty=b"", folder__a=SCRIPT)
        (tmp_path / "folder").rename(tmp_path / "folder.py")
        done = tfboost("rewrite", "--in-place", *PREFETCH, ".", "empty.py", "folder.py", cwd=tmp_path)
        assert done.returncode == 0
        assert snapshot(tmp_path) == {"empty.py": b"", "folder.py/a.py": FAST}

    def test_notebook(self, tmp_path: Path) -> None:
        (tmp_path / "n.ipynb").write_text('{"cells": ["import tensorflow"]}')
        done = tfboost("check", "n.ipynb", cwd=tmp_path)
        assert (done.returncode, b"n.ipynb: is a notebook" in done.stderr) == (2, True)

    @pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")
    def test_names_that_are_not_text(self, tmp_path: Path) -> None:
        name = os.fsdecode(b"\xff\xe9.py")
        (tmp_path / name).write_bytes(SCRIPT)
        done = tfboost("diff", *PREFETCH, ".", cwd=tmp_path)
        assert done.stdout.startswith(b"--- \xff\xe9.py\n")
        assert tfboost("rewrite", "--in-place", *PREFETCH, ".", cwd=tmp_path).returncode == 0
        assert (tmp_path / name).read_bytes() == FAST
        (tmp_path / name).write_bytes(BROKEN)
        assert tfboost("check", ".", cwd=tmp_path).stderr.startswith(b"\xff\xe9.py:2:5: ")

    @pytest.mark.skipif(sys.platform == "win32", reason="links need rights")
    def test_links(self, tmp_path: Path) -> None:
        tree(tmp_path, src__real=SCRIPT, else__where=SCRIPT)
        (tmp_path / "src/to_real.py").symlink_to("real.py")
        (tmp_path / "src/outside.py").symlink_to("../else/where.py")
        (tmp_path / "src/.#lock.py").symlink_to("user@host:1")
        (tmp_path / "src/dangling.py").symlink_to("nowhere.py")
        (tmp_path / "src/loop").symlink_to(".")
        done = tfboost("rewrite", "--in-place", *PREFETCH, "--format", "json", "src", cwd=tmp_path)
        assert done.returncode == 0
        assert [f["path"] for f in json.loads(done.stdout)["files"]] == ["src/outside.py", "src/real.py"]
        assert (tmp_path / "src/outside.py").is_symlink() and (tmp_path / "src/to_real.py").is_symlink()
        assert (tmp_path / "else/where.py").read_bytes() == (tmp_path / "src/real.py").read_bytes() == FAST
        assert tfboost("check", "src/dangling.py", cwd=tmp_path).returncode == 2
        done = tfboost("rewrite", "src/real.py", "-o", "src/to_real.py", cwd=tmp_path)
        assert (done.returncode, b"--in-place does that" in done.stderr) == (2, True)

    @pytest.mark.skipif(sys.platform == "win32", reason="no pipes with names")
    def test_pipes_are_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.py")
        tree(tmp_path, a=SCRIPT)
        assert tfboost("check", *PREFETCH, ".", cwd=tmp_path).returncode == 1

    @pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
    def test_permissions(self, tmp_path: Path) -> None:
        folder = tree(tmp_path, a=SCRIPT, b=SCRIPT, secret=SCRIPT, closed__c=SCRIPT)
        (folder / "a.py").chmod(0o444)
        (folder / "secret.py").chmod(0)
        (folder / "closed").chmod(0o555)
        done = tfboost("rewrite", "--in-place", "-q", *PREFETCH, ".", cwd=tmp_path, as_mortal=True)
        assert done.returncode == 2
        assert done.stderr.decode().splitlines() == [
            "a.py: cannot be written: it is read-only",
            "closed/c.py: cannot be written: Permission denied",
            "secret.py: cannot be read: Permission denied",
        ]
        (folder / "secret.py").chmod(0o600)
        assert snapshot(tmp_path) == {
            "a.py": SCRIPT,
            "b.py": FAST,
            "closed/c.py": SCRIPT,
            "secret.py": SCRIPT,
        }
        done = tfboost("rewrite", "-q", *PREFETCH, "b.py", "-o", "closed/new/b.py", cwd=tmp_path, as_mortal=True)
        assert (done.returncode, done.stderr) == (
            2,
            b"closed/new/b.py: cannot be written: Permission denied\n",
        )

    @needs_root
    def test_owner_stays(self, tmp_path: Path) -> None:
        path = tree(tmp_path, a=SCRIPT) / "a.py"
        os.chown(path, 65534, 65534)
        path.chmod(0o640)
        assert tfboost("rewrite", *PREFETCH, "--in-place", "a.py", cwd=tmp_path).returncode == 0
        status = path.stat()
        assert (path.read_bytes(), status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (
            FAST,
            65534,
            65534,
            0o640,
        )

    def test_no_remains(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").mkdir()
        with pytest.raises(SourceError, match="it is a folder"):
            files.write({tmp_path / "b.py": b"1", tmp_path / "a.py": b"2"})
        assert snapshot(tmp_path) == {}


class TestFinding:
    def test_walk(self, tmp_path: Path) -> None:
        tree(tmp_path, a=PLAIN, z__b=PLAIN, node_modules__c=PLAIN, __=PLAIN)
        for folder in (".git", ".venv", "my_env/lib", "conda/lib", "env", "__pycache__"):
            tree(tmp_path / folder, x=PLAIN)
        (tmp_path / "my_env/pyvenv.cfg").touch()
        (tmp_path / "conda/conda-meta").mkdir()
        (tmp_path / "notes.txt").touch()
        found = [str(p.relative_to(tmp_path)) for p in files.find([tmp_path], lambda _: False)]
        assert found == [p for p in found if p] and [p for p in found if p != ".py"] == [
            "a.py",
            "env/x.py",
            "z/b.py",
        ]

    def test_what_is_named_is_taken_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tree(tmp_path, a=PLAIN, sub__b=PLAIN))
        (tmp_path / "script").write_bytes(PLAIN)
        given = [Path(p) for p in ("script", "./a.py", "a.py", "sub/../a.py", "sub", "sub/b.py")]
        assert list(files.find(given, lambda _: True)) == [Path("script"), Path("a.py"), Path("sub/b.py")]
        assert list(files.find(given, lambda _: False)) == [Path("script"), Path("a.py"), Path("sub/b.py")]
        mixed = [Path("a.py"), tmp_path / "sub/b.py", tmp_path / "a.py"]
        assert list(files.find(mixed, lambda _: False)) == [tmp_path / "a.py", tmp_path / "sub/b.py"]


class TestGroups:
    TF, FIT, NONE = b"import tensorflow as tf\n", b"m.fit(x)\n", b"x = 1\n"

    def groups(self, **contents: bytes) -> list[set[str]]:
        data = {Path(f"{name.replace('__', '/')}.py"): content for name, content in contents.items()}
        return [{p.with_suffix("").as_posix() for p in group} for group in files.groups(data)]

    def test_independent(self) -> None:
        assert self.groups(a=self.TF, b=self.TF, c=self.NONE, d=self.FIT) == [{"a"}, {"b"}]

    @pytest.mark.parametrize(
        "line",
        [
            b"import b",
            b"import os, b as x",
            b"from b import build",
            b"  from b import (\n  build)",
            b"from .b import x",
            b"from . import (x,\n  b)",
            b"import\tb",
            b"x = 1\rfrom b import *\r",
        ],
    )
    def test_imports(self, line: bytes) -> None:
        assert self.groups(a=self.TF + line, b=self.FIT, c=self.TF) == [{"a", "b"}, {"c"}]

    @pytest.mark.parametrize(
        ("line", "module"),
        [
            (b"from pkg.model import x", "pkg/model"),
            (b"import pkg.model as m", "pkg/model"),
            (b"from pkg import model", "pkg/model"),
            (b"from pkg import x", "pkg/__init__"),
            (b"import pkg", "pkg/__init__"),
        ],
    )
    def test_packages(self, line: bytes, module: str) -> None:
        data = {Path("a.py"): self.TF + line, Path(f"{module}.py"): self.FIT, Path("other/pkg.py"): self.FIT}
        assert files.groups(data) == [[Path("a.py"), Path(f"{module}.py")]]

    def test_a_helper_without_tensorflow_ties_nobody_together(self) -> None:
        assert self.groups(a=self.TF + b"import util\n", b=self.TF + b"import util\n", util=self.NONE) == [
            {"a"},
            {"b"},
        ]

    def test_through_a_file_that_passes_names_on(self) -> None:
        assert self.groups(a=self.TF + b"import pkg\n", pkg=b"from model import *\n", model=self.TF) == [{"a", "model"}]

    def test_main_that_only_fits(self) -> None:
        assert self.groups(main=b"import model\n" + self.FIT, model=self.TF) == [{"main", "model"}]
        for method in (b"predict_on_batch", b"evaluate", b"test_on_batch"):
            assert self.groups(serve=b"import m\nm.net.%s(x)\n" % method, m=self.TF) == [{"serve", "m"}]

    def test_module_beside_the_script_above(self) -> None:
        assert self.groups(train=self.TF, util=self.TF, sub__a=self.TF + b"import util\n") == [
            {"train"},
            {"util", "sub/a"},
        ]
        assert self.groups(x__a=self.TF + b"from ..b import c\n", b=self.TF) == [{"x/a", "b"}]

    def test_edit_in_a_file_without_tensorflow(self, tmp_path: Path) -> None:
        tree(
            tmp_path,
            a=b"import tensorflow as tf\nfrom data import batches\n"
            b"ds = batches(tf.data.Dataset.range(9))\nm = tf.keras.Sequential()\n"
            b"m.compile('sgd', 'mse')\nm.fit(ds)\n",
            data=b"def batches(ds):\n    return ds.batch(32)\n",
            py2=b"print 'x'.batch(1)\n",
        )
        done = tfboost("rewrite", *PREFETCH, "--in-place", ".", cwd=tmp_path)
        assert done.returncode == 0
        assert b"prefetch" in b"".join(snapshot(tmp_path).values())


class TestWorkers:
    def job(self, folder: Path, name: str, content: bytes = SCRIPT) -> work.Job:
        from rewriter.detect import Detector
        from rewriter.engine import Options

        return work.Job(
            {folder / name: content + b"#" * work.WORTH_A_WORKER},
            Options(select=frozenset({"prefetch"})),
            Detector(),
        )

    def test_same_result_as_in_one_process(self, tmp_path: Path) -> None:
        long = SCRIPT + b"# " + b"x" * work.WORTH_A_WORKER + b"\n"
        tree(tmp_path, **{f"s{n}": long for n in range(4)}, broken=BROKEN, plain=PLAIN)
        runs = [tfboost("check", *PREFETCH, ".", "-j", str(jobs), cwd=tmp_path) for jobs in (1, 2)]
        assert runs[0].stdout == runs[1].stdout != b""
        assert runs[0].stderr == runs[1].stderr
        assert [run.returncode for run in runs] == [2, 2]

    @pytest.mark.skipif(sys.platform != "linux", reason="patches what forked workers inherit")
    def test_a_worker_that_dies_takes_nobody_along(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = work.process

        def process(job: work.Job) -> list[work.FileReport]:
            if (tmp_path / "killer.py") in job.data:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(job)

        monkeypatch.setattr(work, "process", process)
        jobs = [self.job(tmp_path, name) for name in ("a.py", "killer.py", "b.py", "c.py")]
        reports = {r.path.name: r for r in work.run(jobs, 2)}
        assert {name: r.status for name, r in reports.items()} == {
            "a.py": "changed",
            "b.py": "changed",
            "c.py": "changed",
            "killer.py": "failed",
        }
        assert "died" in str(reports["killer.py"].error)

    def test_a_defect_costs_one_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from rewriter import engine

        whole = engine.rewrite

        def rewrite(paths: list[Path], *rest: object) -> object:
            if any(path.name == "bad.py" for path in paths):
                raise AssertionError("oops")
            return whole(paths, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(engine, "rewrite", rewrite)
        one, bad = self.job(tmp_path, "a.py"), self.job(tmp_path, "bad.py")
        both = work.Job({**one.data, **bad.data}, one.options, one.detector)
        reports = {r.path.name: r for r in work.process(both)}
        assert (reports["a.py"].status, reports["bad.py"].status) == ("changed", "failed")
        assert "defect of tfboost at test_cli.py:" in str(reports["bad.py"].error)
        assert "AssertionError: oops" in str(reports["bad.py"].error)

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    @pytest.mark.parametrize("how", ["interrupt all", "kill parent"])
    def test_nothing_is_left_running(self, tmp_path: Path, how: str) -> None:
        tree(tmp_path, **{f"s{n}": SCRIPT * 150 for n in range(20)})
        process = subprocess.Popen(
            [sys.executable, "-m", "rewriter", "rewrite", *PREFETCH, "-j2", "."],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(workers := children.read_text().split()) < 2:
            assert process.poll() is None
        if how == "interrupt all":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.kill()
        _, errors = process.communicate(timeout=60)
        assert (process.returncode < 0, errors) == (True, b"")
        deadline = time.monotonic() + 60
        while any(_runs(pid, tmp_path) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _runs(pid: str, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder
    except OSError:
        return False


class TestTogether:
    """Files that are written all or none."""

    def test_changed_meanwhile_and_read_only_neighbours(self, tmp_path: Path) -> None:
        from rewriter.commands import _write
        from rewriter.report import FileReport

        one, two = tmp_path / "a.py", tmp_path / "b.py"
        tree(tmp_path, a=b"old", b=b"edited since")
        reports = [FileReport(path, "changed", after=b"new", together=(one, two)) for path in (one, two)]
        _write({one: b"old", two: b"old"}, reports, {one: one, two: two})
        assert snapshot(tmp_path) == {"a.py": b"old", "b.py": b"edited since"}
        assert [r.status for r in reports] == ["failed", "failed"]
        assert "belongs together with" in str(reports[0].error)
        assert "was changed while" in str(reports[1].error)


class TestQuickAnswer:
    """Files without TensorFlow are answered before Typer is imported: nobody must see a difference."""

    def test_words(self) -> None:
        assert set(RELEVANT.pattern.split(b"|")) < set(cli._WORDS)

    @pytest.mark.parametrize(
        "arguments",
        [
            ["check", "a.py"],
            ["rewrite", "a.py", "b.py"],
            ["rewrite", "--in-place", "a.py"],
            ["rewrite", "a.py"],
        ],
    )
    def test_same_answer(self, tmp_path: Path, arguments: list[str]) -> None:
        tree(tmp_path, a=PLAIN, b=b"")
        quick, slow = (tfboost(*arguments, *more, cwd=tmp_path) for more in ([], ["-O2"]))
        assert (quick.returncode, quick.stdout, quick.stderr) == (slow.returncode, slow.stdout, slow.stderr)
        assert quick.returncode == 0

    def test_only_where_nothing_is_to_be_done(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tree(tmp_path, a=PLAIN, tf=SCRIPT, comment=b"x = 1  # tfboost: ignore[zz]\n"))
        assert cli._nothing_to_do(["check", "a.py"])
        assert capsys.readouterr().err == "nothing to do: no TensorFlow or Keras in a.py\n"
        for arguments in (
            [],
            ["check"],
            ["--help"],
            ["check", "tf.py"],
            ["check", "a.py", "tf.py"],
            ["check", "no.py"],
            ["check", "."],
            ["check", "-"],
            ["diff", "a.py"],
            ["check", "comment.py"],
            ["check", "a.py", "--select", "a.py"],
        ):
            assert not cli._nothing_to_do(arguments), arguments
        (tmp_path / "pyproject.toml").write_text("[tool.tfboost]\nlevel = 9\n")
        assert not cli._nothing_to_do(["check", "a.py"])
