"""Which codemods pay on this machine: measured by leaving each out.

Where there are several, those that gain nothing on the average over sets of half of the others go first. From the rest
codemods are taken away one at a time, as long as some of them are not shown to help: that keeps two that pay only
together (mixed precision and XLA), and drops both of two that hurt. Every set is timed in rounds, all sets of a stage
in turn, so that what the machine does meanwhile meets all alike. In the end what is left is measured against all.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import speed
from .effects import Names, Rounds, halves
from .record import Run
from .validate import Conditions, Mode, Script, Validation, reach, validate, why_not_trained

FEWEST_ROUNDS = 3
MOST_ROUNDS = 7
#: Of the last comparison, even where the time is over: all the others would have been for nothing. While there is
#: time, up to `LAST_ROUNDS`.
ENOUGH_ROUNDS = 5
LAST_ROUNDS = 15
#: A run takes at most so many times as long as the first of the original: what is slower need not be known better.
LONGEST = 1.5
#: Runs that the last comparison takes, without those that were made before.
LAST_RUNS = 4
#: A codemod whose effect looks larger than this, but is not shown, gets more rounds while there is time.
PROMISING = 1.02
#: If it looks larger than this in all that was measured, the codemod stays though it is not shown.
PROBABLE = 1.05


def without(names: Names, *dropped: str) -> Names:
    return tuple(name for name in names if name not in dropped)


@dataclass(frozen=True)
class Effect:
    """What one codemod does to the speed of the script, in the company of those that it was measured with."""

    codemod: str
    company: Names  # the others of the set
    speed: speed.SpeedUp
    parity: str  # "same", "not looked at", or the findings that fail
    kept: bool
    why: str


@dataclass
class Tuning:
    """The surviving codemods with the script that they make, and the effect of each one that was tried."""

    script: Path
    level: int
    tried: Names
    kept: Names = ()
    effects: list[Effect] = field(default_factory=list)
    after: bytes = b""
    whole: speed.SpeedUp | None = None  # of everything that was tried
    validation: Validation | None = None  # of what survives
    failure: str = ""
    out_of_time: bool = False
    one_epoch: bool = False  # the measured runs ended in their first epoch

    @property
    def exit_code(self) -> int:
        """0 tuned, also when nothing pays; 2 could not be run."""
        return 2 if self.failure else 0


class Store:
    """Runs that were made, kept in a file, so that an interrupted tuning can go on."""

    def __init__(self, path: Path, identity: dict[str, Any], resume: bool) -> None:
        self.path = path
        self.runs: dict[str, Run] = {}
        header = json.dumps({"tfboost tune": 1, **identity}, sort_keys=True)
        if resume and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            if lines and lines[0] == header:
                for line in lines[1:]:
                    try:
                        entry = json.loads(line)
                    except ValueError:  # cut off by the interruption
                        continue
                    self.runs[entry["key"]] = Run.restored(entry["run"])
                path.write_text("".join(line + "\n" for line in self._lines(header)), encoding="utf-8")
                return
        path.write_text(header + "\n", encoding="utf-8")

    def _lines(self, header: str) -> Iterator[str]:
        yield header
        for key, run in self.runs.items():
            yield json.dumps({"key": key, "run": run.stored()})

    def get(self, key: Sequence[object], make: Callable[[], Run]) -> Run:
        """The stored run, or a new one, which is stored."""
        name = json.dumps(key)
        if name not in self.runs:
            self.runs[name] = make()
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": name, "run": self.runs[name].stored()}) + "\n")
        return self.runs[name]

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class Tuner:
    """rewrite: the script with exactly these codemods. budget: minutes for all of it, the last validation included."""

    def __init__(
        self,
        script: Script,
        names: Names,
        rewrite: Callable[[Names], bytes],
        conditions: Conditions,
        level: int,
        budget: float,
        store: Store,
        progress: Callable[[str, float], None] = lambda text, share: None,
    ) -> None:
        self.script, self.conditions, self.level, self.store = script, conditions, level, store
        self.rewrite, self.progress = rewrite, progress
        self.seconds = 60 * budget
        self.begin = time.monotonic()
        self.last = self.seconds / 4  # kept for the validation
        self.scripts: dict[Names, bytes] = {(): script.path.read_bytes()}
        self.rounds = Rounds()
        self.number = 0  # of the next round
        self.amount: dict[str, Any] = {}
        self.tuning = Tuning(script.path, level, names)

    def tune(self) -> Tuning:
        """Raises nothing for what the scripts do; `Tuning.failure` says why nothing could be measured."""
        tuning = self.tuning
        first = self.timed((), 0)
        if reason := why_not_trained(first):
            tuning.failure = f"{self.script.path.name} {reason}"
            return tuning
        tuning.one_epoch = not any(record.epochs for record in first.records)
        whole = names = self.without_pointless(self.without_broken(tuning.tried))
        if len(names) > 1:
            names = self.screened(names)
        while names:
            names, settled = self.stage(names)
            if settled:
                break
        self.finish(self.best(whole, names) if whole else ())
        return tuning

    # -- sets that are measured ----------------------------------------------------------------------------------

    def timed(self, names: Names, number: int) -> Run:
        """The run of a set in a round."""
        while len(self.rounds.runs) <= number:
            self.rounds.runs.append({})
        made = self.rounds.runs[number]
        if names not in made:
            told = " + ".join(names) or "the original"
            self.progress(f"speed of {told}, round {number + 1}", self.elapsed() / self.seconds)
            made[names] = self.store.get(
                ("speed", names, number), lambda: self.conditions.run(self.variant(names), "speed", **self.amount)
            )
            if not self.amount and not names and not why_not_trained(made[names]):
                self.amount = {**reach(made[names]), "longest": LONGEST * self.spent(made[names])}
        return made[names]

    @staticmethod
    def spent(run: Run) -> float:
        """Seconds of training."""
        ends = [step.time for record in run.records for step in record.steps]
        return max(ends) - min(ends)

    def round(self, sets: Sequence[Names]) -> None:
        """One more run of each set; in the first round some were made before."""
        for names in sets if self.number % 2 == 0 else sets[::-1]:
            self.timed(names, self.number)
        self.number += 1

    def at_least(self, count: int, sets: Sequence[Names]) -> None:
        """Rounds until all sets have met so often."""
        while len(self.together(*sets)[0]) < count:
            self.round(sets)

    def together(self, *sets: Names) -> tuple[list[Run], ...]:
        """The runs of the rounds in which all of the sets were measured."""
        met = [made for made in self.rounds.runs if all(names in made for names in sets)]
        return tuple([made[names] for made in met] for names in sets)

    def fits(self, sets: Sequence[Names], then: int = LAST_RUNS) -> bool:
        """Whether there is time for a round of them, and for so many runs after it."""
        runs = [run.seconds for made in self.rounds.runs for run in made.values()]
        made = self.rounds.runs[self.number] if self.number < len(self.rounds.runs) else {}
        needed = (len(set(sets) - set(made)) + then) * sum(runs) / len(runs)
        enough = self.elapsed() + needed <= self.seconds - self.last
        self.tuning.out_of_time |= not enough
        return enough

    def variant(self, names: Names) -> Script:
        if names not in self.scripts:
            self.scripts[names] = self.rewrite(names)
        content = self.scripts[names]
        return replace(self.script, files={**self.script.files, self.script.path: content}) if names else self.script

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def without_broken(self, names: Names) -> Names:
        """Leaves out what makes the script fail: alone, or else the whole set one by one."""
        run = self.timed(names, 0) if names else None
        while run is not None and (reason := why_not_trained(run)):
            alone = {name: why_not_trained(self.timed((name,), 0)) for name in names}
            guilty = [name for name in names if alone[name]] or [names[-1]]  # they fail only together: the latest goes
            for name in guilty:
                unmeasured = speed.SpeedUp("not measured", "the script fails with it")
                self.tell(name, names, unmeasured, kept=False, why=f"it {alone[name] or reason}")
            names = without(names, *guilty)
            run = self.timed(names, 0) if names else None
        return names

    def without_pointless(self, names: Names) -> Names:
        """Leaves out `steps-per-execution` where a call of so many steps fills the run: what calls cost is nothing."""
        name = "steps-per-execution"
        if name in names and speed.why_not(self.timed(names, 0)).startswith("too short"):
            left = without(names, name)
            if not left or not speed.why_not(self.timed(left, 0)):
                unmeasured = speed.SpeedUp("not measured", "the calls are too long")
                why = "a call would take seconds: what calls cost beside their steps is nothing"
                self.tell(name, names, unmeasured, kept=False, why=why)
                return left
        return names

    def screened(self, names: Names) -> Names:
        """Leaves out what makes the script no faster on the average over sets of half of the others."""
        for then, sets in zip((0, LAST_RUNS), halves(names), strict=True):
            if not self.fits(sets, then):
                break
            self.round(sets)
        return self.averaged(names)

    def averaged(self, names: Names) -> Names:
        """Leaves out what gains nothing on the average over the sets that were measured, the worst first.

        One that hurts may do so by what it makes of another: that stays if it gains something where the first is not.
        """
        averages = self.rounds.each(self.tuning.tried)
        dropped: Names = ()
        for name in sorted(names, key=lambda name: averages[name].ratio or math.inf):
            found = averages[name]
            useless = found.ratio is not None and found.ratio <= 1
            sets = "that were tried"
            if useless and dropped:
                alone = self.rounds.each(without(self.tuning.tried, *dropped), without=dropped)[name]
                if alone.ratio is not None and alone.ratio > 1:
                    found, useless, sets = alone, False, f"without {' and '.join(dropped)}"
            told = "slower" if found.answer == "slower" else "no faster" if useless else "faster"
            why = f"the script is {told} with it on the average over the sets {sets}"
            if found.ratio is None:
                why = f"its own effect cannot be measured: {found.reason}"
            self.tell(name, names, found, kept=not useless, why=why)
            dropped += (name,) if useless else ()
        return without(names, *dropped)

    def stage(self, names: Names) -> tuple[Names, bool]:
        """Measures the set without each of its codemods, and drops what is of no use. True when all of them help."""
        smaller = {name: without(names, name) for name in names}
        sets = [names, *smaller.values()]
        for number in range(MOST_ROUNDS):
            if number >= FEWEST_ROUNDS:
                open_ = [n for n, less in smaller.items() if self.is_open(self.rounds.between(less, names))]
                sets = [names, *(smaller[name] for name in open_)]
                if not open_:
                    break
            if not self.fits(sets):
                if 0 < number < FEWEST_ROUNDS:
                    return self.averaged(names), True
                break
            self.round(sets)
        effects = {name: self.rounds.between(less, names) for name, less in smaller.items()}
        averages = self.rounds.each(self.tuning.tried)  # which rest on more runs
        for name in names:
            helps = averages[name].answer == "faster" and effects[name].answer != "faster"
            if helps and (effects[name].ratio or 0) > 1:
                effects[name] = averages[name]
        known = {e.codemod for e in self.tuning.effects}
        useless = []
        for name, found in effects.items():
            why = "the script is slower without it"
            if found.ratio is None:
                why = f"its own effect cannot be measured: {found.reason}"
            elif found.answer != "faster":
                why = "the script is probably slower without it"
                if min(found.ratio, averages[name].ratio or found.ratio) <= PROBABLE:
                    useless.append(name)
            if found.ratio is not None or name not in known:
                self.tell(name, names, found, kept=True, why=why)
        if not useless:
            return names, True
        if self.is_as_fast(without(names, *useless), names):
            dropped = useless
        else:
            dropped = [min(useless, key=lambda name: effects[name].ratio or 1)]
        for name in dropped:
            slower = effects[name].answer == "slower"
            why = "the script is faster without it" if slower else "no difference shown"
            self.tell(name, names, effects[name], kept=False, why=why)
        return without(names, *dropped), False

    def is_as_fast(self, less: Names, names: Names) -> bool:
        """Whether several codemods can be left out together: either of two may do what both do."""
        if len(names) - len(less) == 1:
            return True
        for _ in range(FEWEST_ROUNDS):
            if not self.fits([less, names]):
                return False
            self.round([less, names])
        ratio = self.rounds.between(less, names).ratio
        return ratio is not None and ratio < PROMISING

    @staticmethod
    def is_open(found: speed.SpeedUp) -> bool:
        """Whether more rounds may show that it helps."""
        return found.ratio is None or (found.answer == "no difference shown" and found.ratio > PROMISING)

    def best(self, whole: Names, names: Names) -> Names:
        """What is left, or everything where that is faster; nothing where neither is shown to be faster.

        Where time is short everything is not measured again.
        """
        last = [(), names or whole]
        if names and whole != names and self.fits([*last, whole]):
            last.append(whole)
        for count in range(FEWEST_ROUNDS, LAST_ROUNDS + 1):
            if count > ENOUGH_ROUNDS and not self.fits(last, then=0):
                break
            self.at_least(count, last)
            if not self.is_open(self.rounds.between(*last[:2])):
                break
        self.tuning.whole = self.rounds.between((), whole)
        left, more = self.rounds.between((), names), self.rounds.between(names, whole)
        if self.tuning.whole.answer == "faster" and (
            left.answer != "faster" or (more.ratio is not None and more.ratio > PROBABLE)
        ):
            for effect in list(self.tuning.effects):
                if effect.codemod in without(whole, *names):
                    self.replace_effect(
                        effect.codemod, kept=True, why="together they make the script faster than without some of them"
                    )
            return whole
        if left.answer != "faster":
            for name in names:
                self.replace_effect(name, kept=False, why="the script is not shown to be faster with it")
            return ()
        return names

    # -- what survives -------------------------------------------------------------------------------------------

    def finish(self, names: Names) -> None:
        """The survivors must train the same; those that do not are dropped."""
        tuning = self.tuning
        while names:
            found = self.judged(names)
            if found.parity is None or found.parity.same:
                tuning.validation = found
                for name in names:
                    self.replace_effect(name, parity="same")
                break
            alone = {name: self.judged((name,)) for name in names}
            failing = {name: one for name, one in alone.items() if not (one.parity and one.parity.same)}
            guilty = list(failing) or [names[-1]]
            for name in guilty:
                told = failing.get(name, found).parity
                kinds = ", ".join(dict.fromkeys(f.kind for f in told.findings if f.fails)) if told else "not compared"
                self.replace_effect(name, parity=kinds, kept=False, why=f"it does not train the same ({kinds})")
            names = without(names, *guilty)
        if names:  # what is left after a drop was never timed
            self.at_least(FEWEST_ROUNDS, [(), names])
        tuning.kept = names
        tuning.after = self.variant(names).files.get(self.script.path, self.scripts[()])
        if tuning.validation is not None:
            original, tuned = self.together((), names)
            tuning.validation.timed = (original, tuned)
            fast = speed.compare(original, tuned)
            if fast.ratio is None:  # over the same samples there may be too few calls of many steps
                fast = self.rounds.between((), names)
            tuning.validation.speed = fast

    def judged(self, names: Names) -> Validation:
        """Parity alone: the speed is measured already."""
        made: Counter[object] = Counter()

        def remembered(script: Script, mode: Mode, *, seed: int = 0, **asked: Any) -> Run:
            key = (mode, names if script.files else (), seed, "unseeded" in asked)
            made[key] += 1
            return self.store.get((*key, made[key]), lambda: self.conditions.run(script, mode, seed=seed, **asked))

        told = " + ".join(names)
        return validate(
            self.script,
            self.variant(names),
            self.conditions,
            self.level,
            pairs=0,
            run=remembered,
            progress=lambda text, done, total: self.progress(
                f"losses of {told}, run {done + 1} of {total}", self.elapsed() / self.seconds
            ),
        )

    def tell(self, name: str, names: Names, found: speed.SpeedUp, *, kept: bool, why: str) -> None:
        """What is known last of a codemod, measured in a set."""
        effect = Effect(name, without(names, name), found, "not looked at", kept, why)
        self.tuning.effects = [e for e in self.tuning.effects if e.codemod != name] + [effect]

    def replace_effect(self, name: str, **changes: Any) -> None:
        effects = self.tuning.effects
        for i, effect in enumerate(effects):
            if effect.codemod == name:
                effects[i] = replace(effect, **changes)


def identity(script: Script, names: Names, conditions: Conditions, level: int) -> dict[str, Any]:
    """What must be the same for stored runs to count."""
    return {
        "script": hashlib.sha256(script.path.read_bytes()).hexdigest(),
        "args": list(script.args),
        "codemods": list(names),
        "level": level,
        "python": conditions.python,
        "budget": conditions.budget,
        "steps": conditions.steps,
        "synthetic": conditions.synthetic,
    }
