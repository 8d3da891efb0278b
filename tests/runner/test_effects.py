"""Which codemods help, told from few and noisy runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pytest

from rewriter.runner.effects import Names, Rounds, halves
from rewriter.runner.speed import compare
from tests.runner.test_speed import EVEN, timed

LETTERS = "abcdefghijklmnopqrst"


@pytest.mark.parametrize("count", range(2, 20))
def test_each_two_are_together_as_often_as_apart(count: int) -> None:
    names = tuple(LETTERS[:count])
    sets, others = halves(names)
    assert sets[0] == names and others[0] == ()
    assert len(sets) <= 2 * max(count, 2) and len(sets) % 4 == 0
    for half in (sets, others):
        for a, b in combinations(names, 2):
            counts = {sum((a in s, b in s) == asked for s in half) for asked in ((0, 0), (0, 1), (1, 0), (1, 1))}
            assert counts == {len(half) // 4}


def some(names: Names) -> float:
    """Each of them makes the script a fifth faster."""
    return 0.2 * len(names)


def rounds(
    sets: Sequence[Names], log: Callable[[Names], float], *, count: int = 3, noise: float = 0.0, seed: int = 0
) -> Rounds:
    """Rounds that take what the machine does differently from one to the next, and noise in each run."""
    rng = np.random.default_rng(seed)
    made = Rounds()
    for _ in range(count):
        machine = 0.3 * rng.normal()
        seconds = {s: 0.01 * math.exp(machine - log(s) + noise * rng.normal()) for s in sets}
        made.runs.append({s: timed([[one] * 50] * 2) for s, one in seconds.items()})
    return made


def test_two_sets_are_compared_as_pairs_are() -> None:
    made = rounds([(), ("a",)], some, count=5, noise=0.05)
    found, pairs = made.between((), ("a",)), compare(*([one[names] for one in made.runs] for names in ((), ("a",))))
    assert (found.ratio, found.low, found.high) == pytest.approx((pairs.ratio, pairs.low, pairs.high))
    assert found.answer == pairs.answer == "faster"


def test_sets_that_never_met_are_compared_by_way_of_others() -> None:
    made = rounds([(), ("a",)], some, count=3)
    made.runs += rounds([("a",), ("a", "b")], some, count=3, seed=1).runs
    found = made.between((), ("a", "b"))
    assert found.answer == "faster" and found.ratio == pytest.approx(math.exp(0.4))
    apart = rounds([(), ("a",)], some, count=3)
    apart.runs += rounds([("b",), ("a", "b")], some, count=3, seed=1).runs
    assert apart.between((), ("a", "b")).answer == "not measured"


def test_never_from_two_runs() -> None:
    found = rounds([(), ("a",), ("b",)], some, count=2).between((), ("a",))
    assert found.answer == "not measured" and "2 runs are too few" in found.reason


def test_a_run_that_failed_is_left_out_with_its_reason() -> None:
    made = rounds([(), ("a",)], some, count=4, noise=0.01)
    made.runs[1][("a",)] = timed(EVEN, ending="out-of-memory")
    assert made.between((), ("a",)).answer == "faster"
    made.runs[2][("a",)] = timed(EVEN, ending="out-of-memory")
    found = made.between((), ("a",))
    assert found.answer == "not measured" and "out-of-memory" in found.reason


def test_effects_are_told_from_halves() -> None:
    true = dict(zip("abcdefg", (0.5, 0.1, 0.0, 0.0, -0.2, -0.5, 0.05), strict=True))
    names = tuple(true)
    held = 0
    for seed in range(20):
        made = Rounds()
        for i, half in enumerate(halves(names)):
            made.runs += rounds(half, lambda s: sum(true[n] for n in s), count=1, noise=0.05, seed=2 * seed + i).runs
        each = made.each(names)
        assert each["a"].answer == "faster" and each["f"].answer == "slower"
        held += sum(found.low <= math.exp(true[n]) <= found.high for n, found in each.items())  # type: ignore[operator]
    assert 0.9 <= held / (20 * len(names)) <= 0.99


@pytest.mark.parametrize("pair", list(combinations("abcdef", 2)))
def test_two_that_help_only_together_show_it(pair: tuple[str, str]) -> None:
    """The others are not given any of it."""

    def log(names: Names) -> float:
        return 0.9 if {*pair} <= {*names} else -0.4 * len({*pair} & {*names})

    made, names = Rounds(), tuple("abcdef")
    for half in halves(names):
        made.runs += rounds(half, log, count=1).runs
    each = made.each(names)
    assert all(each[name].ratio == pytest.approx(math.exp(0.45)) for name in pair)
    assert all(each[name].ratio == pytest.approx(1) for name in names if name not in pair)


def test_nothing_is_told_of_codemods_that_were_always_together() -> None:
    each = rounds([(), ("a", "b"), ("a", "b", "c")], some).each(("a", "b", "c"))
    assert each["a"].answer == each["b"].answer == "not measured"
    assert each["c"].ratio == pytest.approx(math.exp(0.2))


def test_what_one_does_to_another_can_be_left_out() -> None:
    """`b` hurts, and takes from `a` what it gains."""

    def log(names: Names) -> float:
        return 0.3 * (names == ("a",)) - 0.5 * ("b" in names)

    made = rounds([(), ("a",), ("b",), ("a", "b")], log, count=2)
    assert made.each(("a", "b"))["a"].ratio == pytest.approx(math.exp(0.15))
    alone = made.each(("a",), without=("b",))["a"]
    assert alone.ratio == pytest.approx(math.exp(0.3)) and alone.low == pytest.approx(alone.high)


def test_few_runs_give_no_interval() -> None:
    made = rounds([(), ("a",)], some, count=1)
    found = made.each(("a",))["a"]
    assert found.ratio == pytest.approx(math.exp(0.2)) and found.answer == "no difference shown"
    assert found.low is None and found.high is None
    assert made.between((), ("a",)).ratio is None
