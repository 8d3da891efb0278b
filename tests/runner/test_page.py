"""The report as a page: what stands in it, that it needs nothing else, and that nothing in it is taken for HTML."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rewriter.engine import Options, rewrite
from rewriter.runner import page, parity, speed
from rewriter.runner.record import Run
from rewriter.runner.validate import Validation
from rewriter.target import named
from tests.runner.records import run

SCRIPT = b"""\
import numpy as np
import tensorflow as tf

x, y = np.zeros((640, 20), 'float32'), np.zeros(640, 'float32')
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
first = 1
model = tf.keras.Sequential([tf.keras.layers.Dense(16), tf.keras.layers.Dense(1)])
second = 2
model.compile('adam', 'mse')
third = 3
model.fit(data, epochs=8)
"""


def by_tfboost(level: int = 2, **options: str) -> bytes:
    path = Path("train.py")
    (result,) = rewrite([path], Options(level, **options), lambda _: named("tf2.15"), {path: SCRIPT})  # type: ignore[arg-type]
    assert result.applied
    return result.after


def curve(seed: int, factor: float = 1.0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=96)
    return factor * (1.6 * np.exp(-np.linspace(0, 5, 96)) + 0.4) * np.exp(0.05 * noise)


def trained(factor: float = 1.0) -> list[Run]:
    return [seen(run(curve(seed, factor), seed=seed, per_epoch=32)) for seed in range(3)]


def timed(rate: float, wait: float = 0.0) -> list[Run]:
    runs = [seen(run(curve(0), per_epoch=32)) for _ in range(4)]
    for i, one in enumerate(runs):
        (record,) = one.records
        faster = rate * (1 + 0.01 * i)
        record.steps = [replace(step, time=step.time / faster) for step in record.steps]
        record.epochs = [replace(epoch, time=epoch.time / faster) for epoch in record.epochs]
        record.wait = wait
    return runs


def seen(one: Run) -> Run:
    one.isolation = "namespace"
    for record in one.records:
        record.versions = {"python": "3.11.7", "tensorflow": "2.15.1", "keras": "2.15.0"}
        record.devices = ("CPU:0",)
    return one


def validation(factor: float = 1.0, *, after: Sequence[Run] | None = None, wait: float = 0.0) -> Validation:
    losses = trained(), list(after) if after is not None else trained(factor)
    runs = timed(1.0, wait), timed(1.7, wait / 4)
    found = parity.compare(*losses, 2)
    return Validation(Path("train.py"), Path("fast.py"), 2, found, speed.compare(*runs), losses, runs)


def not_run(stderr: str = "Traceback\nValueError: shapes\n", failure: str = "train.py crashed") -> Validation:
    crashed = Run("crashed", 1, 3.2, [], stderr)
    return Validation(Path("train.py"), Path("fast.py"), 2, trained=([crashed], []), failure=failure)


class Reader(HTMLParser):
    """A page's elements and its text, section by section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {"": ""}
        self._here = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.sections[self._here] += " "
        if tag not in ("meta", "br"):
            self._open.append(tag)
        if tag == "section":
            self._here = dict(attributes)["id"] or ""
            self.sections[self._here] = ""

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "section":
            self._here = ""

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.sections[self._here] += data

    def words(self, section: str = "") -> str:
        return " ".join(self.sections[section].split())


def test_a_pass() -> None:
    text = page.render(validation(wait=0.2), SCRIPT, by_tfboost())
    read = Reader(text)
    assert list(read.sections) == ["", *"training speed losses resources changes runs environment".split()]
    assert re.search(r"pass Same training; faster: 1\.7\d times as fast \(1\.\d\d to 1\.\d\d\)", read.words())
    assert "nothing differs more than it may" in read.words("training")
    assert "the mean over 4 pairs of runs, and its 95 % interval" in read.words("speed")
    assert "original (3 runs)" in read.words("losses") and "rewritten (3 runs)" in read.words("losses")
    assert "waiting for input" in read.words("resources") and "GPU" not in read.words("resources")
    assert read.words("runs").count("finished") == 14
    for fact in ("Python 3.11.7", "TensorFlow 2.15.1", "Keras 2.15.0", "CPU cores", "namespace"):
        assert fact in read.words("environment")
    assert len([tag for tag, _ in read.tags if tag == "svg"]) == 3


def test_a_regression() -> None:
    one = validation(1.5)
    assert one.parity
    remark = parity.Finding("no-effect", "of no effect", fails=False)
    one.parity = replace(one.parity, findings=(remark, *one.parity.findings))
    read = Reader(page.render(one, SCRIPT, by_tfboost()))
    assert "regression Not the same training (loss)" in read.words()
    assert re.match(
        r"Findings loss: over .* of training the loss is .* no-effect \(a remark\): ", read.words("training")
    )
    assert [tag[1].get("class") for tag in read.tags if tag[0] == "li"] == ["fails", None]
    assert "resources" not in read.sections  # nothing is known of waiting


def test_not_run() -> None:
    read = Reader(page.render(not_run(), SCRIPT, by_tfboost()))
    assert list(read.sections) == ["", "failed", "changes", "runs", "environment"]
    assert "not run train.py crashed" in read.words()
    assert "train.py (seed 0) crashed: ValueError: shapes Traceback ValueError: shapes" in read.words("failed")


def test_a_rewritten_script_that_fails() -> None:
    crashed = [replace(one, ending="crashed", stderr="\x1b[31mValueError\x1b[0m: shapes") for one in trained()]
    for one in crashed:
        one.records[0].steps = one.records[0].steps[:40]
    read = Reader(page.render(validation(after=crashed), SCRIPT, by_tfboost()))
    assert "fast.py (seed 0) crashed: ValueError: shapes" in read.words("failed")
    assert "\x1b" not in read.words("failed") and "seed 1" not in read.words("failed")
    assert read.words("runs").count("crashed") == 3


def test_a_speed_that_was_not_measured() -> None:
    one = replace(validation(), timed=([], []), speed=speed.compare([], []))
    assert "Speed not measured" in Reader(page.render(one, SCRIPT, SCRIPT)).words("speed")
    read = Reader(page.render(replace(one, speed=None), SCRIPT, SCRIPT))
    assert "speed" not in read.sections
    assert "Both scripts are the same." in read.words("changes")


def test_the_gpu_where_it_was_watched() -> None:
    one = validation()
    one.timed[0][0].gpu = [(float(t), 50.0, 2e9, 200.0) for t in range(9)]
    read = Reader(page.render(one, SCRIPT, by_tfboost()))
    assert "GPU used" in read.words("resources") and "seconds since the run began" in read.words("resources")


def test_every_loop_has_its_curve() -> None:
    losses = [[seen(run(curve(s), seed=s, loops=2)) for s in range(2)] for _ in range(2)]
    one = replace(validation(), trained=tuple(losses))
    words = Reader(page.render(one, SCRIPT, SCRIPT)).words("losses")
    assert "loop 0 (fit)" in words and "loop 1 (fit)" in words


@pytest.mark.parametrize("one", [validation(wait=0.2), not_run()], ids=["pass", "not run"])
def test_the_page_needs_nothing_else(one: Validation) -> None:
    text = page.render(one, SCRIPT, by_tfboost())
    read = Reader(text)
    assert not {tag for tag, _ in read.tags} & {"script", "link", "img", "iframe", "image", "object"}
    for _, attributes in read.tags:
        assert "src" not in attributes
        for name, value in attributes.items():
            assert name.startswith("xmlns") or "://" not in (value or ""), (name, value)
            assert "href" not in name or (value or "").startswith("#")
    assert not re.findall(r"@import|@font-face|url\((?!#)", text)
    names = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(names) == len(set(names))


def test_everything_is_escaped() -> None:
    evil = b"</script><b>&amp;"
    one = validation()
    assert one.parity
    one.parity = replace(one.parity, findings=(parity.Finding("loss", "is < <b>0</b>", "<i>epoch</i>"),))
    one.original = Path("<u>train.py")
    read = Reader(page.render(one, b"x = 1  # " + evil, b"x = 2  # " + evil))
    assert not {tag for tag, _ in read.tags} & {"b", "i", "u", "script"}
    assert read.words("changes").count(evil.decode()) == 2
    assert "is < <b>0</b> (<i>epoch</i>)" in read.words("training")
    assert "<u>train.py" in read.words()
    read = Reader(page.render(not_run("<b>\n", "<b> crashed"), b"", b""))
    assert "b" not in {tag for tag, _ in read.tags}
    assert "<b> crashed" in read.words()


def test_what_a_terminal_would_show() -> None:
    assert page.clean("\x1b[1;31mred\x1b[0m\n10%\r 20%\r100%\r\nend\x00\x07") == "red\n100%\nend"


# -- reasons ---------------------------------------------------------------------------------------------------


def reasons(after: bytes, one: Validation | None = None, options: Options | None = None) -> list[list[str] | None]:
    """Of each change in order the codemods that made it."""
    found = page.reasons_of(one or not_run(), SCRIPT, after, options)
    parts = [part for hunk in page.hunks(SCRIPT, after, found) for part in hunk]
    return [[reason.codemod for reason in part.reasons] for part in parts if part.reasons is not None]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_reasons_of_a_rewrite_at_any_level(level: int) -> None:
    told = reasons(by_tfboost(level), validation())
    assert all(told)
    assert any("prefetch" in codemods for codemods in told if codemods)
    assert (["mixed-precision"] in told) == (level > 1)


def test_a_change_that_tfboost_did_not_make_has_no_reason() -> None:
    """Nor takes it theirs from the changes that it stands between."""
    own = by_tfboost().replace(b"second = 2", b"second = 7")
    told, made = reasons(own, validation()), reasons(by_tfboost(), validation())
    assert told.count([]) == 1
    assert [one for one in told if one] == made
    words = Reader(page.render(validation(), SCRIPT, own)).words("changes")
    assert words.count("not by tfboost") == 1 and "alone" not in words


def test_a_change_that_tfboost_would_make_otherwise() -> None:
    other = by_tfboost().replace(b".prefetch(tf.data.AUTOTUNE)", b".prefetch(1).repeat(2)")
    assert reasons(other, validation()).count([]) == 1
    assert "not by tfboost alone" in Reader(page.render(validation(), SCRIPT, other)).words("changes")


def test_the_attempt_that_makes_most_of_it_is_believed() -> None:
    """The layer's line is the same with both dtypes."""
    for dtype in ("float16", "bfloat16"):
        own = by_tfboost(amp_dtype=dtype).replace(b"second = 2", b"second = 7")
        words = Reader(page.render(validation(), SCRIPT, own)).words("changes")
        assert words.count(f"compute in {dtype}") == 2


def test_reasons_of_a_rewrite_whose_options_are_known() -> None:
    options = Options(3, frozenset({"prefetch"}))
    (result,) = rewrite([Path("train.py")], options, lambda _: named("tf2.15"), {Path("train.py"): SCRIPT})
    assert reasons(result.after, options=options) == [["prefetch"]]


def test_a_script_that_is_none_still_has_its_diff() -> None:
    assert reasons(b"x = (\n") == [[]]
    assert page.reasons_of(not_run(), b"x = (\n", b"import tensorflow\n") == {}


def test_hunks_are_what_patch_would_show() -> None:
    after = SCRIPT.replace(b"first = 1\n", b"").replace(b"third = 3\n", b"third = 5\nfourth = 5\n")
    (hunk,) = page.hunks(SCRIPT, after, {})
    rows = [row for part in hunk for row in part.rows]
    before, now = SCRIPT.decode().splitlines(), after.decode().splitlines()
    assert [(row.old, row.text) for row in rows if row.old] == [(n, before[n - 1]) for n in range(3, 12)]
    assert [(row.new, row.text) for row in rows if row.new] == [(n, now[n - 1]) for n in range(3, 12)]
    assert [(row.old, row.new) for row in rows if not (row.old and row.new)] == [
        (6, None),
        (10, None),
        (None, 9),
        (None, 10),
    ]


# -- loss curves -----------------------------------------------------------------------------------------------


def test_running_means_and_batches_losses_are_one_curve() -> None:
    kinds = [run(curve(0), kind=kind, per_epoch=32) for kind in ("batch", "mean")]
    edges, (batch, mean) = page.curves(kinds, 0, "samples")
    assert edges[-1] == batch.end == mean.end == 96 * 32
    assert len(batch.values) == page.POINTS
    np.testing.assert_allclose(batch.values, mean.values, rtol=1e-9)
    np.testing.assert_allclose(batch.values, curve(0).reshape(-1, 2).mean(axis=1))


def test_a_curve_ends_where_its_run_does() -> None:
    broken = np.where(np.arange(96) < 48, curve(1), np.nan)
    _, (whole, half) = page.curves([run(curve(0)), run(broken)], 0, "samples")
    assert np.isfinite(whole.values).all()
    assert np.isfinite(half.values).tolist() == [True] * 24 + [False] * 24


# -- the file --------------------------------------------------------------------------------------------------


def test_written_at_once_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.html"
    page.write(path, not_run(), SCRIPT, by_tfboost())
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [p.name for p in path.parent.iterdir()] == ["out.html"]
    with pytest.raises(OSError) as error:
        page.write(path.parent, not_run(), SCRIPT, by_tfboost())
    assert error.value.filename == str(path.parent) and "folder" in str(error.value.strerror)


def test_the_command_line_starts_without_templates_and_plots() -> None:
    code = (
        "import sys, contextlib\nfrom rewriter.cli import main\n"
        "with contextlib.suppress(SystemExit):\n    sys.argv = ['tfboost', {}]; main()\n"
        "sys.exit(any(m in sys.modules for m in ('jinja2', 'matplotlib')))"
    )
    for arguments in ("'--help'", "'rewrite', 'fixtures/image_directory/input.py'", "'validate', '--help'"):
        done = subprocess.run([sys.executable, "-c", code.format(arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_a_browser_has_nothing_to_say(tmp_path: Path) -> None:
    def said(text: str) -> list[str]:
        path = tmp_path / "out.html"
        path.write_text(text)
        command = [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
        ]
        done = subprocess.run(
            [*command, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "</html>" in done.stdout, done.stderr
        return [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    text = page.render(validation(wait=0.2), SCRIPT, by_tfboost())
    assert said(text) == []
    wide = "if (document.documentElement.scrollWidth > innerWidth) console.error('too wide')"
    assert said(text.replace("</body>", f"<script>{wide}</script></body>")) == []
    assert said(text.replace("</body>", "<script>none()</script></body>")) != []  # it would be seen
