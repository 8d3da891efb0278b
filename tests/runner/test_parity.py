"""Do two scripts train the same? Every kind of finding is caught, its neighbour is not raised, chance rarely alarms."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from rewriter.runner.parity import Finding, Parity, compare, tolerance_at
from rewriter.runner.record import Data, Run
from tests.runner.records import ADAM, run, seen

STEPS = 96


def kinds(parity: Parity) -> list[str]:
    return [finding.kind for finding in parity.findings if finding.fails]


def remarks(parity: Parity) -> list[str]:
    return [finding.kind for finding in parity.findings if not finding.fails]


def only(parity: Parity, kind: str) -> Finding:
    (finding,) = parity.findings
    assert finding.kind == kind, finding
    return finding


def curve(seed: int = 0, rate: float = 1.0, steps: int = STEPS, noise: float = 0.1) -> np.ndarray:
    """Batches' losses; the same seed draws the same batches."""
    batches = np.random.default_rng(seed).normal(size=steps)
    return (1.6 * np.exp(-rate * np.linspace(0, 5, steps)) + 0.4) * np.exp(noise * batches)


def drifting(losses: np.ndarray, growth: float = 1.0, first: float = 1e-7, seed: int = 1) -> np.ndarray:
    """What another order of additions makes of the losses: `growth` a step, or step by step added up."""
    n = np.arange(len(losses))
    size = first * (n + 1 if growth == 1 else np.minimum(growth**n, 0.05 / first))
    return losses * (1 + size * np.random.default_rng(seed).uniform(-1, 1, len(losses)))


# -- level 1 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["batch", "mean"])
@pytest.mark.parametrize("growth", [1.0, 1.02, 1.1, 1.3])
def test_rounding_is_the_same_training(kind: str, growth: float) -> None:
    losses = curve(steps=400)
    parity = compare([run(losses, kind=kind)], [run(drifting(losses, growth), kind=kind)], 1)
    assert parity.same, parity.findings
    assert parity.compared >= 30


@pytest.mark.parametrize("kind", ["batch", "mean"])
@pytest.mark.parametrize("execution", [1, 8])
def test_another_learning_rate_is_seen_within_few_steps(kind: str, execution: int) -> None:
    """The first loss is the same: no update was made yet."""
    original = run(curve()[:9], kind=kind)
    rewritten = run(curve(rate=3)[:9], kind=kind, execution=execution)
    finding = only(compare([original], [rewritten], 1), "loss")
    assert f"after {max(2, execution)} steps" in finding.message


def test_a_small_learning_rate_is_no_rounding() -> None:
    """Times three, 5e-6 at the first update and growing evenly."""
    losses = curve(steps=400)
    changed = losses * (1 - 5e-6 * np.arange(400))
    assert kinds(compare([run(losses)], [run(changed)], 1)) == ["loss"]


def test_what_comes_at_once_is_no_rounding() -> None:
    losses = curve(steps=400)
    changed = drifting(losses)
    changed[300:] *= 0.98
    finding = only(compare([run(losses)], [run(changed)], 1), "loss")
    assert "after 301 steps" in finding.message and "seed 0" in finding.where


def test_a_curve_counts_where_rounding_has_grown() -> None:
    losses = curve(steps=400)
    changed = drifting(losses, 1.3)
    assert "drives them apart after" in compare([run(losses)], [run(changed)], 1).tolerance
    changed[200:] *= 1.5
    assert kinds(compare([run(losses)], [run(changed)], 1)) == ["loss"]


def test_running_means_are_compared_at_common_positions() -> None:
    losses = curve()
    original = run(losses, kind="mean", per_epoch=32)
    parity = compare([original], [run(losses, kind="mean", per_epoch=32, execution=8)], 1)
    assert parity.same and parity.compared == STEPS // 8
    shifted = [*losses[1:], losses[0]]
    assert kinds(compare([original], [run(shifted, kind="mean", per_epoch=32, execution=8)], 1)) == ["loss"]


def test_a_running_mean_and_batches_losses() -> None:
    losses = curve()
    assert compare([run(losses, kind="mean")], [run(losses)], 1).compared == STEPS
    assert compare([run(losses, kind="mean")], [run(losses)], 1).same
    assert not compare([run(losses, kind="mean")], [run(losses * 1.01)], 1).same


def test_small_losses_are_measured_by_what_they_were() -> None:
    """Of a loss of 1e-6, float32 knows one digit."""
    losses = np.array([2.0, 1.0, 0.1, 1e-6, 1e-6])
    assert compare([run(losses)], [run(losses + 1e-7)], 1).same


def test_an_original_that_does_not_repeat_itself() -> None:
    again = curve() * (1 + 0.01 * np.random.default_rng(9).normal(size=STEPS))
    original = [run(curve()), run(again), run(curve(1), seed=1), run(curve(2), seed=2)]
    rewritten = [run(drifting(curve(s), first=1e-4), seed=s) for s in range(3)]
    parity = compare(original, rewritten, 1)
    assert parity.same and "does not repeat itself" in parity.tolerance
    assert not compare([run(curve())], rewritten[:1], 1).same  # what it would be without repeats
    worse = [run(curve(s) * 1.5, seed=s) for s in range(3)]
    assert kinds(compare(original, worse, 1)) == ["loss"]


def test_what_the_original_differs_from_itself_widens_the_tolerance() -> None:
    losses = curve()
    changed = losses * (1 + 2e-5)
    assert kinds(compare([run(losses)], [run(changed)], 1)) == ["loss"]
    assert compare([run(losses), run(losses * (1 + 8e-6))], [run(changed)], 1).same


def test_tolerance_grows_with_the_steps() -> None:
    assert tolerance_at(1) < 2e-5
    assert 5e-4 < tolerance_at(100) < 2e-3


def test_without_losses_nothing_is_claimed() -> None:
    none = run([None] * 8)
    for level in (1, 2, 3):
        parity = compare([none], [none], level)
        assert not parity.same and not parity.compared
        assert not compare([], [], level).same


def test_different_seeds_are_no_pairs() -> None:
    parity = compare([run(curve(0), seed=0)], [run(curve(1), seed=1)], 1)
    assert "No two runs have the same seed" in parity.tolerance
    assert parity.same


# -- levels 2 and 3 --------------------------------------------------------------------------------------------

#: How a repeated run differs: `spread` between seeds, `slow` waves and `batch` noise, of which `chaos` grows apart.
SCENARIOS = {
    "usual": {},
    "noisy": {"spread": 0.1, "slow": 0.1},
    "seeds differ": {"spread": 0.05, "slow": 0.005, "batch": 0.02},
    "seeds hardly differ": {"spread": 0.003, "slow": 0.003, "batch": 0.01},
    "runs grow apart": {"spread": 0.005, "slow": 0.05},
    "loss hardly falls": {"end": 0.97, "spread": 0.01},
    "repeats itself": {"chaos": 0.0},
}
UNSEEDED = {"seed changes all": {"shared": False}, "and is noisy": {"shared": False, "spread": 0.1, "slow": 0.1}}


def twins(
    rng: np.random.Generator,
    count: int,
    spread: float = 0.03,
    slow: float = 0.03,
    batch: float = 0.1,
    end: float = 0.3,
    chaos: float = 1.0,
    shared: bool = True,
) -> np.ndarray:
    """Loss curves: seed, script (the same one twice), step. One seed shares weights and batches, until chaos."""
    x = np.linspace(0, 1, STEPS)
    base = 2 * ((1 - end) * np.exp(-5 * x) + end)

    def mixed(together: np.ndarray, alone: np.ndarray, apart: np.ndarray) -> np.ndarray:
        return np.sqrt(1 - apart) * together + np.sqrt(apart) * alone

    def waves(*shape: int) -> np.ndarray:
        steps = rng.normal(size=(STEPS, *shape))
        for i in range(1, STEPS):
            steps[i] = 0.9 * steps[i - 1] + np.sqrt(1 - 0.81) * steps[i]
        return np.moveaxis(steps, 0, -1)

    scripts = 1 if shared else 2
    luck = rng.normal(size=(count, scripts, 1)) * np.minimum(1, 0.3 + 2 * x)
    drift = mixed(waves(count, scripts), waves(count, 2), chaos * x) * np.minimum(1, 5 * x)
    noise = mixed(rng.normal(size=(count, scripts, STEPS)), rng.normal(size=(count, 2, STEPS)), 0.3 * chaos * x)
    return base * np.exp(spread * luck + slow * drift + batch * noise)


def judged(curves: np.ndarray, level: int = 2, change: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> Parity:
    original = [run(pair[0], seed=i, kind="mean", per_epoch=32) for i, pair in enumerate(curves)]
    rewritten = [run(change(pair[1]), seed=i, kind="mean", per_epoch=32) for i, pair in enumerate(curves)]
    return compare(original, rewritten, level)


def test_no_false_alarms() -> None:
    """3 seeds each, 150 times for every kind of script: less than one in a thousand."""
    rng = np.random.default_rng(11)
    alarms = {
        name: sum(not judged(twins(rng, 3, **scenario)).same for _ in range(150))
        for name, scenario in {**SCENARIOS, **UNSEEDED}.items()
    }
    assert sum(alarms.values()) <= 150 * len(alarms) / 1000, alarms


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("name", SCENARIOS)
def test_power(name: str, level: int) -> None:
    """5 standard deviations of the original's seeds and 5 % more in the second half: caught 95 times in a hundred."""
    rng = np.random.default_rng(12)
    half = STEPS // 2
    late = twins(rng, 300, **SCENARIOS[name])[:, 0, half:]
    deviation = late.reshape(300, 4, -1).mean(axis=2).std(axis=0).mean()
    much = 6 if name == "runs grow apart" else 5  # there, a seed's second run is as far off as another seed's
    excess = np.where(np.arange(STEPS) < half, 0, max(much * deviation, 0.05 * late.mean()))
    found = sum(
        not judged(twins(rng, 3, **SCENARIOS[name]), level, lambda losses: losses + excess).same for _ in range(100)
    )
    assert found >= 95


def three(
    change: Callable[[np.ndarray, int], Sequence[float]] = lambda x, _: x, level: int = 2, **more: object
) -> Parity:
    original = [run(curve(s), seed=s, **more) for s in range(3)]
    return compare(original, [run(change(curve(s), s), seed=s, **more) for s in range(3)], level)


@pytest.mark.parametrize("level", [2, 3])
def test_lower_precision_is_the_same_training(level: int) -> None:
    rng = np.random.default_rng(3)
    assert three(lambda x, _: x * 1.005 * (1 + 0.01 * rng.normal(size=STEPS)), level).same
    assert kinds(three(lambda x, _: x * 1.1, level)) == ["loss"]


def test_another_learning_rate() -> None:
    assert kinds(three(lambda _, s: curve(s, rate=3))) == ["loss"]
    assert kinds(three(lambda _, s: curve(s, rate=1 / 3))) == ["loss"]


def test_a_better_loss_is_not_the_same_training_but_may_be_asked_for() -> None:
    finding = only(three(lambda x, _: x * 0.7), "loss")
    assert finding.fails and "better" in finding.message
    assert three(lambda x, _: x * 0.7, level=3).same
    assert kinds(three(lambda x, _: x * 1.3, level=3)) == ["loss"]


def test_one_run_that_goes_astray_does_not_hide_itself() -> None:
    assert kinds(three(lambda x, s: x * np.where(np.arange(STEPS) > 48, 8, 1) if s == 1 else x)) == ["loss"]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_loss_that_stops_falling(level: int) -> None:
    assert kinds(three(lambda x, s: 2 * np.exp(0.1 * np.random.default_rng(s).normal(size=STEPS)), level)) == [
        "stalled"
    ]
    assert "stalled" not in kinds(three(lambda x, s: curve(s, rate=0.4), level))  # slower, but it falls


def test_a_loss_that_hardly_falls_and_one_that_does_not() -> None:
    """2 % are no more than lower precision may cost, but here they are all that was learned."""
    falls = np.linspace(1, 0.98, STEPS)
    original = [run(falls * (1 + 1e-3 * s), seed=s) for s in range(3)]
    assert not compare(original, [run(np.ones(STEPS) * (1 + 1e-3 * s), seed=s) for s in range(3)], 2).same
    assert remarks(compare(original, original, 2)) == ["loss"]  # too short


def test_a_script_that_seeds_itself() -> None:
    """All its seeds are one: how much its batches differ is all there is."""
    original = [run(curve(), seed=s) for s in range(3)]
    parity = compare(original, [run(curve() * 1.01, seed=s) for s in range(3)], 2)
    assert parity.same
    assert kinds(compare(original, [run(curve() * 1.2, seed=s) for s in range(3)], 2)) == ["loss"]


def test_one_seed_tells_less() -> None:
    original = [run(curve())]
    parity = compare(original, [run(curve() * 1.01)], 2)
    assert parity.same and "With one seed" in parity.tolerance
    assert kinds(compare(original, [run(curve() * 1.3)], 2)) == ["loss"]


def test_seeds_that_do_not_pair_say_so() -> None:
    original = [run(curve(s), seed=s) for s in range(3)]
    assert "only large differences" in compare(original, [run(curve(s + 9), seed=s) for s in range(3)], 2).tolerance
    assert "only large differences" not in compare(original, original, 2).tolerance


def test_what_would_not_be_noticed_is_said() -> None:
    original = [run(curve(s) * (1 + 0.3 * s), seed=s) for s in range(3)]
    finding = only(compare(original, [run(curve(s + 9), seed=s + 9) for s in range(3)], 2), "loss")
    assert not finding.fails and "would not be noticed" in finding.message


def test_executions_of_several_steps_have_the_same_curve() -> None:
    for kind in ("mean", "batch"):
        original = [run(curve(s), seed=s, kind=kind, per_epoch=36) for s in range(3)]
        rewritten = [run(curve(s), seed=s, kind=kind, per_epoch=36, execution=8) for s in range(3)]
        parity = compare(original, rewritten, 2)
        assert parity.same and parity.compared, kind


def test_the_second_loop_counts_as_the_first() -> None:
    original = [run(curve(s), seed=s, loops=2) for s in range(3)]
    rewritten = [run(curve(s), seed=s, loops=2) for s in range(3)]
    assert compare(original, rewritten, 2).same
    for r in rewritten:
        steps = r.records[0].steps
        steps[STEPS:] = [replace(step, loss=step.loss * 2) for step in steps[STEPS:]]
    for level in (1, 2):
        assert only(compare(original, rewritten, level), "loss").where.startswith("loop 1")


# -- NaN, endings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan(level: int, value: float) -> None:
    finding = only(three(lambda x, s: np.where(np.arange(STEPS) == 50, value, x) if s == 1 else x, level), "nan")
    assert finding.fails and "after 51 steps, seed 1" in finding.where


def test_an_original_with_nan_is_compared_until_there() -> None:
    broken = np.where(np.arange(STEPS) < 60, curve(), np.nan)
    parity = compare([run(broken)], [run(broken)], 1)
    assert parity.same and remarks(parity) == ["nan"] and parity.compared == 60
    changed = np.where(np.arange(STEPS) == 30, 9.0, broken)
    assert kinds(compare([run(broken)], [run(changed)], 1)) == ["loss"]


def test_nan_of_another_seed_is_no_excuse() -> None:
    nan = np.full(STEPS, np.nan)
    original = [run(curve(0), seed=0), run(nan, seed=1)]
    assert kinds(compare(original, [run(nan, seed=0), run(nan, seed=1)], 2)) == ["nan"]


def test_endings() -> None:
    good, budget = run(curve()), run(curve(), ending="budget")
    assert compare([good], [budget], 1).findings == ()
    crashed = replace(run(curve()[:5], ending="crashed"), stderr="Traceback\nValueError: shapes")
    finding = only(compare([good], [crashed], 1), "ended")
    assert finding.fails and finding.message.endswith("ValueError: shapes")
    assert not compare([crashed], [crashed], 1).same
    slow = run(curve()[:50], ending="timeout")
    assert compare([slow], [good], 1).same  # it was faster
    assert remarks(compare([slow], [good], 1)) == ["ended"]
    assert kinds(compare([good], [slow], 1)) == ["ended"]


# -- data ------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=1000)
Y = np.random.default_rng(1).integers(0, 10, 1000).astype(float) + X
TEST = np.random.default_rng(2).normal(size=200)


def with_data(*data: Data, seed: int = 0, epochs: int = 2, **more: object) -> Run:
    """8 batches of 125 an epoch."""
    return run(curve(seed)[: 8 * epochs], seed=seed, per_epoch=8, batch=125, data=data, **more)  # type: ignore[arg-type]


def epochs(x: np.ndarray = X, y: np.ndarray = Y, part: str = "train", **more: float) -> list[Data]:
    return [seen(x, y, epoch, part, **more) for epoch in range(2)]


def augmented(seed: int, size: float = 0.1, frozen: bool = False, x: np.ndarray = X, y: np.ndarray = Y) -> list[Data]:
    rngs = [np.random.default_rng([seed, 0 if frozen else epoch]) for epoch in range(2)]
    return [seen(x + size * rng.normal(size=len(x)), y, epoch) for epoch, rng in enumerate(rngs)]


def test_the_same_data_in_another_order() -> None:
    order = np.random.default_rng(3).permutation(1000)
    assert compare([with_data(*epochs())], [with_data(*epochs(X[order], Y[order]))], 1).findings == ()


def test_the_last_batch_dropped() -> None:
    original, rewritten = with_data(*epochs()), with_data(*epochs(X[:960], Y[:960]))
    for level in (1, 2):
        finding = only(compare([original], [rewritten], level), "samples")
        assert "960 samples" in finding.message and "drop_remainder" in finding.message
        assert finding.fails == (level == 1)


def test_samples_lost_and_repeated() -> None:
    for left in (X[:500], np.tile(X, 2)):
        rewritten = with_data(*epochs(left, left))
        finding = next(f for f in compare([with_data(*epochs())], [rewritten], 2).findings if f.kind == "samples")
        assert finding.fails and f"{len(left)} samples" in finding.message and "dropped" not in finding.message


def test_samples_without_sums() -> None:
    """Outside of parity runs, epochs are counted all the same."""
    original, rewritten = run(curve()[:32], per_epoch=16), run(curve()[:32], per_epoch=8)
    assert "samples" in kinds(compare([original], [rewritten], 2))


@pytest.mark.parametrize(
    ("per_rank", "cause"),
    [(250, None), (62, "sharded twice"), (1000, "not sharded"), (240, "drop_remainder"), (252, "filled up")],
)
def test_ranks(per_rank: int, cause: str | None) -> None:
    def ranks(count: int, size: int) -> list[Run]:
        runs = []
        for seed in range(3):
            one = run(curve(seed)[: 32 // size], seed=seed, batch=25, size=size)
            for i, record in enumerate(one.records):
                chosen = np.arange(i * count, (i + 1) * count) % 1000
                record.data = [seen(X[chosen], X[chosen])]
            runs.append(one)
        return runs

    parity = compare(ranks(1000, 1), ranks(per_rank, 4), 2)
    messages = [f for f in parity.findings if f.kind == "samples"]
    if cause is None:
        assert not messages
        return
    (finding,) = messages
    assert cause in finding.message
    assert finding.fails == ("sharded" in cause)


def test_other_inputs() -> None:
    finding = only(compare([with_data(*epochs())], [with_data(*epochs(X / 255))], 2), "data")
    assert "inputs" in finding.message and "labels" not in finding.message
    finding = only(compare([with_data(*epochs())], [with_data(*epochs(y=Y + 1))], 2), "data")
    assert "labels" in finding.message and "inputs" not in finding.message


def test_labels_that_moved_against_their_inputs() -> None:
    assert only(compare([with_data(*epochs())], [with_data(*epochs(y=np.roll(Y, 1)))], 2), "labels").fails


def test_augmented_data_are_as_alike_as_the_originals_epochs() -> None:
    original = [with_data(*augmented(s), seed=s) for s in range(3)]
    assert compare(original, [with_data(*augmented(s + 50), seed=s) for s in range(3)], 2).findings == ()
    for change, kind in (
        (lambda s: augmented(s + 50, size=1.0), "data"),
        (lambda s: augmented(s + 50, x=X + 0.2), "data"),
        (lambda s: augmented(s + 50, y=np.roll(Y, 1)), "labels"),
    ):
        assert only(compare(original, [with_data(*change(s), seed=s) for s in range(3)], 2), kind).fails


def test_augmented_data_rarely_alarm() -> None:
    for trial in range(200):
        original = [with_data(*augmented(1000 * trial + s), seed=s) for s in range(3)]
        rewritten = [with_data(*augmented(1000 * trial + 500 + s), seed=s) for s in range(3)]
        assert compare(original, rewritten, 2).findings == ()


def test_frozen_augmentation() -> None:
    original = [with_data(*augmented(s), seed=s) for s in range(3)]
    frozen = [with_data(*augmented(s, frozen=True), seed=s) for s in range(3)]
    assert only(compare(original, frozen, 2), "augmentation-frozen").fails
    assert compare(frozen, frozen, 2).same


def ordered(*places: float, **more: object) -> Run:
    """Epochs over the same data, whose order has these sums."""
    return with_data(*(replace(seen(X, Y, e), order=o) for e, o in enumerate(places)), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_an_order_that_no_longer_varies(level: int) -> None:
    shuffled = ordered(1.0, 5.0, 3.0, epochs=3)
    finding = only(compare([shuffled], [ordered(1.0, 1.0, 1.0, epochs=3)], level), "order-frozen")
    assert finding.fails
    for original, rewritten in (
        (shuffled, shuffled),
        (shuffled, ordered(1.0, 1.0, 5.0, epochs=3)),  # chance
        (ordered(1.0, 1.0, 1.0, epochs=3), shuffled),
        (ordered(1.0, 1.0, 1.0, epochs=3), ordered(2.0, 2.0, 2.0, epochs=3)),
    ):
        assert compare([original], [rewritten], level).findings == ()


def test_data_that_no_seed_changes() -> None:
    """A curriculum: epochs differ, and so would be allowed to, did they not hold the same for every seed."""

    def rising(to: float, moved: float = 0.0) -> list[Data]:
        return [seen(X * to + moved, Y, 0), seen(X * to * 3 + moved, Y, 1)]

    original = [with_data(*rising(1.0), seed=s) for s in range(2)]
    assert kinds(compare(original, [with_data(*rising(1.01), seed=s) for s in range(2)], 2)) == ["data"]
    assert not kinds(compare(original, original, 2))
    varied = [with_data(*rising(1 + 0.1 * s), seed=s) for s in range(2)]
    assert compare(varied, [with_data(*rising(1.01 + 0.1 * s), seed=s) for s in range(2)], 2).same


def test_an_epoch_that_was_cut_short_is_not_compared() -> None:
    def cut(count: int) -> Run:
        one = with_data(*epochs(X[:count], Y[:count]), ending="budget")
        one.records[0].epochs.clear()
        return one

    assert compare([cut(1000)], [cut(700)], 1).same


def test_validation_data() -> None:
    def validated(x: np.ndarray, y: np.ndarray) -> Run:
        return with_data(*epochs(), *epochs(x, y, "test"))

    original = validated(TEST, TEST)
    assert compare([original], [validated(TEST[::-1], TEST[::-1])], 1).findings == ()
    assert "training set" in only(compare([original], [validated(X, Y)], 2), "validation-data").message
    assert compare([validated(X, Y)], [validated(X, Y)], 2).same
    for x, y in ((TEST[:190], TEST[:190]), (TEST * 2, TEST), (TEST, TEST[::-1])):
        finding = only(compare([original], [validated(x, y)], 2), "validation-data")
        assert finding.fails and "training set" not in finding.message
    assert "does not" in only(compare([original], [with_data(*epochs())], 2), "validation-data").message


def test_every_rank_may_evaluate_on_everything() -> None:
    def ranks(size: int) -> list[Run]:
        return [run(curve(s)[:32], seed=s, size=size, data=[seen(TEST, TEST, 0, "test")]) for s in range(3)]

    assert "validation-data" not in kinds(compare(ranks(1), ranks(2), 2))


def test_underflow() -> None:
    assert only(compare([with_data(*epochs(zeros=0.3))], [with_data(*epochs(zeros=0.8))], 2), "underflow").fails
    assert compare([with_data(*epochs(zeros=0.3))], [with_data(*epochs(zeros=0.35))], 2).same


# -- validation metrics ----------------------------------------------------------------------------------------


def validating(name: str, values: Sequence[float], seed: int = 0) -> Run:
    logs = [{"loss": 1.0, name: value} for value in values]
    return run(curve(seed), seed=seed, per_epoch=STEPS // len(values), logs=logs)


LATER = np.array([1.5, 1.0, 0.8, 0.7])


def test_validation_metrics_step_by_step() -> None:
    original = [validating("val_loss", LATER)]
    assert compare(original, [validating("val_loss", LATER * (1 + 1e-6))], 1).same
    finding = only(compare(original, [validating("val_loss", LATER * [1, 1, 1.05, 1])], 1), "validation")
    assert "epoch 2" in finding.where
    right = [validating("val_accuracy", [0.5, 0.6, 0.7, 0.7])]
    assert compare(right, [validating("val_accuracy", [0.5, 0.6, 0.7, 0.71])], 1).same  # one sample more
    assert kinds(compare(right, [validating("val_accuracy", [0.1, 0.1, 0.1, 0.1])], 1)) == ["validation"]


def test_validation_curves() -> None:
    def runs(name: str, values: np.ndarray, noise: float, first: int = 0) -> list[Run]:
        rngs = [np.random.default_rng([first, s]) for s in range(3)]
        return [validating(name, values * (1 + noise * r.normal(size=4)), s) for s, r in enumerate(rngs)]

    for name, worse in (("val_loss", 1.4), ("val_accuracy", 0.6)):
        original = runs(name, LATER, 0.02)
        for trial in range(1, 100):
            assert compare(original, runs(name, LATER, 0.02, trial), 2).same
        for level in (2, 3):
            assert kinds(compare(original, runs(name, LATER * worse, 0.02, 7), level)) == ["validation"]
        assert kinds(compare(original, runs(name, LATER / worse, 0.02, 7), 2)) == ["validation"]
        assert compare(original, runs(name, LATER / worse, 0.02, 7), 3).same
        assert kinds(compare(original, runs(name, LATER * np.nan, 0.02), 2)) == ["nan"]


# -- optimizers, mixed precision -------------------------------------------------------------------------------


def optimized(level: int, before: dict[str, object], after: dict[str, object], size: int = 1) -> list[Finding]:
    original = [run(curve(s), seed=s, optimizer=before) for s in range(2)]
    rewritten = [run(curve(s), seed=s, optimizer=after, size=size) for s in range(2)]
    return [f for f in compare(original, rewritten, level).findings if f.kind in ("learning-rate", "optimizer")]


@pytest.mark.parametrize("level", [1, 2])
def test_changed_settings_are_named(level: int) -> None:
    (finding,) = optimized(level, ADAM, ADAM | {"learning_rate": 0.003})
    assert finding == Finding("learning-rate", "learning rate is 0.003, the original's is 0.001")
    (finding,) = optimized(level, ADAM, ADAM | {"epsilon": 1e-4})
    assert (finding.kind, finding.message) == ("optimizer", "epsilon is 0.0001, the original's is 1e-07")
    (finding,) = optimized(level, ADAM, ADAM | {"name": "SGD"})
    assert (finding.kind, finding.fails) == ("optimizer", True)
    (finding,) = optimized(level, ADAM | {"clipnorm": 1.0}, ADAM)
    assert finding.message == "clipnorm is not set, the original's is 1"


def test_what_is_no_change_of_the_optimizer() -> None:
    inner = {"class_name": "Adam", "config": {**ADAM, "name": "adam", "jit_compile": True}}
    for same in (
        ADAM | {"learning_rate": float(np.float32(0.001))},
        ADAM | {"jit_compile": True, "clipnorm": None},
        {"name": "LossScaleOptimizer", "inner_optimizer": inner, "dynamic": True},
        {"name": "DistributedAdam", **{k: v for k, v in ADAM.items() if k != "name"}},
    ):
        assert optimized(1, ADAM, same) == []
    wrapped = {"name": "loss_scale_optimizer", "inner_optimizer": inner | {"config": ADAM | {"learning_rate": 1.0}}}
    assert [f.kind for f in optimized(1, ADAM, wrapped)] == ["learning-rate"]


def test_schedules_are_looked_into() -> None:
    def schedule(rate: float, steps: int) -> dict[str, object]:
        text = f'{{"class_name": "ExponentialDecay", "config": {{"initial_learning_rate": {rate}, "decay_steps": {steps}}}}}'
        return ADAM | {"learning_rate": text}

    assert optimized(1, schedule(0.1, 100), schedule(0.1, 100)) == []
    assert [f.kind for f in optimized(1, schedule(0.1, 100), schedule(0.3, 100))] == ["learning-rate"]
    assert [f.kind for f in optimized(1, schedule(0.1, 100), schedule(0.1, 25))] == ["optimizer"]


def test_another_optimizer_is_a_remark_where_it_was_asked_for() -> None:
    (finding,) = optimized(3, ADAM, {"name": "Lamb", "learning_rate": 0.01})
    assert (finding.kind, finding.fails) == ("optimizer", False)


def test_more_ranks_may_have_a_higher_rate() -> None:
    assert optimized(2, ADAM, ADAM | {"learning_rate": 0.004}, size=4) == []
    assert optimized(2, ADAM, ADAM, size=4) == []
    assert [f.kind for f in optimized(2, ADAM, ADAM | {"learning_rate": 0.003}, size=4)] == ["learning-rate"]
    assert [f.kind for f in optimized(2, ADAM, ADAM | {"learning_rate": 0.004})] == ["learning-rate"]


def test_mixed_precision_without_effect() -> None:
    original = [run(curve())]
    claimed = {"policy": "mixed_float16"}
    parity = compare(original, [run(curve(), **claimed)], 2)  # type: ignore[arg-type]
    assert remarks(parity) == ["no-effect"] and parity.same
    assert compare(original, [run(curve(), compute=("float16", "float32"), **claimed)], 2).findings == ()  # type: ignore[arg-type]
    assert compare(original, [run(curve(), compute=(), **claimed)], 2).findings == ()  # type: ignore[arg-type]


def settings(level: int, before: dict[str, object], after: dict[str, object]) -> list[str]:
    original, rewritten = ([run(curve())] for _ in range(2))
    for runs, changes in ((original, before), (rewritten, after)):
        record = runs[0].records[0]
        record.loops = [replace(loop, **changes) for loop in record.loops]  # type: ignore[arg-type]
    return kinds(compare(original, rewritten, level))


def test_precision() -> None:
    half = {"policy": "mixed_float16", "compute": ("float16", "float32")}
    double = {"policy": "float64", "compute": ("float64",), "floatx": "float64"}
    assert settings(1, {}, half) == ["precision"]
    assert settings(2, {}, half) == []
    for level in (1, 2, 3):
        assert settings(level, double, double) == []
        assert settings(level, double, half) == ["precision"]
        assert settings(level, double, double | {"floatx": "float32"}) == ["precision"]
        assert settings(level, {"floatx": "float32"}, {"compute": ()}) == []  # one of them does not tell


def with_rates(*rates: float, seed: int = 0, size: int = 1, ending: str = "finished") -> Run:
    one = run(curve(seed), seed=seed, per_epoch=32, size=size)
    for record in one.records:
        record.epochs = [replace(epoch, rates=(rate,)) for epoch, rate in zip(record.epochs, rates, strict=False)]
        record.rates = rates[-1:]
    return replace(one, ending=ending)  # type: ignore[arg-type]


def test_learning_rates_over_time() -> None:
    original = [with_rates(0.1, 0.01, 0.01)]
    parity = compare(original, [with_rates(0.1, 0.1, 0.1)], 1)
    finding = only(parity, "schedule")
    assert finding.message == "the learning rate is 0.1 at the end of epoch 1, the original's is 0.01"
    assert parity.settled  # the losses are the same
    assert not kinds(compare(original, [with_rates(0.1, 0.1, 0.1)], 3))  # another optimizer
    ended = only(compare(original, [with_rates(0.1, 0.01, 0.01, 0.1)], 1), "schedule")
    assert "at the end," in ended.message
    assert not kinds(compare(original, [with_rates(0.1, 0.01, 0.01, 0.1, ending="budget")], 1))  # it was stopped


def test_a_rate_that_noise_moves_is_no_schedule() -> None:
    """Where the plateau comes depends on the seed, or on a callback that is known to wait for one."""
    original = [with_rates(*rates, seed=s) for s, rates in enumerate([(0.1, 0.1, 0.01), (0.1, 0.01, 0.01)])]
    late = [with_rates(0.1, 0.1, 0.1, seed=s) for s in range(2)]
    assert not kinds(compare(original, late, 2))
    assert kinds(compare(original[:1], late[:1], 2)) == ["schedule"]
    record = original[0].records[0]
    record.loops = [replace(loop, reacts=True) for loop in record.loops]
    assert not kinds(compare(original[:1], late[:1], 2))


def test_ranks_may_warm_up() -> None:
    original = [with_rates(0.1, 0.1, 0.1)]
    assert "schedule" not in kinds(compare(original, [with_rates(0.1, 0.2, 0.4, size=4)], 2))
    assert "schedule" in kinds(compare(original, [with_rates(0.1, 0.2, 0.8, size=4)], 2))


# -- how long it trains ----------------------------------------------------------------------------------------


def test_training_that_ends_too_early_or_too_late() -> None:
    long, short = run(curve(), loops=3), run(curve(), loops=1)
    parity = compare([long], [short], 1)
    assert kinds(parity) == ["length"] and parity.settled
    assert "ends after" in only(parity, "length").message
    assert "goes on" in only(compare([short], [replace(long, ending="budget")], 1), "length").message
    assert kinds(compare([long], [replace(short, ending="budget")], 1)) == []  # it was stopped
    assert kinds(compare([replace(long, ending="budget")], [short], 1)) == ["length"]


def test_lengths_that_vary() -> None:
    long, short = run(curve(), loops=3), run(curve(), loops=1)
    for one in (long, short):
        one.records[0].stopped = True
    assert kinds(compare([long], [short], 1)) == []  # early stopping
    originals = [run(curve(s), seed=s, loops=3 - s) for s in range(2)]
    assert kinds(compare(originals, [run(curve(s), seed=s) for s in range(2)], 2)) == []


def test_no_step_at_all() -> None:
    silent = run(curve())
    silent.records[0].steps, silent.records[0].epochs = [], []
    parity = compare([run(curve())], [silent], 1)
    assert kinds(parity) == ["not-trained"] and parity.settled
    assert not compare([silent], [silent], 1).same


# -- repeating -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeded", [True, False])
def test_a_rewrite_that_no_longer_repeats_itself(seeded: bool) -> None:
    """Only a script that sets a seed promises that."""
    original = [run(curve(s), seed=s) for s in (0, 0, 1, 2)]
    for one in original:
        one.records[0].seeded = seeded
    rewritten = [run(curve(s) * factor, seed=s) for s, factor in ((0, 1.001), (0, 1.002), (1, 1.001), (2, 1.001))]
    parity = compare(original, rewritten, 1)
    assert kinds(parity) == (["loss", "not-repeatable"] if seeded else [])
    assert parity.settled == seeded
    assert "not-repeatable" not in kinds(compare(original, [rewritten[0], rewritten[0]], 1))


def test_more_runs_may_take_a_difference_back() -> None:
    assert not compare([run(curve())], [run(curve() * 1.001)], 1).settled
    assert compare([run(curve())] * 2, [run(curve() * 1.001)] * 2, 1).findings
    repeats = [[run(curve() * change) for _ in range(2)] for change in (1.0, 1.001)]
    assert compare(repeats[0], repeats[1], 1).settled


# -- ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("apart", "found"), [(0.0, []), (1e-8, []), (1e-2, ["ranks-diverge"])])
def test_weights_of_ranks(apart: float, found: list[str]) -> None:
    rewritten = run(curve()[:48], size=2)
    for i, record in enumerate(rewritten.records):
        record.weights = [(8, 1.0, 2.0), (4, 0.5 + i * apart, 1.0)]
    original = run(curve())
    assert [k for k in kinds(compare([original], [rewritten], 2)) if k != "loss"] == found
    rewritten.records[1].steps = rewritten.records[1].steps[:-1]  # stopped at another step
    assert "ranks-diverge" not in kinds(compare([original], [rewritten], 2))


def test_the_loss_is_the_mean_over_the_ranks() -> None:
    half = [run(curve()[:48], size=2), run(curve()[:48], size=2)]
    for i, factor in enumerate((0.5, 1.5)):
        record = half[0].records[i]
        record.steps = [replace(step, loss=step.loss * factor) for step in record.steps if step.loss]
    assert compare([half[1]], [half[0]], 1).same
    half[0].records[1].steps = [replace(step, loss=9.0) for step in half[0].records[1].steps]
    assert not compare([half[1]], [half[0]], 1).same


def test_more_ranks_are_compared_as_curves_over_the_samples() -> None:
    """Two ranks see in 48 steps what one sees in 96."""

    def ranks(change: float) -> list[Run]:
        runs = []
        for seed in range(3):
            one = run(curve(seed)[:48], seed=seed, size=2)
            for i, record in enumerate(one.records):
                own = curve(seed)[i::2] * change
                record.steps = [replace(s, loss=float(v)) for s, v in zip(record.steps, own, strict=True)]
            runs.append(one)
        return runs

    original = [run(curve(s, noise=0.03), seed=s) for s in range(3)]
    parity = compare(original, ranks(1.0), 1)
    assert "number of ranks" in parity.tolerance
    assert parity.same, parity.findings
    assert kinds(compare(original, ranks(1.8), 1)) == ["loss"]


def test_the_command_line_starts_without_numpy() -> None:
    code = (
        "import sys, contextlib\nfrom rewriter.cli import main\n"
        "with contextlib.suppress(SystemExit):\n    sys.argv = ['tfboost', {}]; main()\n"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'scipy')))"
    )
    for arguments in ("'--help'", "'rewrite', 'fixtures/image_directory/input.py'"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(arguments)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
