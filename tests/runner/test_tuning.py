"""What `tune` decides, with a machine that is made up: its speeds are known, and its noise is that of a busy one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rewriter.runner.effects import Names
from rewriter.runner.parity import Parity
from rewriter.runner.record import Run
from rewriter.runner.report import tuning_as_json, tuning_as_text
from rewriter.runner.tune import LAST_ROUNDS, MOST_ROUNDS, Store, Tuner
from rewriter.runner.validate import Conditions, Script, Validation
from tests.runner.test_speed import timed

NAMES = ("mixed", "map", "cache", "prefetch", "steps", "xla")


@dataclass
class Machine:
    """log: the logarithm of how many times as fast a set is. A run takes 12 s, or as much longer as the set is slow."""

    log: Callable[[Names], float]
    noise: float
    seed: int
    runs: list[Names] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def run(self, script: Script, mode: str, **asked: Any) -> Run:
        names = tuple(script.args)
        self.runs.append(names)
        drift = 0.1 * math.sin(len(self.runs) / 5)
        seconds = 0.02 * math.exp(drift - self.log(names) + self.noise * self.rng.normal())
        return replace(timed([[seconds] * 50] * 4), seconds=8 + 200 * seconds)


class Simulated(Tuner):
    def variant(self, names: Names) -> Script:
        return replace(self.script, args=names)

    def elapsed(self) -> float:
        return sum(run.seconds for made in self.rounds.runs for run in made.values())

    def judged(self, names: Names) -> Validation:
        return Validation(self.script.path, self.script.path, 2, Parity((), "", 10))


def tuned(folder: Path, machine: Machine, minutes: float, names: Names = NAMES) -> Tuner:
    path = folder / "train.py"
    path.write_text("")
    store = Store(folder / "state", {}, resume=False)
    tuner = Simulated(
        Script(path), names, lambda _: b"", cast(Conditions, machine), level=2, budget=minutes, store=store
    )
    tuner.tune()
    return tuner


def gru(names: Names) -> float:
    """As measured for a recurrent network on a CPU: 16 bits hurt, a cache and XLA help."""
    true = {"mixed": -0.5, "map": -0.05, "cache": 0.3, "prefetch": 0.0, "steps": 0.2, "xla": 0.6}
    return sum(true[name] for name in names)


def together(names: Names) -> float:
    """Lower precision pays only where it is compiled, and compiling only with lower precision."""
    return 0.8 if {"mixed", "xla"} <= {*names} else -0.2 * len({"mixed", "xla"} & {*names})


def instead(names: Names) -> float:
    """Any of the three does what all do."""
    return 0.5 if {"map", "cache", "prefetch"} & {*names} else 0.0


def some(names: Names) -> float:
    return 0.3 * len(names)


def nothing(names: Names) -> float:
    return 0.0


CASES: dict[str, Callable[[Names], float]] = {"gru": gru, "together": together, "instead": instead}


@pytest.mark.parametrize("minutes", [5.0, 15.0])
@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_is_about_as_fast_as_can_be(case: str, minutes: float, tmp_path: Path) -> None:
    """With noise of 12 % from run to run."""
    log = CASES[case]
    best = 1.1 if case == "gru" else 0.8 if case == "together" else 0.5
    good = 0
    for seed in range(10):
        tuner = tuned(tmp_path, Machine(log, 0.12, seed), minutes)
        reached = log(tuner.tuning.kept)
        assert reached >= 0, tuner.tuning
        good += reached > best + math.log(0.9)
    assert good >= 9


def test_nothing_is_kept_where_nothing_helps(tmp_path: Path) -> None:
    kept = sum(bool(tuned(tmp_path, Machine(nothing, 0.12, seed), 10.0).tuning.kept) for seed in range(10))
    assert kept <= 1


@pytest.mark.parametrize("minutes", [3.0, 5.0, 10.0, 15.0])
def test_the_time_is_kept_to(minutes: float, tmp_path: Path) -> None:
    """A quarter of it is for comparing losses; the last comparison of speeds may take some of that."""
    for case in CASES.values():
        tuner = tuned(tmp_path, Machine(case, 0.12, 1), minutes)
        assert tuner.elapsed() <= 60 * minutes


def compiled_badly(names: Names) -> float:
    """As measured for wide layers on a CPU: 16 bits help, XLA hurts more."""
    return 0.3 * ("mixed" in names) - 1.0 * ("xla" in names)


def kept_of_three(folder: Path, log: Callable[[Names], float], minutes: float) -> list[Names]:
    """Of these three, on ten days."""
    names = ("mixed", "steps", "xla")
    return [tuned(folder, Machine(log, 0.1, seed), minutes, names).tuning.kept for seed in range(10)]


@pytest.mark.parametrize("minutes", [3.0, 6.0])
def test_what_hurts_hides_nothing_where_time_is_short(minutes: float, tmp_path: Path) -> None:
    kept = kept_of_three(tmp_path, compiled_badly, minutes)
    assert sum("mixed" in names and "xla" not in names for names in kept) >= 9


def compiled_worse(names: Names) -> float:
    """As measured for a transformer on a CPU: 16 bits help, but not where they are compiled."""
    return 0.04 * ("steps" in names) + 0.27 * ("mixed" in names) - 0.4 * ("xla" in names) * (1 + 2 * ("mixed" in names))


@pytest.mark.parametrize("minutes", [3.0, 4.0, 6.0])
def test_what_one_makes_of_another_hides_nothing(minutes: float, tmp_path: Path) -> None:
    kept = kept_of_three(tmp_path, compiled_worse, minutes)
    assert sum("mixed" in names and "xla" not in names for names in kept) >= 8


def test_the_last_comparison_goes_on_while_there_is_time(tmp_path: Path) -> None:
    """A small effect in much noise."""

    def small(names: Names) -> float:
        return 0.1 * ("steps" in names)

    def met(minutes: float) -> int:
        rounds = tuned(tmp_path, Machine(small, 0.3, 3), minutes, ("steps",)).rounds.runs
        return sum(() in made and ("steps",) in made for made in rounds)

    assert met(4.0) <= MOST_ROUNDS < met(15.0) <= LAST_ROUNDS


def test_each_codemod_is_told_of_once(tmp_path: Path) -> None:
    for minutes in (3.0, 15.0):
        effects = tuned(tmp_path, Machine(gru, 0.12, 1), minutes).tuning.effects
        assert sorted(effect.codemod for effect in effects) == sorted(NAMES)


def test_calls_that_fill_a_run_are_pointless(tmp_path: Path) -> None:
    """As for a wide model, of which a call of many steps takes as long as a run."""

    class Wide(Machine):
        def run(self, script: Script, mode: str, **asked: Any) -> Run:
            found = super().run(script, mode, **asked)
            return replace(timed([[4.0]]), seconds=12) if "steps-per-execution" in script.args else found

    tuner = tuned(tmp_path, Wide(some, 0.05, 1), 5.0, ("mixed", "steps-per-execution"))
    assert tuner.tuning.kept == ("mixed",)
    told = {effect.codemod: effect for effect in tuner.tuning.effects}["steps-per-execution"]
    assert not told.kept and "what calls cost" in told.why


def test_few_long_calls_are_compared_over_their_own_steady_states(tmp_path: Path) -> None:
    """One alone of them lies in what of the original runs evenly."""

    class Long(Machine):
        def run(self, script: Script, mode: str, **asked: Any) -> Run:
            super().run(script, mode, **asked)
            one = 0.02 * math.exp(0.02 * self.rng.normal() - self.log(script.args))
            calls = [[66 * one] * 4] if script.args else [[2 * one] * 80 + [one] * 120]
            return replace(timed(calls, execution=66 if script.args else 1), seconds=12)

    tuning = tuned(tmp_path, Long(lambda names: 0.4 * len(names), 0.0, 1), 8.0, ("steps",)).tuning
    assert tuning.kept and tuning.validation is not None and tuning.validation.speed is not None
    assert tuning.validation.speed.answer == "faster"
    assert tuning.validation.speed.ratio == pytest.approx(math.exp(0.4), rel=0.1)


@pytest.mark.parametrize("seen", [True, False])
def test_runs_within_an_epoch_are_told(seen: bool, tmp_path: Path) -> None:
    """What a cache gains shows in the second."""

    class Cut(Machine):
        def run(self, script: Script, mode: str, **asked: Any) -> Run:
            found = super().run(script, mode, **asked)
            return found if seen else replace(found, records=[replace(found.records[0], epochs=[])])

    tuner = tuned(tmp_path, Cut(some, 0.05, 1), 3.0, ("cache", "map"))
    text = "".join(str(line) for line in tuning_as_text(tuner.tuning, tmp_path / "fast.py"))
    assert ("the runs ended in their first epoch" in text) is not seen
    assert tuning_as_json(tuner.tuning, tmp_path / "fast.py")["one_epoch"] is not seen


def test_a_slow_set_is_stopped_early(tmp_path: Path) -> None:
    asked = []

    class Watched(Machine):
        def run(self, script: Script, mode: str, **more: Any) -> Run:
            asked.append(more)
            return super().run(script, mode, **more)

    tuned(tmp_path, Watched(gru, 0.0, 1), 3.0)
    spent = 0.02 * 199
    assert asked[0] == {} and asked[1]["samples"] == 200 * 32
    assert asked[1]["longest"] == pytest.approx(1.5 * spent, rel=0.05)
