"""Which codemods pay on this machine: measured by leaving each out.

From the whole rewrite, codemods are taken away one at a time, the least useful first, as long as some of them are not
shown to help: that keeps two that pay only together (mixed precision and XLA), and drops both of two that hurt. Every
set is timed in rounds, all sets of a stage in turn, so that what the machine does meanwhile meets all alike.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import speed
from .record import Run
from .validate import Conditions, Mode, Script, Validation, reach, validate, why_not_trained

#: A set of codemods, in the order of their names.
Names = tuple[str, ...]

FEWEST_ROUNDS = 3
MOST_ROUNDS = 7
#: A codemod whose effect looks larger than this, but is not shown, gets more rounds while there is time.
PROMISING = 1.02


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
        self.rounds: dict[Names, list[Run]] = {}
        self.amount: dict[str, Any] = {}
        self.tuning = Tuning(script.path, level, names)

    def tune(self) -> Tuning:
        """Raises nothing for what the scripts do; `Tuning.failure` says why nothing could be measured."""
        tuning = self.tuning
        first = self.timed((), 0)
        if reason := why_not_trained(first):
            tuning.failure = f"{self.script.path.name} {reason}"
            return tuning
        names = self.without_broken(tuning.tried)
        whole = names
        while names:
            names, settled = self.stage(names)
            if settled:
                break
        if whole:
            tuning.whole = speed.compare(*self.pairs((), whole))
            left = speed.compare(*self.pairs((), names))
            if tuning.whole.answer == "faster" and (not names or left.answer != "faster"):
                names = whole
                for name in whole:
                    self.replace_effect(
                        name, kept=True, why="together they make the script faster, none shows it alone"
                    )
        if names and speed.compare(*self.pairs((), names)).answer != "faster":
            for name in names:
                self.replace_effect(name, kept=False, why="the script is not shown to be faster with it")
            names = ()
        self.finish(names)
        return tuning

    # -- sets that are measured ----------------------------------------------------------------------------------

    def timed(self, names: Names, round_number: int) -> Run:
        """The run of a set in a round."""
        found = self.rounds.setdefault(names, [])
        while len(found) <= round_number:
            number = len(found)
            told = " + ".join(names) or "the original"
            self.progress(f"speed of {told}, round {number + 1}", self.elapsed() / self.seconds)
            run = self.store.get(
                ("speed", names, number), lambda: self.conditions.run(self.variant(names), "speed", **self.amount)
            )
            found.append(run)
            if not names and number == 0 and not why_not_trained(run):
                self.amount = reach(run)
        return found[round_number]

    def variant(self, names: Names) -> Script:
        if names not in self.scripts:
            self.scripts[names] = self.rewrite(names)
        content = self.scripts[names]
        return replace(self.script, files={**self.script.files, self.script.path: content}) if names else self.script

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def pairs(self, first: Names, second: Names) -> tuple[list[Run], list[Run]]:
        return self.rounds.get(first, []), self.rounds.get(second, [])

    def without_broken(self, names: Names) -> Names:
        """Leaves out what makes the script fail: alone, or else the whole set one by one."""
        run = self.timed(names, 0) if names else None
        while run is not None and (reason := why_not_trained(run)):
            guilty = [name for name in names if why_not_trained(self.timed((name,), 0))]
            if not guilty:  # they fail only together: the latest one goes
                guilty = [names[-1]]
            for name in guilty:
                alone = self.rounds.get((name,), [])
                why = why_not_trained(alone[0]) if alone and why_not_trained(alone[0]) else reason
                others = tuple(n for n in names if n != name)
                unmeasured = speed.SpeedUp("not measured", "the script fails with it")
                self.tuning.effects.append(Effect(name, others, unmeasured, "not looked at", False, f"it {why}"))
            names = tuple(name for name in names if name not in guilty)
            run = self.timed(names, 0) if names else None
        return names

    def stage(self, names: Names) -> tuple[Names, bool]:
        """Measures the set without each of its codemods; the least useful is dropped. True when all of them help."""
        smaller = {name: tuple(n for n in names if n != name) for name in names}
        contestants = [(), names, *smaller.values()]
        for number in range(MOST_ROUNDS):
            late = self.elapsed() > self.seconds - self.last
            self.tuning.out_of_time |= late
            if late and number < FEWEST_ROUNDS:  # slow data: at least whether all of them together pay
                contestants = [(), names]
            elif late:
                break
            elif number >= FEWEST_ROUNDS:
                open_ = [n for n, less in smaller.items() if self.is_open(speed.compare(*self.pairs(less, names)))]
                if not open_:
                    break
                contestants = [(), names, *(smaller[name] for name in open_)]
            for one in contestants if number % 2 == 0 else contestants[::-1]:
                self.timed(one, number)
        effects = {name: speed.compare(*self.pairs(less, names)) for name, less in smaller.items()}
        measured = {name: found for name, found in effects.items() if found.ratio is not None}
        useless = [name for name, found in measured.items() if found.answer != "faster"]
        if not useless:
            for name, found in effects.items():
                why = "the script is slower without it"
                if name not in measured:
                    why = f"its own effect cannot be measured: {found.reason}"
                self.tuning.effects.append(Effect(name, smaller[name], found, "not looked at", True, why))
            return names, True
        worst = min(useless, key=lambda name: effects[name].ratio or 1.0)
        found = effects[worst]
        why = "the script is faster without it" if found.answer == "slower" else "no difference shown"
        self.tuning.effects.append(Effect(worst, smaller[worst], found, "not looked at", False, why))
        return smaller[worst], False

    @staticmethod
    def is_open(found: speed.SpeedUp) -> bool:
        """Whether more rounds may show that it helps."""
        return found.ratio is None or (found.answer == "no difference shown" and found.ratio > PROMISING)

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
            names = tuple(name for name in names if name not in guilty)
        for number in range(FEWEST_ROUNDS if names else 0):  # what is left after a drop was never timed
            self.timed((), number)
            self.timed(names, number)
        tuning.kept = names
        tuning.after = self.variant(names).files.get(self.script.path, self.scripts[()])
        if tuning.validation is not None:
            original, tuned = self.pairs((), names)
            tuning.validation.timed = (original, tuned)
            tuning.validation.speed = speed.compare(original, tuned)

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
