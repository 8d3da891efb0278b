"""Several ranks against one process with the same global batch: which runs that takes, and what learning rates may be."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rewriter.runner import workers
from rewriter.runner.parity import Finding, batches, compare
from rewriter.runner.parity.batches import scaled_rates
from rewriter.runner.record import Loop, Run, Updates
from rewriter.runner.validate import Script, start_of

from . import records


def run(rates: Sequence[float], *, size: int = 1, batch: int = 32, **options: object) -> Run:
    """A run that has updated at these rates."""
    made = records.run([1.0] * len(rates), size=size, batch=batch, **options)  # type: ignore[arg-type]
    for record in made.records:
        record.updates = [Updates(len(rates), tuple(rates))]
    return made


def judged(before: Sequence[float], after: Sequence[float], size: int = 2) -> list[Finding]:
    return list(scaled_rates([run(before)], [run(after, size=size)], 2))


# -- batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "batch", "every"), [(2, 32, 2), (4, 32, 4), (2, 16, 1), (1, 64, 2), (2, 24, 0), (2, 8, 0)]
)
def test_so_many_batches_make_an_update(size: int, batch: int, every: int) -> None:
    found = batches(run([0.1] * 96), run([0.1] * 48, size=size, batch=batch))
    assert (found.every if not found.reason else 0) == every, found
    assert found.same == (every == 1)
    assert found.rates == ()


def test_the_rates_are_those_of_the_ranks() -> None:
    found = batches(run([0.1] * 96), run([0.15] * 4 + [0.2] * 44, size=2))
    assert found.config() == {"every": 2, "rates": [[0.15] * 4 + [0.2] * 44]}


def test_what_cannot_be_given_the_same() -> None:
    unseen = records.run([1.0] * 96)
    assert "no optimizer" in batches(unseen, run([0.1] * 48, size=2)).reason
    several = run([0.1] * 96)
    several.records[0].replicas = 2
    assert "several devices" in batches(several, run([0.1] * 48, size=2)).reason


def test_labels_that_were_not_seen() -> None:
    """In a step of its own under a strategy: its inputs are compared."""
    x, y = np.random.RandomState(0).rand(2, 1024)
    whole = records.run([1.0] * 32, data=[records.seen(x, y)])

    def without(x: np.ndarray) -> Run:
        data = records.seen(x, y)
        return records.run([1.0] * 32, data=[replace(data, sums=data.sums[:2])])

    found = [{f.kind for f in compare([whole], [without(x * k)], 2).findings if f.fails} for k in (1.0, 1.1)]
    assert found == [set(), {"data"}]


# -- learning rates ----------------------------------------------------------------------------------------------


WARM_UP = [0.1 * (1 + min(i, 16) / 16) for i in range(48)]
DECAY = [0.1 * 0.5 ** (i / 16) for i in range(96)]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([0.1] * 96, [0.1] * 48, ""),
        ([0.1] * 96, [0.2] * 48, "2 times"),
        ([0.1] * 96, [0.1 * 2**0.5] * 48, "1.41 times"),
        ([0.1] * 96, WARM_UP, "1 times the original's at first, 2 times after 0.354 epochs"),
        (DECAY, [2 * rate for rate in DECAY[::2]], "2 times"),
        (DECAY, [rate * (1 + min(i, 16) / 16) for i, rate in enumerate(DECAY[::2])], "at first"),
        ([0.0, *[0.1] * 95], [0.0, *[0.2] * 47], ""),  # what rises from 0 has no factor there
    ],
)
def test_rates_that_are_scaled(before: list[float], after: list[float], told: str) -> None:
    findings = judged(before, after)
    assert not any(finding.fails for finding in findings), findings
    assert [told in finding.message for finding in findings] == [True] * bool(told) or not told


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([0.1] * 96, [0.3] * 48, "3 times the original's: 2 times the batch may have 1 to 2 times"),
        ([0.1] * 96, [0.05] * 48, "0.5 times"),
        ([0.1] * 96, [0.1] * 20 + [0.9] * 28, "9 times"),
        ([0.1] * 96, [0.2] * 24 + [0.1] * 24, "2 times the original's first, and 1 times at update 24"),
        (DECAY, [2 * rate for rate in DECAY[:48]], "times the original's"),  # in steps of the single process
    ],
)
def test_rates_that_are_wrong(before: list[float], after: list[float], told: str) -> None:
    (finding,) = judged(before, after)
    assert finding.fails and finding.kind == "learning-rate" and told in finding.message


def test_four_ranks_may_have_four_times() -> None:
    assert not any(f.fails for f in judged([0.1] * 96, [0.4] * 24, size=4))
    assert any(f.fails for f in judged([0.1] * 96, [0.5] * 24, size=4))


def test_the_same_batch_has_the_same_rates() -> None:
    before, after = run([0.1] * 96), run([0.2] * 96, size=2, batch=16)
    (finding,) = scaled_rates([before], [after], 2)
    assert finding.fails and "2 times the original's: the batch is the same" in finding.message
    assert not list(scaled_rates([before], [run([0.1] * 96, size=2, batch=16)], 2))


def test_rates_that_noise_moves() -> None:
    before, after = run([0.1] * 48 + [0.01] * 48), run([0.2] * 8 + [0.02] * 40, size=2)
    for one in (before, after):
        one.records[0].loops[0] = Loop(0, "fit", "mean", 0.0, records.ADAM, reacts=True)
    assert not any(f.fails for f in scaled_rates([before], [after], 2))


# -- how ranks are started ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("import horovod.tensorflow.keras as hvd", "horovod"),
        ("import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()", "replicas"),
        ("import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()", "workers"),
        ("from tensorflow.distribute import MirroredStrategy as M\nM()", "replicas"),
        ("import tensorflow as tf\n# tf.distribute.MirroredStrategy()", "horovod"),
        ("import parts.made", "workers"),
        ("from parts import made", "workers"),
    ],
)
def test_what_starts_them(text: str, start: str, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from . import made\n" if "from parts" in text else "")
    (tmp_path / "parts" / "made.py").write_text("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()")
    (tmp_path / "train.py").write_text("")
    assert start_of(Script(tmp_path / "train.py", files={tmp_path / "train.py": text.encode()})) == start


def cluster(code: str, count: int = 2) -> tuple[int, float]:
    began = time.monotonic()
    return workers.main(count, [sys.executable, "-c", textwrap.dedent(code)]), time.monotonic() - began


def test_workers_know_each_other(tmp_path: Path) -> None:
    code = f"""
        import json, os
        told = json.loads(os.environ["TF_CONFIG"])
        open({str(tmp_path)!r} + "/" + str(told["task"]["index"]), "w").write(" ".join(told["cluster"]["worker"]))
    """
    assert cluster(code)[0] == 0
    first, second = ((tmp_path / name).read_text() for name in "01")
    assert first == second and len(set(first.split())) == 2


@pytest.mark.parametrize(("dies", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_a_worker_that_fails_ends_the_others(dies: str, code: int) -> None:
    text = f"""
        import json, os, sys, time
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            {dies}
        time.sleep(60)
    """
    found, seconds = cluster(text)
    assert found == code and seconds < 30


def test_workers_end_with_their_launcher() -> None:
    command = [sys.executable, "-c", "import os, time; os.write(1, b'here\\n'); time.sleep(60)"]
    process = subprocess.Popen(
        [sys.executable, workers.__file__, "2", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout
    assert [process.stdout.readline() for _ in range(2)] == [b"here\n"] * 2
    process.terminate()
    assert process.stdout.read() == b""  # nobody holds the pipe any more
    assert process.wait(timeout=30) == 143
