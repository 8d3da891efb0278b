"""What is training time and what is not, and when a script may be called faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rewriter.runner.record import Ending, Epoch, Loop, Record, Run, Step
from rewriter.runner.speed import compare, throughput, why_not


def timed(
    seconds: Sequence[Sequence[float]],  # by epoch, of every execution
    *,
    execution: int = 1,
    batch: int = 32,
    between: float = 0.0,  # evaluation, after each epoch
    refill: float = 0.0,  # of the input pipeline, at each epoch's begin
    compiling: float = 0.0,  # in the first execution
    rest: float = 0.0,  # compiling the last, smaller batch, in the first epoch
    told: bool = True,  # whether the ends of epochs are recorded
    known: bool = True,  # whether samples are
    ending: Ending = "finished",
    size: int = 1,
) -> Run:
    records = []
    for rank in range(size):
        record = Record(rank=rank, size=size, import_seconds=3.0, memory=1000, wait=0.5)
        record.loops.append(Loop(0, "fit", "mean", 5.0))
        now = 5.0 + compiling
        for epoch, own in enumerate(seconds):
            now += refill
            for i, spent in enumerate(own):
                now += spent + (rest if epoch == 0 and i == len(own) - 1 else 0)
                record.steps.append(Step(0, epoch, now, execution, execution * batch if known else 0, None))
            now += between
            if told:
                record.epochs.append(Epoch(0, epoch, now, len(own) * execution, len(own) * execution * batch, {}))
        records.append(record)
    return Run(ending, 0, now, records)


def rate(run: Run) -> float:
    found = throughput(run)
    assert found is not None, why_not(run)
    return found.rate


EVEN = [[0.01] * 50] * 4


def test_samples_a_second() -> None:
    found = throughput(timed(EVEN))
    assert found is not None and found.unit == "samples"
    assert found.rate == pytest.approx(3200)
    assert found.seconds == pytest.approx(1.99) and found.executions == 199
    assert (found.begin, found.end) == (32, 32 * 200)
    assert found.import_seconds == 3.0 and found.memory == 1000
    assert found.wait == pytest.approx(0.25)
    assert why_not(timed(EVEN)) == ""


def test_steps_where_samples_are_not_known() -> None:
    found = throughput(timed(EVEN, known=False))
    assert found is not None and (found.unit, found.rate) == ("steps", pytest.approx(100))


def test_compiling_is_told_apart() -> None:
    found = throughput(timed(EVEN, compiling=8.0))
    assert found is not None
    assert found.rate == pytest.approx(3200) and found.compile_seconds == pytest.approx(8.0)


def test_warming_up_is_left_out() -> None:
    slow = [[1.0, 0.5, 0.2, 0.1, 0.05, 0.03, *[0.01] * 50]]
    found = throughput(timed(slow, compiling=8.0))
    assert found is not None
    assert found.rate == pytest.approx(3200) and found.begin == 6 * 32
    assert found.compile_seconds == pytest.approx(8 + 1.88 - 0.06)


def test_a_smaller_last_batch_is_compiled_once() -> None:
    found = throughput(timed(EVEN, rest=4.0))
    assert found is not None
    assert found.rate == pytest.approx(3200) and found.compile_seconds == pytest.approx(4.0)


def test_a_stall_is_no_compiling() -> None:
    """What comes again, or in the middle of an epoch, is training time."""
    again = [[*[0.01] * 49, 0.5]] * 4
    assert rate(timed(again)) < 2500
    middle = [[*[0.01] * 25, 1.0, *[0.01] * 24], *[[0.01] * 50] * 3]
    assert rate(timed(middle)) < 2500


@pytest.mark.parametrize("told", [True, False])
def test_evaluation_is_not_training(told: bool) -> None:
    assert rate(timed(EVEN, between=2.0, told=told)) == pytest.approx(3200)


def test_refilling_the_pipeline_is_training() -> None:
    assert rate(timed(EVEN, refill=0.5, between=2.0)) == pytest.approx(32 * 199 / (1.99 + 3 * 0.5))


def test_two_long_executions_are_enough() -> None:
    assert rate(timed([[2.0] * 4], compiling=10.0)) == pytest.approx(16)
    assert "too short: 0 executions" in why_not(timed([[2.0] * 2], compiling=10.0))
    assert "too short: 1 executions" in why_not(timed([[0.3] * 3], compiling=10.0))


def test_noise_is_no_warming_up() -> None:
    rng = np.random.default_rng(0)
    noisy = [(0.01 * np.exp(0.5 * rng.normal(size=200))).tolist()]
    assert rate(timed(noisy)) == pytest.approx(3200 / np.exp(0.125), rel=0.1)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (timed([[1.0]], compiling=30.0), "too short: 0 executions"),
        (timed([[0.01] * 5]), "too short: 3 executions"),
        (timed([[0.001] * 50]), "too short: 0.049 s"),
        (timed([[2 * 0.9**i for i in range(40)]]), "still compiling or warming up"),
        (timed([[*[1.0] * 30, *[0.01] * 20]]), "still compiling or warming up"),
        (timed(EVEN, ending="crashed"), "crashed"),
        (timed([]), "no training step"),
        (Run("finished", 0, 1.0), "missing"),
        (replace(two := timed(EVEN, size=2), records=two.records[:1]), "missing"),
    ],
)
def test_why_not(run: Run, reason: str) -> None:
    assert throughput(run) is None
    assert reason in why_not(run)


def test_ranks_add_up() -> None:
    found = throughput(timed(EVEN, size=4, compiling=2.0))
    assert found is not None
    assert found.rate == pytest.approx(4 * 3200) and found.memory == 4000
    assert found.compile_seconds == pytest.approx(2.0)
    assert (found.begin, found.end) == (4 * 32, 4 * 32 * 200)


# -- comparing -------------------------------------------------------------------------------------------------


def noisy(factors: Sequence[float], seconds: float = 0.01, **more: object) -> list[Run]:
    return [timed([[seconds * f] * 50] * 4, **more) for f in factors]  # type: ignore[arg-type]


JITTER = (1.0, 1.05, 0.97, 1.02, 0.99)


def test_faster_and_slower() -> None:
    up = compare(noisy(JITTER), noisy(JITTER[::-1], 0.005))
    assert up.answer == "faster" and up.ratio == pytest.approx(2.0, rel=0.01)
    assert up.low is not None and up.high is not None and 1.8 < up.low < up.ratio < up.high < 2.2
    assert len(up.pairs) == len(up.original) == len(up.rewritten) == 5
    down = compare(noisy(JITTER[::-1], 0.005), noisy(JITTER))
    assert down.answer == "slower"
    assert down.ratio == pytest.approx(1 / up.ratio) and down.low == pytest.approx(1 / up.high)


def test_pairs_cancel_what_the_machine_does() -> None:
    """Other work on the machine slows the runs of one pair alike."""
    busy = (1.0, 3.0, 1.5, 2.0)
    assert compare(noisy(busy), noisy(busy, 0.009)).answer == "faster"
    assert compare(noisy(busy), noisy(busy[::-1], 0.009)).answer == "no difference shown"


def test_a_small_difference_is_none() -> None:
    even = (1.0, 1.0, 1.0)
    up = compare(noisy(even), noisy(even, 0.00992))
    assert up.answer == "no difference shown" and "less than 1%" in up.reason
    assert up.low is not None and up.low > 1
    assert compare(noisy(even), noisy(even, 0.0095)).answer == "faster"
    assert compare(noisy(even), noisy(even)).ratio == pytest.approx(1.0)


def test_never_from_one_run() -> None:
    for count in (0, 1, 2):
        up = compare(noisy(JITTER[:count]), noisy(JITTER[:count], 0.001))
        assert up.answer == "not measured" and "too few" in up.reason and up.ratio is None


def test_a_pair_that_was_not_measured_is_left_out_with_its_reason() -> None:
    broken = timed(EVEN, ending="out-of-memory")
    up = compare([*noisy(JITTER[:2]), timed(EVEN)], [*noisy(JITTER[:2], 0.005), broken])
    assert up.answer == "not measured" and "rewritten script" in up.reason and "out-of-memory" in up.reason
    up = compare([*noisy(JITTER[:3]), timed(EVEN)], [*noisy(JITTER[:3], 0.005), broken])
    assert up.answer == "faster" and len(up.pairs) == 3


def test_both_are_measured_over_the_same_samples() -> None:
    """The original becomes faster where the rewritten script still compiles: none of its gain counts."""
    late = [[*[0.01] * 60, *[0.0095] * 240]]
    original = [timed(late) for _ in range(3)]
    coarse = [timed([[0.152] * 18], execution=16, compiling=5.0) for _ in range(3)]
    up = compare(original, coarse)
    first, second = up.original[0], up.rewritten[0]
    assert (first.begin, first.end) == (second.begin, second.end) == (16 * 32, 18 * 16 * 32)
    assert first.executions == 17 * 16 and second.executions == 17
    assert throughput(original[0]).begin == 32  # type: ignore[union-attr]


def test_an_interval_holds_the_ratio_19_times_of_20() -> None:
    rng = np.random.default_rng(4)
    held = false = 0
    for _ in range(200):
        same = compare(*(noisy(np.exp(0.05 * rng.normal(size=5)).tolist()) for _ in range(2)))
        assert same.low is not None and same.high is not None
        held += same.low <= 1 <= same.high
        false += same.answer in ("faster", "slower")
    assert 180 <= held <= 198
    assert false <= 20


def test_ranks_against_one() -> None:
    up = compare(noisy((1.0, 1.0, 1.0)), [timed([[0.0125] * 13] * 4, size=4) for _ in range(3)])
    assert up.answer == "faster" and up.ratio == pytest.approx(3.2)
    assert up.original[0].begin == up.rewritten[0].begin


def test_samples_known_of_one_only() -> None:
    up = compare(noisy((1.0, 1.0, 1.0), known=False), noisy((1.0, 1.0, 1.0), 0.005))
    assert up.unit == "steps" and up.ratio == pytest.approx(2.0)
