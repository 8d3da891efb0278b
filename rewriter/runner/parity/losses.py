"""Training losses: step by step at level 1, as curves over several seeds above it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..record import Run
from .finding import Array, Finding, Key, first_of_each_seed, percent, place_of, scale_of, tolerance_at

WINDOWS = 8
#: A loss curve may be off by this share of the loss: half precision costs 0.001 to 0.01.
FLOOR = 0.03
#: Where the loss hardly falls, a difference of less than this share of the fall is none ...
FALL = 0.5
#: ... and this share of the loss is the least that is looked at.
LEAST = 0.005
#: A limit above this share of the loss is worth a remark.
COARSE = 0.2
#: False alarms of one comparison, where the noise is what the model says. Simulated runs of all kinds (see the tests)
#: then alarm less than once in a thousand times, and 5 standard deviations are found in 95 of a hundred, where a seed
#: means the same to both scripts.
ALARMS = 2e-4
#: How much alike two runs of one seed stay: they share weights and batches, rounding drives them apart.
ALIKE = 0.8
#: Limits below so many standard deviations of the original are not believed.
FEWEST_DEVIATIONS = 2


class Point(NamedTuple):
    position: int  # samples (or steps) of all ranks since the epoch began
    steps: int  # since training began
    loss: float  # mean over the ranks
    whole: int  # steps that this execution covered


def _points(run: Run, unit: str) -> dict[Key, list[Point]]:
    """The losses of all loops, ranks put together, up to the first one that is not a number."""
    ranks: list[dict[Key, list[tuple[int, int, float | None, int]]]] = []
    for record in run.records:
        series = defaultdict(list)
        reached: dict[Key, int] = defaultdict(int)
        steps = 0
        for step in record.steps:
            key = (step.loop, step.epoch)
            steps += step.steps
            reached[key] += step.samples if unit == "samples" else step.steps
            series[key].append((reached[key], steps, step.loss, step.steps))
        ranks.append(series)
    merged: dict[Key, list[Point]] = {}
    for key in ranks[0] if ranks else ():
        points: list[Point] = []
        for rows in zip(*(rank.get(key, ()) for rank in ranks), strict=False):
            losses = [row[2] for row in rows if row[2] is not None]
            if any(not math.isfinite(loss) for loss in losses):
                return merged | ({key: points} if points else {})
            if losses:
                position = sum(row[0] for row in rows)
                points.append(Point(position, rows[0][1], sum(losses) / len(losses), rows[0][3]))
        if points:
            merged[key] = points
    return merged


def _kinds(run: Run) -> dict[int, str]:
    return {loop.id: loop.loss for record in run.records[:1] for loop in record.loops}


def _mass(points: Sequence[Point], kind: str) -> tuple[Array, Array]:
    """Positions, and the losses summed up to each of them: what a running mean and the batches' losses both are."""
    at = np.array([0, *(p.position for p in points)], float)
    losses = np.array([p.loss for p in points], float)
    sums = losses * at[1:] if kind == "mean" else np.cumsum(losses * np.diff(at))
    return at, np.array([0.0, *sums])


def losses(run: Run, unit: str) -> dict[int, tuple[Array, Array]]:
    """For each loop how far it came (samples or steps, from 0 on), and the losses summed up to there, as `_mass`."""
    kinds = _kinds(run)
    found: dict[int, tuple[Array, Array]] = {}
    for (loop, _), points in sorted(_points(run, unit).items()):
        at, sums = _mass(points, kinds.get(loop, "batch"))
        if loop in found:
            before, mass = found[loop]
            at, sums = np.array([*before, *(before[-1] + at[1:])]), np.array([*mass, *(mass[-1] + sums[1:])])
        found[loop] = at, sums
    return found


def _repeats(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Runs with their own seed's first."""
    first = first_of_each_seed(runs)
    return ((first[run.seed], run) for run in runs if run is not first[run.seed])


@dataclass
class Losses:
    """Compares the training losses, by the strongest means that the runs allow."""

    original: Sequence[Run]
    rewritten: Sequence[Run]
    level: int
    findings: list[Finding] = field(default_factory=list)
    tolerance: list[str] = field(default_factory=list)
    compared: int = 0
    exact: bool = False  # whether the same seed gives the same numbers
    settled: bool = False  # whether the findings stay, whatever further runs show
    blind: float = 0.0  # the share of the loss that may be off unnoticed

    def judge(self) -> None:
        runs = [*self.original, *self.rewritten]
        steps = [step for run in runs for record in run.records for step in record.steps]
        self.unit = "samples" if all(step.samples for step in steps) else "steps"
        self.points = {id(run): _points(run, self.unit) for run in runs}
        a, b = first_of_each_seed(self.original), first_of_each_seed(self.rewritten)
        self.pairs = [(a[seed], b[seed]) for seed in a if seed in b]
        if self._together():
            return
        if self.level == 1 and (reason := self._not_exact()):
            self.tolerance.append(f"{reason}: compared as loss curves.")
        elif self.level == 1 and (reason := self._no_longer_repeats()) and not self._seeded():
            self.tolerance.append(f"The script sets no seed, and {reason}: compared as loss curves.")
        elif self.level == 1:
            self._step_by_step()
            if self.exact or self.findings:
                repeated = [any(True for _ in _repeats(runs)) for runs in (self.original, self.rewritten)]
                self.settled = bool(self.findings) and all(repeated)
                if reason:
                    self.findings.append(Finding("not-repeatable", reason))
                return
        self._curves()

    def _not_exact(self) -> str:
        """Why losses cannot be compared step by step, or nothing."""
        if not self.pairs:
            return "No two runs have the same seed"
        if scale_of(self.original) != scale_of(self.rewritten):
            return "The number of ranks differs, and so do the batches"
        for first, again in _repeats(self.original):
            for _, _, steps, drift in self._drifts(first, again):
                if drift > tolerance_at(steps):
                    return f"The original does not repeat itself (off by {drift:.2g} after {steps} steps, same seed)"
        if not any(True for a, b in self.pairs for _ in self._drifts(a, b)):
            return "The losses of both were recorded at different places"
        return ""

    def _seeded(self) -> bool:
        return any(record.seeded for run in self.original for record in run.records)

    def _no_longer_repeats(self) -> str:
        """How the rewritten script differs from itself, if it does at the same seed; the original does not."""
        if not any(True for _ in _repeats(self.original)):
            return ""
        for first, again in _repeats(self.rewritten):
            trail: list[tuple[int, float]] = []
            for _, _, steps, drift in self._drifts(first, again):
                if drift > tolerance_at(steps):
                    if _chaotic(trail, steps, drift):
                        break
                    after = f"{percent(drift)} apart after {steps} steps"
                    return f"two runs of the rewritten one at the same seed are {after}, the original's are not"
                trail.append((steps, drift))
        return ""

    def _drifts(self, a: Run, b: Run) -> Iterator[tuple[Key, Point, int, float]]:
        """Key, the second run's point, steps and relative difference, wherever both have a loss."""
        kinds = _kinds(a), _kinds(b)
        for key, first in self.points[id(a)].items():
            second = self.points[id(b)].get(key, [])
            kind = kinds[0].get(key[0]), kinds[1].get(key[0])
            if kind[0] != kind[1]:  # a running mean against the batches' own losses
                first, second = _means(first, kind[0] or "batch"), _means(second, kind[1] or "batch")
            there = {p.position: p for p in second}
            highest = 0.0
            for p in first:
                highest = max(highest, abs(p.loss))
                if q := there.get(p.position):
                    scale = max(abs(p.loss), 0.1 * highest) or 1.0
                    yield key, q, max(p.steps, q.steps), abs(p.loss - q.loss) / scale

    def _step_by_step(self) -> None:
        own: list[tuple[int, float]] = []
        for first, again in _repeats(self.original):
            own += [(steps, drift) for _, _, steps, drift in self._drifts(first, again)]
        own.sort()
        steps_seen = np.array([0, *(steps for steps, _ in own)])
        drift_seen = np.maximum.accumulate([0.0, *(drift for _, drift in own)])
        text = "Losses at the same step may differ by rounding: relatively 1e-5 at first, 1e-3 after 100 steps"
        if len(own):
            text += f", or four times what the original differs from itself by (at most {drift_seen[-1]:.2g})"
        self.tolerance.append(text + ".")
        self.exact = True
        for a, b in self.pairs:
            trail: list[tuple[int, float]] = []
            for key, point, steps, drift in self._drifts(a, b):
                self.compared += 1
                allowed = max(tolerance_at(steps), 4 * drift_seen[np.searchsorted(steps_seen, steps, "right") - 1])
                if drift > allowed:
                    self.exact = False
                    if _chaotic(trail, steps, drift):
                        text = f"Rounding, amplified by training, drives them apart after {steps} steps (seed {b.seed})"
                        self.tolerance.append(f"{text}, from where on loss curves are compared.")
                        break
                    message = f"the loss is off by {percent(drift)} after {steps} steps, allowed is {percent(allowed)}"
                    kind = "loss"
                    if self._stands_still(a, b, key[0]):
                        kind = "stalled"
                        message = f"the original's loss falls, the rewritten script's does not; {message}"
                    where = f"{place_of(key)}, after {point.position} {self.unit}, seed {b.seed}"
                    self.findings.append(Finding(kind, message, where))
                    return
                trail.append((steps, drift))

    def _together(self) -> bool:
        """Whether several ranks have the losses of one process that has their batches, step by step.

        That is so where nothing is drawn at random; else curves are compared.
        """
        if not self.pairs or scale_of(self.original) == scale_of(self.rewritten):
            return False
        drifts = [pair for a, b in self.pairs for pair in self._drifts_together(a, b)]
        if not drifts or any(drift > tolerance_at(steps) for steps, drift in drifts):
            return False
        self.exact, self.compared = True, len(drifts)
        self.tolerance.append(
            f"The losses are those of one process with the same batches, step by step, up to rounding"
            f" ({max(drift for _, drift in drifts):.1g} at most)."
        )
        return True

    def _drifts_together(self, a: Run, b: Run) -> Iterator[tuple[int, float]]:
        """Steps and relative difference, wherever a step of all ranks ends; infinite where none can be told."""
        kinds = _kinds(a), _kinds(b)
        for key, second in self.points[id(b)].items():
            first = self.points[id(a)].get(key, [])
            kind = kinds[0].get(key[0], "batch"), kinds[1].get(key[0], "batch")
            (at, sums), (places, masses) = _mass(first, kind[0]), _mass(second, kind[1])
            steps = dict(zip(at[1:], (p.steps for p in first), strict=True))
            ours, theirs = dict(zip(at, sums, strict=True)), dict(zip(places, masses, strict=True))
            common = [place for place in ours if place in theirs]
            if len(common) < 2 and second:
                yield 0, math.inf
            begin = 0.0
            for place in common[1:]:
                x, y = (mass[place] - mass[begin] for mass in (ours, theirs))
                yield steps[place], abs(x - y) / (abs(x) or 1.0)
                if "mean" not in kind:  # else the differences of what was added up are little but rounding
                    begin = place

    def _stands_still(self, a: Run, b: Run, loop: int) -> bool:
        curves = self._curve_of([a, b], loop)
        return curves is not None and bool(_stalled(curves.values[:1], curves.values[1:], 0.0))

    # -- curves --

    def _curves(self) -> None:
        if len(self.pairs) >= 2 or (self.pairs and min(len(self.original), len(self.rewritten)) == 1):
            first, second = [a for a, _ in self.pairs], [b for _, b in self.pairs]
        else:
            first = list(first_of_each_seed(self.original).values())
            second = list(first_of_each_seed(self.rewritten).values())
        if not first or not second:
            return
        paired = len(first) == len(second) == len(self.pairs) and self._start_alike()
        seeds = min(len(first), len(second))
        self.tolerance.append(_curve_text(seeds, paired, self.level))
        for loop in sorted({key[0] for run in first for key in self.points[id(run)]}):
            curves = self._curve_of([*first, *second], loop)
            if curves is None:
                continue
            self.compared += curves.values.size // 2
            where = "" if loop == 0 else f"loop {loop}"
            o, r = curves.values[: len(first)], curves.values[len(first) :]
            judged = Judged(o, r, curves.noise[: len(first)], ALIKE if paired else 0.0)
            finding = judged.finding("loss", where, self.level, True)
            if finding and finding.fails and _stalled(o, r, judged.limit_of_fall()):
                fall = float(_fall(o).mean())
                message = (
                    f"the original's loss falls by {fall:.4g}, the rewritten script's by {np.median(_fall(r)):.4g}"
                )
                finding = Finding("stalled", message, where)
            if finding:
                self.findings.append(finding)
            elif float(np.abs(_fall(o)).mean()) < 0.02 * float(np.abs(o).mean()):
                message = "the original's loss hardly falls in these runs: longer runs would show more"
                self.findings.append(Finding("loss", message, where, fails=False))
            elif (blind := judged.blind()) > COARSE:
                message = (
                    f"a loss that is off by less than {blind:.0%} would not be noticed: more seeds would show more"
                )
                self.findings.append(Finding("loss", message, where, fails=False))
                self.blind = max(self.blind, blind)

    def _start_alike(self) -> bool:
        """Whether the seeds' first losses go together in both scripts: weights and batches are the same then."""
        pairs = []
        for a, b in self.pairs:
            drifts = [(key, p.position) for key, p, _, _ in islice(self._drifts(a, b), 4)]
            first, second = self._at(a), self._at(b)
            pairs.append([(first[place], second[place]) for place in drifts])
        count = min(map(len, pairs), default=0)
        if not count:
            return False
        values = np.array([pair[:count] for pair in pairs])  # seed, place, script
        level = np.abs(values).mean() or 1.0
        apart = (values[..., 0] - values[..., 1]).std()
        spread = np.sqrt(np.mean(values.var(axis=0, ddof=1))) if len(pairs) > 1 else 0.05 * level
        return bool(apart <= max(0.2 * math.sqrt(2) * spread, 2e-3 * level))

    def _at(self, run: Run) -> dict[tuple[Key, int], float]:
        return {(key, p.position): p.loss for key, points in self.points[id(run)].items() for p in points}

    def _curve_of(self, runs: Sequence[Run], loop: int) -> _Curves | None:
        """The losses of a loop as one curve a run, over the samples that all of them have seen."""
        kinds = [_kinds(run).get(loop, "batch") for run in runs]
        epochs = sorted({key for run in runs for key in self.points[id(run)] if key[0] == loop})
        grids: list[list[float]] = [[0.0] for _ in runs]
        masses: list[list[float]] = [[0.0] for _ in runs]
        for key in epochs:
            points = [self.points[id(run)].get(key, []) for run in runs]
            if not all(points):
                break
            if set(kinds) == {"batch"}:
                points = _at_common_places(points)
            extent = min(p[-1].position for p in points)
            for grid, mass, kind, own in zip(grids, masses, kinds, points, strict=True):
                at, sums = _mass(own, kind)
                places = np.array([*at[(at > 0) & (at < extent)], extent])
                grid += (grid[-1] + places).tolist()
                mass += (mass[-1] + np.interp(places, at, sums)).tolist()
        coarsest = min(grids, key=len)
        if len(coarsest) < 2:
            return None
        return _Curves.cut(coarsest, grids, masses)


def _chaotic(trail: Sequence[tuple[int, float]], steps: int, drift: float) -> bool:
    """Whether a drift has grown out of rounding, step by step, as training amplifies it: measured, tenfold in 9 steps.

    Anything else that differs is there after the first update, or comes at once.
    """
    start = [pair for pair in trail if 1 < pair[0] <= 10] or [pair for pair in trail if pair[0] > 1][:1]
    if not start or any(apart > tolerance_at(n) / 10 for n, apart in start):
        return False
    highest = max(apart for _, apart in trail)
    return drift <= max(highest, 1e-7) * 10 ** max(1.0, (steps - trail[-1][0]) / 4)


def _at_common_places(points: list[list[Point]]) -> list[list[Point]]:
    """The losses of the same batches, where batches' own losses are compared."""
    places = set.intersection(*({p.position for p in own} for own in points))
    if len(places) < 2:
        return points
    return [[p for p in own if p.position in places] for own in points]


def _means(points: list[Point], kind: str) -> list[Point]:
    """Running means, where they can be told: the losses of all batches, or running means already."""
    if kind == "mean":
        return points
    if any(p.whole > 1 for p in points):
        return []
    at, sums = _mass(points, kind)
    return [p._replace(loss=float(s / x)) for p, x, s in zip(points, at[1:], sums[1:], strict=True)]


@dataclass(frozen=True)
class _Curves:
    values: Array  # run, window
    noise: Array  # how well a run's batches tell each of them

    @classmethod
    def cut(cls, coarsest: list[float], grids: list[list[float]], masses: list[list[float]]) -> _Curves:
        places = np.array(coarsest)
        wanted = np.linspace(0, places[-1], min(WINDOWS, len(places) - 1) + 1)
        edges = np.unique(places[np.abs(places[None, :] - wanted[:, None]).argmin(axis=1)])
        values, noise = [], []
        for grid, mass in zip(grids, masses, strict=True):
            at, sums = np.array(grid), np.array(mass)
            values.append(np.diff(np.interp(edges, at, sums)) / np.diff(edges))
            blocks = np.diff(sums) / np.diff(at)
            windows = np.clip(np.searchsorted(edges, at[1:], "left") - 1, 0, len(edges) - 2)
            noise.append([_standard_error(blocks[windows == w]) for w in range(len(edges) - 1)])
        return cls(np.array(values), np.array(noise))


def _standard_error(losses: Array) -> float:
    """Of their mean, from how much neighbours differ: the trend does not count."""
    if len(losses) < 2:
        return abs(float(losses.mean())) * 0.05 if len(losses) else 0.0
    return math.sqrt(float(np.mean(np.diff(losses) ** 2)) / 2 / len(losses))


def _limit(first: Array, second: Array, noise: float, alike: float) -> float:
    """By how much the means of two groups of runs may differ; a value a run and window.

    Student's limit for the mean of the differences. How much they vary is what seeds differ by (`alike`, their
    correlation, is above 0 where run i of both groups have a seed in common), and what the differences themselves tell,
    which are few. The rewritten script's own variance counts for at most four times the original's, lest one run that
    goes astray hides itself.
    """
    from scipy.special import stdtrit

    seeds = min(len(first), len(second))
    own = float(first.var(axis=0, ddof=1).mean()) if seeds > 1 else 0.0
    if own <= (1e-9 * float(np.abs(first).mean())) ** 2:  # one seed, or a script that seeds itself
        return 4 * noise
    other = min(float(second.var(axis=0, ddof=1).mean()), 4 * own)
    variance = (own + other) / 2
    differences, freedom = 2 * variance, 2 * (seeds - 1)
    if alike:
        seen = min(float((second - first).var(axis=0, ddof=1).mean()), differences)
        differences, freedom = ((1 - alike) * differences + seen) / 2, 3 * (seeds - 1)
    student = float(stdtrit(freedom, 1 - ALARMS / 2)) * math.sqrt(differences / seeds)
    return max(student, FEWEST_DEVIATIONS * math.sqrt(variance))


def _fall(curves: Array) -> Array:
    """By how much each run's loss falls, from its first window to its last quarter."""
    last = max(1, curves.shape[1] // 4)
    return np.asarray(curves[:, 0] - curves[:, -last:].mean(axis=1))


def _stalled(original: Array, rewritten: Array, limit: float) -> bool:
    fall, other = float(_fall(original).mean()), float(np.median(_fall(rewritten)))
    return fall > max(limit, 0.05 * abs(float(original[:, 0].mean()))) and other < 0.25 * fall


@dataclass(frozen=True)
class Judged:
    """Two groups of curves, and by how much their parts differ."""

    original: Array
    rewritten: Array
    noise: Array
    alike: float

    def parts(self) -> dict[str, slice]:
        count = self.original.shape[1]
        half = count // 2
        last = count - max(1, count // 4)
        return {
            "the first half": slice(0, max(half, 1)),
            "the second half": slice(half, count),
            "the end": slice(last, count),
        }

    def limit(self, part: slice) -> float:
        o, r = self.original[:, part], self.rewritten[:, part]
        level = max(abs(float(o.mean())), 0.1 * float(np.abs(self.original).max()))
        floor = FLOOR * level
        if self.original.shape[1] > 1:
            floor = min(floor, max(FALL * abs(float(_fall(self.original).mean())), LEAST * level))
        return max(floor, _limit(o, r, float(self.noise[:, part].mean()), self.alike))

    def blind(self) -> float:
        """The share of the loss that may be off in the second half."""
        part = self.parts()["the second half"]
        return self.limit(part) / (abs(float(self.original[:, part].mean())) or 1.0)

    def limit_of_fall(self) -> float:
        noise = float(self.noise.mean())
        return _limit(_fall(self.original)[:, None], _fall(self.rewritten)[:, None], noise, self.alike)

    def finding(
        self, kind: str, where: str, level: int, lower_is_better: bool | None, what: str = "loss"
    ) -> Finding | None:
        """The part that differs most, if one does."""
        worst: tuple[float, str] | None = None
        for name, part in self.parts().items():
            before, after = float(self.original[:, part].mean()), float(self.rewritten[:, part].mean())
            limit = self.limit(part)
            difference = after - before
            better = lower_is_better is not None and (difference < 0) == lower_is_better
            if level >= 3 and (better or lower_is_better is None):
                continue
            excess = abs(difference) / limit if limit else math.inf if difference else 0.0
            if excess > 1 and (worst is None or excess > worst[0]):
                message = (
                    f"over {name} of training the {what} is {after:.4g}, the original's is {before:.4g}"
                    f" ({percent(abs(difference) / (abs(before) or 1.0))} {'less' if difference < 0 else 'more'};"
                    f" up to {limit:.2g} would be within what the original's seeds differ by)"
                )
                worst = excess, message + ("; better, but not the same training" if better else "")
        return Finding(kind, worst[1], where) if worst else None


def _curve_text(seeds: int, paired: bool, level: int) -> str:
    text = f"Loss curves of {seeds} seed{'s' * (seeds > 1)} of each script may differ by what the original's own seeds"
    text += f" differ by, as Student's test allows, and by at least {FLOOR:.0%} of the loss"
    text += " (less where the loss hardly falls)."
    if seeds == 1:
        text += " With one seed, only how much its batches differ is known."
    elif not paired:
        text += " What a seed does to one script it does not do to the other: only large differences can be told."
    return text + (" Only a worse loss counts." if level >= 3 else "")
