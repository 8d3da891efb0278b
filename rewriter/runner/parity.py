"""Do two scripts train the same? Judged from recorded runs of both, with equal seeds.

Level 1 promises the same numbers: losses are compared step by step. Rounding differs where operations are reordered,
and training amplifies it, so the tolerance grows with the steps (`tolerance_at`), and with what two runs of the script
at the same seed differ by, where such runs are given. An original that does not repeat itself is judged as at level 2,
and so is what comes after rounding has visibly grown beyond the tolerance (`_chaotic`): a network at a high learning
rate takes 50 steps from 1e-7 to 1e-2. Where the script sets no seed, its rewrite need not repeat itself either.

Levels 2 and 3 promise the same training: loss curves over several seeds. A curve is cut into `WINDOWS` windows along
the samples; their means over the first half, the second half and the end may differ by as much as the original's own
seeds let expect (`_limit`), and by `FLOOR` of the loss, which is what a lower precision may cost.

Whatever the level: the data of every epoch and whether their order still varies, how long training lasts, optimizers
and how the learning rate moves, NaN, gradients that vanish, float64 that is lost, ranks whose weights differ. A finding
with `fails=False` is a remark.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .record import Data, Loop, Record, Run

Array = NDArray[np.float64]

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
ALIKE_AFTER_AN_EPOCH = 0.5
#: Limits below so many standard deviations of the original are not believed.
FEWEST_DEVIATIONS = 2
#: Sums over the same data in another order differ by less.
ROUNDING = 1e-6
#: Ranks whose weights are further apart than this share of them do not train together.
DIVERGED = 1e-5
#: Share of the gradients that were not zero and now are, from which on it is underflow.
UNDERFLOW = 0.2

LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "mape", "msle", "perplexity", "divergence", "crossentropy", "hinge")
HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "iou", "dice", "r2", "cosine_similarity")
RATES = ("learning_rate", "lr", "initial_learning_rate", "base_lr", "warmup_target", "end_learning_rate")
#: What an optimizer's configuration holds that changes no update.
NO_UPDATE = frozenset("name jit_compile is_legacy_optimizer registered_name module build_config".split())
GOOD = ("finished", "budget")
LOW_PRECISION = ("float16", "bfloat16")
#: What one run of each script shows for good: more seeds take none of it back.
CERTAIN = frozenset(
    "nan samples precision optimizer augmentation-frozen order-frozen validation-data ranks-diverge not-trained".split()
)
EXACT = frozenset({"length", "schedule"})


@dataclass(frozen=True)
class Finding:
    """kind: "loss", "nan", "stalled", "not-repeatable", "samples", "length", "data", "validation-data", "validation",
    "augmentation-frozen", "order-frozen", "labels", "learning-rate", "schedule", "optimizer", "underflow", "precision",
    "ranks-diverge", "no-effect", "not-trained" or "ended"."""

    kind: str
    message: str
    where: str = ""
    fails: bool = True


@dataclass(frozen=True)
class Parity:
    """`tolerance` says in words how much difference was allowed and why; `compared` counts the compared losses.

    settled: there is a finding that no further run can take back.
    blind: share of the loss below which a difference of the loss curves would not be noticed; 0 where they are exact.
    """

    findings: tuple[Finding, ...]
    tolerance: str
    compared: int
    settled: bool = False
    blind: float = 0.0

    @property
    def same(self) -> bool:
        return self.compared > 0 and not any(finding.fails for finding in self.findings)


def tolerance_at(steps: float) -> float:
    """How far, relatively, two float32 runs may have drifted apart by rounding alone: 1e-5 at first, 1e-3 after 100."""
    return 1e-5 + 1e-6 * math.pow(steps, 1.5)


def compare(
    original: Sequence[Run],
    rewritten: Sequence[Run],
    level: int,
    unseeded: tuple[Sequence[Run], Sequence[Run]] = ((), ()),
) -> Parity:
    """Several runs of the original at one seed show whether it repeats itself; of the rewritten, the first counts.

    unseeded: runs in which TensorFlow had no seed. With one, random operations in a dataset draw the same in every
    epoch, so that only these runs show an augmentation that no longer varies.
    """
    findings = [*_endings(original, rewritten), *_nans(original, rewritten)]
    findings += _data(original, rewritten, level)
    findings += _no_longer_varies(*unseeded)
    findings += _underflow(original, rewritten)
    findings += _optimizers(original, rewritten, level)
    findings += _schedules(original, rewritten, level)
    findings += _no_effect(original, rewritten)
    findings += _precision(original, rewritten, level)
    findings += _ranks_diverge(original, rewritten)
    if not any(finding.kind == "samples" for finding in findings):  # which tells it better
        findings += _lengths(original, rewritten)
    findings += _not_trained(original, rewritten)
    lost = any(f.kind in ("nan", "ended", "not-trained") and f.fails for f in findings)
    losses = _Losses(original, rewritten, level)
    if not lost:  # otherwise said already
        losses.judge()
        findings += losses.findings
        findings += _validation(original, rewritten, level, losses.exact)
    if not losses.compared and not lost:
        findings.append(Finding("loss", "no loss was recorded that both scripts have: nothing can be compared"))
    failing = {finding.kind for finding in findings if finding.fails}
    # Where all numbers are the same, noise has moved nothing.
    certain = (
        CERTAIN | (EXACT if losses.exact else frozenset()) | ({"data"} if _same_for_all_seeds(original) else set())
    )
    settled = losses.settled or bool(failing & certain)
    return Parity(tuple(dict.fromkeys(findings)), " ".join(losses.tolerance), losses.compared, settled, losses.blind)


# -- losses ----------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    position: int  # samples (or steps) of all ranks since the epoch began
    steps: int  # since training began
    loss: float  # mean over the ranks
    whole: int  # steps that this execution covered


Key = tuple[int, int]  # loop, epoch


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


def _first_of_each_seed(runs: Iterable[Run]) -> dict[int, Run]:
    found: dict[int, Run] = {}
    for run in runs:
        found.setdefault(run.seed, run)
    return found


def _repeats(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Runs with their own seed's first."""
    first = _first_of_each_seed(runs)
    return ((first[run.seed], run) for run in runs if run is not first[run.seed])


def _size(runs: Sequence[Run]) -> int:
    return max((record.size for run in runs for record in run.records), default=1)


@dataclass
class _Losses:
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
        a, b = _first_of_each_seed(self.original), _first_of_each_seed(self.rewritten)
        self.pairs = [(a[seed], b[seed]) for seed in a if seed in b]
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
        if _size(self.original) != _size(self.rewritten):
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
                    after = f"{_percent(drift)} apart after {steps} steps"
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
                    message = (
                        f"the loss is off by {_percent(drift)} after {steps} steps, allowed is {_percent(allowed)}"
                    )
                    kind = "loss"
                    if self._stands_still(a, b, key[0]):
                        kind = "stalled"
                        message = f"the original's loss falls, the rewritten script's does not; {message}"
                    where = f"{_where(key)}, after {point.position} {self.unit}, seed {b.seed}"
                    self.findings.append(Finding(kind, message, where))
                    return
                trail.append((steps, drift))

    def _stands_still(self, a: Run, b: Run, loop: int) -> bool:
        curves = self._curve_of([a, b], loop)
        return curves is not None and bool(_stalled(curves.values[:1], curves.values[1:], 0.0))

    # -- curves --

    def _curves(self) -> None:
        if len(self.pairs) >= 2 or (self.pairs and min(len(self.original), len(self.rewritten)) == 1):
            first, second = [a for a, _ in self.pairs], [b for _, b in self.pairs]
        else:
            first = list(_first_of_each_seed(self.original).values())
            second = list(_first_of_each_seed(self.rewritten).values())
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
            judged = _Judged(o, r, curves.noise[: len(first)], ALIKE if paired else 0.0)
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
class _Judged:
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
                    f" ({_percent(abs(difference) / (abs(before) or 1.0))} {'less' if difference < 0 else 'more'};"
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


def _percent(share: float) -> str:
    return f"{share:.2%}" if share >= 1e-3 else f"{share:.1e}"


def _where(key: Key) -> str:
    return f"epoch {key[1]}" if key[0] == 0 else f"loop {key[0]}, epoch {key[1]}"


# -- validation metrics ----------------------------------------------------------------------------------------


def _validation(original: Sequence[Run], rewritten: Sequence[Run], level: int, exact: bool) -> Iterator[Finding]:
    a, b = _first_of_each_seed(original), _first_of_each_seed(rewritten)
    seeds = [seed for seed in a if seed in b]
    runs = ([a[s] for s in seeds], [b[s] for s in seeds]) if seeds else (list(a.values()), list(b.values()))
    logs = [[_logs(run) for run in group] for group in runs]
    if not all(logs):
        return
    for (loop, name), _ in logs[0][0].items():
        series = [[run.get((loop, name), {}) for run in group] for group in logs]
        epochs = sorted(set.intersection(*(set(s) for group in series for s in group)))
        if not epochs:
            continue
        o, r = (np.array([[s[e][1] for e in epochs] for s in group]) for group in series)
        where = "" if loop == 0 else f"loop {loop}"
        if not np.isfinite(r).all():
            if np.isfinite(o).all():
                yield Finding("nan", f"{name} becomes NaN or infinite", where)
            continue
        if not np.isfinite(o).all():
            continue
        lower = next((True for word in LOWER_IS_BETTER if word in name), None)
        if lower is None and any(word in name for word in HIGHER_IS_BETTER):
            lower = False
        if exact and seeds:
            steps = np.array([[s[e][0] for e in epochs] for s in series[0]])
            scale = np.maximum(np.abs(o), 0.1 * np.abs(o).max())
            allowed = np.array([tolerance_at(n) for n in steps.flat]).reshape(steps.shape) * scale
            if lower is not True:  # a share of right answers jumps by one sample
                allowed += _one_sample(runs[0], loop)
            off = np.argwhere(np.abs(r - o) > allowed)
            if len(off):
                s, e = off[0]
                message = f"{name} is {r[s, e]:.5g}, the original's is {o[s, e]:.5g}"
                place = f"{_where((loop, epochs[e]))}, seed {seeds[s]}"
                yield Finding("validation", message, place)
            continue
        noise = np.abs(o) * 0.05
        judged = _Judged(o, r, noise, ALIKE_AFTER_AN_EPOCH if seeds else 0.0)
        if finding := judged.finding("validation", where, level, lower, name):
            yield finding


def _logs(run: Run) -> dict[tuple[int, str], dict[int, tuple[int, float]]]:
    """By loop and metric, then by epoch: the steps until then, and the mean over the ranks."""
    found: dict[tuple[int, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    steps: dict[Key, int] = {}
    for record in run.records:
        total = 0
        for epoch in record.epochs:
            total += epoch.steps
            steps[epoch.loop, epoch.epoch] = total
            for name, value in epoch.logs.items():
                if name.startswith("val_"):
                    found[epoch.loop, name][epoch.epoch].append(value)
    return {
        key: {epoch: (steps[key[0], epoch], sum(v) / len(v)) for epoch, v in epochs.items()}
        for key, epochs in found.items()
    }


def _one_sample(runs: Sequence[Run], loop: int) -> float:
    sizes = [d.samples for run in runs for r in run.records for d in r.data if d.part == "test" and d.loop == loop]
    return 2 / min(sizes) if sizes else 0.02


# -- how runs ended, NaN ---------------------------------------------------------------------------------------


def _endings(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    def ending(run: Run) -> str:
        return "good" if run.ending in GOOD else run.ending

    a, b = [ending(run) for run in original], [ending(run) for run in rewritten]
    for run in rewritten:
        if ending(run) not in a and not (ending(run) == "good" and "timeout" in a):
            last = run.stderr.strip().splitlines()[-1:] if ending(run) != "good" else []
            expected = original[0].ending if original else "not run"
            message = f"the rewritten script's run ended as {run.ending}, the original's as {expected}"
            yield Finding("ended", message + (f": {last[0]}" if last else ""), f"seed {run.seed}")
            return
    for run in original:
        if ending(run) not in b:
            message = f"the original's run ended as {run.ending}, the rewritten script's did not"
            yield Finding("ended", message, f"seed {run.seed}", fails=False)
            return
    if "good" not in a and (failed := {"crashed", "killed", "out-of-memory"}.intersection(a)):
        yield Finding("ended", f"the original itself ended as {failed.pop()}, and so did the rewritten script")


def _not_trained(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    def trained(runs: Sequence[Run]) -> bool:
        return any(record.steps for run in runs for record in run.records)

    if trained(original) and not trained(rewritten) and all(run.ending in GOOD for run in rewritten):
        yield Finding(
            "not-trained", "the rewritten script comes to its end without a training step, the original trains"
        )


def _lengths(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    """Training that ends earlier, or goes on for longer; where a callback or the script ends it, seeds may differ.

    Runs are stopped at what the first one reached, and a quarter beyond where that was the script's own end.
    """
    records = [record for run in (*original, *rewritten) for record in run.records]
    if any(record.stopped or not record.steps for record in records):
        return
    counted = all(step.samples for record in records for step in record.steps)
    if not counted and _size(original) != _size(rewritten):  # their steps are of other size
        return
    unit = "samples" if counted else "steps"

    def length(run: Run) -> int:
        if counted:
            return sum(record.samples for record in run.records)
        return sum(step.steps for step in run.records[0].steps)

    def epochs(run: Run) -> int:
        record = run.records[0]
        fits = {loop.id for loop in record.loops if loop.kind.startswith("fit")}
        return len({(step.loop, step.epoch) for step in record.steps if step.loop in fits})

    if len({length(run) for run in original if run.ending == "finished"}) > 1:
        return
    a, b = _first_of_each_seed(original), _first_of_each_seed(rewritten)
    messages = []
    for seed in a.keys() & b.keys():
        before, after = length(a[seed]), length(b[seed])
        begun = epochs(a[seed]), epochs(b[seed])
        allowed = max(*begun, 1) * _size(rewritten) * (_batch(a[seed].records[0]) if counted else 1)
        if b[seed].ending == "finished" and (after < before - allowed or begun[1] < begun[0]):
            messages.append(f"training ends after {after} {unit}, the original's not before {before}")
        elif a[seed].ending == "finished" and (after > before + allowed or begun[1] > begun[0]):
            messages.append(f"training goes on to {after} {unit} or more, the original's ends after {before}")
        else:
            return
    if messages:
        yield Finding("length", messages[0])


def _nans(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    """A seed whose original stays finite counts; where no seed is shared, any run of the original."""
    a = _first_of_each_seed(original)
    shared = any(run.seed in a for run in rewritten)
    for run in rewritten:
        found = _first_nan(run)
        peers = [a[run.seed]] if run.seed in a else [] if shared else list(a.values())
        if found and peers and all(_first_nan(peer) is None for peer in peers):
            yield Finding(
                "nan", "the loss becomes NaN or infinite, the original's does not", f"{found}, seed {run.seed}"
            )
            return
    for run in original:
        if found := _first_nan(run):
            message = "the original's own loss becomes NaN or infinite: compared until there"
            yield Finding("nan", message, f"{found}, seed {run.seed}", fails=False)
            return


def _first_nan(run: Run) -> str | None:
    for record in run.records:
        steps = 0
        for step in record.steps:
            steps += step.steps
            if step.loss is not None and not math.isfinite(step.loss):
                return f"{_where((step.loop, step.epoch))}, after {steps} steps"
        for epoch in record.epochs:
            if not math.isfinite(epoch.logs.get("loss", 0.0)):
                return _where((epoch.loop, epoch.epoch))
    return None


def _no_effect(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    records = [record for run in rewritten for record in run.records]
    mixed = next((p for record in records for p in record.policies if p.startswith("mixed")), None)
    before = any(p.startswith("mixed") for run in original for record in run.records for p in record.policies)
    computes = [loop.compute for record in records for loop in record.loops if loop.compute]
    if mixed and not before and computes and not any(d in LOW_PRECISION for dtypes in computes for d in dtypes):
        message = f"the policy {mixed} is set, but no layer computes in low precision: it changes nothing"
        yield Finding("no-effect", message, fails=False)


def _precision(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    """Lower precision is what level 2 asks for, but not for a script that chose float64."""
    for a, b in _loops_of_both(original, rewritten):
        for name in ("floatx", "policy", "compute"):
            before, after = ({*v} if isinstance(v := getattr(loop, name), tuple) else {v} for loop in (a, b))
            if not all(before) or not all(after) or not before or not after or before == after:
                continue
            if level == 1 or any("float64" in one for one in before - after):
                what = {"floatx": "Keras' default type", "policy": "the policy", "compute": "what layers compute in"}[
                    name
                ]
                old, new = (" and ".join(sorted(names)) for names in (before, after))
                yield Finding("precision", f"{what} is {new}, the original's is {old}", _where_loop(a))
                break


def _loops_of_both(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[tuple[Loop, Loop]]:
    a, b = (
        {loop.id: loop for record in runs[0].records[:1] for loop in record.loops} if runs else {}
        for runs in (original, rewritten)
    )
    return ((a[loop], b[loop]) for loop in sorted(a.keys() & b.keys()))


def _where_loop(loop: Loop) -> str:
    return "" if loop.id == 0 else f"loop {loop.id}"


def _ranks_diverge(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    """Ranks that train one model have the same weights after every step."""

    def apart(run: Run) -> float:
        found = 0.0
        steps = [sum(step.steps for step in record.steps) for record in run.records]
        for sums in zip(*(record.weights for record in run.records), strict=False):
            n, turned, squares = np.array(sums, float).T
            if len(set(steps)) == 1 and len(set(n)) == 1:
                size = math.sqrt(squares.max()) or 1.0
                found = max(found, float(np.ptp(turned)) / size / math.sqrt(n[0]), float(np.ptp(squares)) / size**2)
        return found if math.isfinite(found) else 0.0

    if any(apart(run) > DIVERGED for run in original):
        return
    for run in rewritten:
        if (distance := apart(run)) > DIVERGED:
            message = f"the {len(run.records)} ranks end with different weights ({_percent(distance)} apart)"
            yield Finding("ranks-diverge", f"{message}: each trains a model of its own", f"seed {run.seed}")
            return


# -- data ------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What all ranks saw of one part in one epoch. Without sums, only the samples were counted."""

    samples: int
    sums: tuple[float, ...] = ()
    order: float | None = None

    @property
    def means(self) -> Array:
        return np.array(self.sums) / self.samples


Part = tuple[int, str]  # loop, "train" or "test"


def _seen(run: Run) -> dict[Part, dict[int, _Seen]]:
    """By part and epoch, of those epochs that were seen to their end."""
    found: dict[Part, dict[int, list[_Seen]]] = defaultdict(lambda: defaultdict(list))
    for record in run.records:
        ended = {(epoch.loop, epoch.epoch) for epoch in record.epochs}
        told = set()
        for data in record.data:
            key = (data.loop, data.epoch)
            if data.samples and (key in ended or run.ending == "finished"):
                told.add((*key, data.part))
                sums = () if any(not math.isfinite(s) for s in data.sums) else data.sums
                found[data.loop, data.part][data.epoch].append(_Seen(data.samples, sums, data.order))
        for epoch in record.epochs:
            if epoch.samples and (epoch.loop, epoch.epoch, "train") not in told:
                found[epoch.loop, "train"][epoch.epoch].append(_Seen(epoch.samples))
    return {
        part: {epoch: _together(ranks) for epoch, ranks in epochs.items() if len(ranks) == len(run.records)}
        for part, epochs in found.items()
    }


def _together(ranks: Sequence[_Seen]) -> _Seen:
    sums = tuple(map(sum, zip(*(rank.sums for rank in ranks), strict=True))) if all(r.sums for r in ranks) else ()
    orders = [rank.order for rank in ranks if rank.order is not None]
    return _Seen(sum(rank.samples for rank in ranks), sums, sum(orders) if len(orders) == len(ranks) else None)


def _same_for_all_seeds(runs: Sequence[Run]) -> bool:
    seeds = [_seen(run) for run in _first_of_each_seed(runs).values()]
    first, others = seeds[0] if seeds else {}, seeds[1:]
    return bool(others) and all(
        epochs.keys() <= other.get(part, {}).keys()
        and _alike_throughout([list(epochs.values()), [other[part][e] for e in epochs]], _equal)
        for part, epochs in first.items()
        for other in others
    )


def _data(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    a = {seed: _seen(run) for seed, run in _first_of_each_seed(original).items()}
    b = {seed: _seen(run) for seed, run in _first_of_each_seed(rewritten).items()}
    ranks = _size(rewritten) // _size(original) or 1
    batch = max((_batch(record) for run in original for record in run.records), default=1)
    parts = sorted({part for seen in a.values() for part in seen})
    for part in parts:
        where = _where_part(part)
        first = {seed: seen.get(part, {}) for seed, seen in a.items()}
        second = {seed: seen.get(part, {}) for seed, seen in b.items()}
        epochs = sorted(set.intersection(*(set(e) for e in (*first.values(), *second.values()))))
        if not epochs:
            if part[1] == "test" and all(first.values()) and not any(second.values()) and any(b.values()):
                yield Finding(
                    "validation-data", "the original evaluates on data of its own, the rewritten script does not", where
                )
            continue
        o = [[seen[e] for e in epochs] for seen in first.values()]
        r = [[seen[e] for e in epochs] for seen in second.values()]
        if part[1] == "train":
            yield from _counts(o, r, ranks, batch * _size(rewritten), level, where)
            yield from _frozen(o, r, where)
            yield from _sums(o, r, where, ("data", "labels"))
        else:
            r = [[_of_one_rank(x, ranks, y) for x, y in zip(q, p, strict=True)] for p, q in _cycled(o, r)]
            trained = [
                [[seen.get((part[0], "train"), {}).get(e) for e in epochs] for seen in runs.values()] for runs in (a, b)
            ]
            if _same_as_training(r, trained[1]) and not _same_as_training(o, trained[0]):
                yield Finding("validation-data", "the rewritten script evaluates on the training set", where)
            elif o[0][0].samples != r[0][0].samples:
                message = f"evaluates on {r[0][0].samples} samples, the original on {o[0][0].samples}"
                yield Finding("validation-data", message, where)
            else:
                yield from _sums(o, r, where, ("validation-data", "validation-data"))


def _no_longer_varies(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    for before, after in zip(map(_seen, original), map(_seen, rewritten), strict=False):
        for part in before:
            epochs = sorted(before[part].keys() & after.get(part, {}))
            if part[1] == "train" and epochs:
                o, r = [before[part][e] for e in epochs], [after[part][e] for e in epochs]
                yield from _frozen([o], [r], _where_part(part))


def _cycled(o: list[list[_Seen]], r: list[list[_Seen]]) -> Iterator[tuple[list[_Seen], list[_Seen]]]:
    return ((o[i % len(o)], own) for i, own in enumerate(r))


def _batch(record: Record) -> int:
    return max((-(-step.samples // max(step.steps, 1)) for step in record.steps), default=0) or 1


def _where_part(part: Part) -> str:
    what = "training data" if part[1] == "train" else "validation data"
    return what if part[0] == 0 else f"loop {part[0]}, {what}"


def _of_one_rank(seen: _Seen, ranks: int, original: _Seen) -> _Seen:
    """Every rank may evaluate on everything."""
    if ranks > 1 and seen.samples == ranks * original.samples:
        return _Seen(original.samples, tuple(s / ranks for s in seen.sums))
    return seen


def _counts(
    o: list[list[_Seen]], r: list[list[_Seen]], ranks: int, whole: int, level: int, where: str
) -> Iterator[Finding]:
    """`ranks` times as many ranks as the original's train now; `whole` is a batch of all of them."""
    counts = ((a.samples, b.samples) for p, q in _cycled(o, r) for a, b in zip(p, q, strict=True))
    before, after = next(((a, b) for a, b in counts if a != b), (0, 0))
    if before == after:
        return
    message = f"an epoch has {after} samples, the original's has {before}"
    fails = True
    if 0 < before - after < whole:
        message += ": the last partial batch is dropped (drop_remainder)"
        fails = level < 2
    elif ranks > 1 and abs(after * ranks - before) <= whole * ranks and after < before:
        message += f": with {ranks} ranks, each sees a part of a part (sharded twice)"
    elif ranks > 1 and abs(after - before * ranks) <= whole:
        message += f": each of {ranks} ranks sees all the data (not sharded)"
    elif ranks > 1 and 0 < after - before < whole:
        message += ": the ranks' shares are filled up to equal size"
        fails = level < 2
    yield Finding("samples", message, where, fails)


def _scale(seen: _Seen) -> Array:
    """By what the five sums are measured, so that rounding is rounding even where they cancel out."""
    n, xx, yy = seen.samples, abs(seen.sums[1]), abs(seen.sums[3])
    floor = 1e-12 * n
    return np.array([math.sqrt(n * xx), xx, math.sqrt(n * yy), yy, math.sqrt(xx * yy)]) + floor


def _equal(a: _Seen, b: _Seen, which: slice = slice(None)) -> bool:
    if a.samples != b.samples or not a.sums or not b.sums:
        return False
    apart = np.abs(np.array(a.sums) - np.array(b.sums))
    return bool((apart <= ROUNDING * np.maximum(_scale(a), _scale(b)))[which].all())


def _same_as_training(seen: list[list[_Seen]], trained: Sequence[Sequence[_Seen | None]]) -> bool:
    pairs = [(x, y) for own, other in zip(seen, trained, strict=True) for x, y in zip(own, other, strict=True)]
    if not all(y is not None and x.sums and y.sums for x, y in pairs):
        return all(y is not None and x.samples == y.samples for x, y in pairs)
    # Augmented training data are not the same twice; their number and labels are.
    return all(y is not None and _equal(x, y, slice(2, 4)) for x, y in pairs)


def _frozen(o: list[list[_Seen]], r: list[list[_Seen]], where: str) -> Iterator[Finding]:
    def varies(epochs: list[_Seen]) -> bool:
        return any(a.samples == b.samples and not _equal(a, b, slice(0, 2)) for a, b in pairwise(epochs))

    sums = all(seen.sums for run in (*o, *r) for seen in run)
    if sums and len(o[0]) > 1 and all(map(varies, o)) and not any(map(varies, r)):
        message = "every epoch sees the same inputs, the original's differ from epoch to epoch (augmentation, or order)"
        yield Finding("augmentation-frozen", message, where)
        return

    def moves(epochs: list[_Seen]) -> bool:
        pairs = ((a.order, b.order, _scale(a)[0]) for a, b in pairwise(epochs) if _equal(a, b))
        return any(a is None or b is None or abs(a - b) > ROUNDING * scale for a, b, scale in pairs)

    def repeats(epochs: list[_Seen]) -> bool:
        return all(_equal(a, b) for a, b in pairwise(epochs)) and not moves(epochs)

    if sums and len(o[0]) > 1 and all(map(moves, o)) and all(map(repeats, r)):
        message = "every epoch sees its samples in the same order, the original shuffles them anew"
        yield Finding("order-frozen", message, where)


def _sums(o: list[list[_Seen]], r: list[list[_Seen]], where: str, kinds: tuple[str, str]) -> Iterator[Finding]:
    """Whether inputs and labels are the original's: exactly, or as much as its epochs and seeds are each other's."""
    first, second = [seen for run in o for seen in run], [seen for run in r for seen in run]
    if not all(len(seen.sums) == 5 for seen in (*first, *second)):
        return
    if all(_equal(a, b) for p, q in _cycled(o, r) for a, b in zip(p, q, strict=True)):
        return
    off = [_differs(first, second, i) for i in range(5)]
    if any(off[:4]):
        what = " and ".join(name for name, part in (("inputs", off[:2]), ("labels", off[2:4])) if any(part))
        i = off.index(True)
        a, b = (np.mean([seen.means[i] for seen in group]) for group in (first, second))
        message = f"the {what} are not the original's (their checksum is {b:.5g} a sample instead of {a:.5g})"
        yield Finding(kinds[0], message, where)
    elif off[4]:
        yield Finding(kinds[1], "the labels belong to other inputs than the original's", where)
    elif len(o) > 1 and _alike_throughout(o, _equal) and _alike_throughout([o[0], *r], _as_many):
        message = "the data of an epoch are not the original's, whose epochs hold the same whatever the seed"
        yield Finding(kinds[0], message, where)


def _alike_throughout(runs: list[list[_Seen]], alike: Callable[[_Seen, _Seen], bool]) -> bool:
    return all(alike(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def _as_many(a: _Seen, b: _Seen) -> bool:
    return a.samples == b.samples


def _differs(first: list[_Seen], second: list[_Seen], i: int) -> bool:
    from scipy.special import stdtrit

    n, m = first[0].samples, second[0].samples
    scale = float(np.mean([_scale(seen)[i] for seen in first])) / n
    groups = [_distinct([float(seen.means[i]) for seen in group], ROUNDING * scale) for group in (first, second)]
    apart = abs(np.mean(groups[0]) - np.mean(groups[1]))
    allowed = ROUNDING * scale
    if n != m:  # some samples are left out: by chance, or those at the end
        allowed += 5 * scale * math.sqrt(abs(1 / n - 1 / m)) + 4 * scale * abs(n - m) / max(n, m)
    if len(groups[0]) > 1:
        freedom = sum(map(len, groups)) - 2
        variance = sum(float(np.var(g)) * len(g) for g in groups) / freedom if freedom else 0.0
        allowed += float(stdtrit(freedom, 1 - 1e-5)) * math.sqrt(variance * sum(1 / len(g) for g in groups))
    return bool(apart > allowed)


def _distinct(values: list[float], apart: float) -> list[float]:
    """Epochs over the same data are one observation."""
    found: list[float] = []
    for value in sorted(values):
        if not found or value - found[-1] > apart:
            found.append(value)
    return found


def _underflow(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    a, b = _zeros(original), _zeros(rewritten)
    for loop in sorted(a.keys() & b.keys()):
        before, after = float(np.mean(a[loop])), float(np.mean(b[loop]))
        spread = float(np.std(a[loop]))
        if before < 1 and (after - before) / (1 - before) > UNDERFLOW and after - before > 4 * spread:
            message = f"{after:.0%} of the gradients' elements are zero, {before:.0%} of the original's"
            yield Finding("underflow", message, "" if loop == 0 else f"loop {loop}")


def _zeros(runs: Sequence[Run]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    everything: Iterator[Data] = (data for run in runs for record in run.records for data in record.data)
    for data in everything:
        if data.part == "train" and data.zeros is not None:
            found[data.loop].append(data.zeros)
    return found


# -- optimizers ------------------------------------------------------------------------------------------------


def _optimizers(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    ranks = _size(rewritten) // _size(original) or 1
    for a, b in _loops_of_both(original, rewritten):
        if a.optimizer and b.optimizer:
            yield from _optimizer(a, b, ranks, level, _where_loop(a))


def _schedules(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    """Learning rates at the ends of epochs, and at the script's, unless noise moves them."""
    if any(loop.reacts for run in (*original, *rewritten) for record in run.records for loop in record.loops):
        return
    ranks = _size(rewritten) // _size(original) or 1
    a, b = ({s: _rates(run) for s, run in _first_of_each_seed(runs).items()} for runs in (original, rewritten))
    seeds = sorted(a.keys() & b.keys())

    def same(x: float, y: float) -> bool:
        return _alike(x, y) or (ranks > 1 and x * (1 - 1e-5) <= y <= x * ranks * (1 + 1e-5))

    if not seeds or level >= 3:
        return
    for place, first in a[seeds[0]].items():
        pairs = [(a[seed].get(place), b[seed].get(place)) for seed in seeds]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        if first is None or len(known) < len(seeds):
            continue
        if not all(_alike(x, first) for x, _ in known):
            return
        if not any(same(x, y) for x, y in known):
            where = "at the end" if place[0] is None else f"at the end of {_where(place[0])}"
            message = f"the learning rate is {_shown(known[0][1])} {where}, the original's is {_shown(first)}"
            yield Finding("schedule", message)
            return


def _rates(run: Run) -> dict[tuple[Key | None, int], float | None]:
    """By place and optimizer; the end is one where it is the script's own."""
    record = run.records[0] if run.records else Record()
    places: list[tuple[Key | None, tuple[float | None, ...]]] = [((e.loop, e.epoch), e.rates) for e in record.epochs]
    if run.ending == "finished":
        places.append((None, record.rates))
    return {(key, i): rate for key, rates in places for i, rate in enumerate(rates)}


def _optimizer(before: Loop, after: Loop, ranks: int, level: int, where: str) -> Iterator[Finding]:
    names, settings = zip(*(_settings(loop.optimizer) for loop in (before, after)), strict=True)
    fails = level < 3
    if _plain(names[0]) != _plain(names[1]):
        yield Finding("optimizer", f"the optimizer is {names[1]}, the original's is {names[0]}", where, fails)
        return
    old, new = settings
    for name in sorted(old.keys() | new.keys()):
        x, y = old.get(name), new.get(name)
        rate = name.rsplit(".", 1)[-1] in RATES
        if _alike(x, y) or (rate and ranks > 1 and isinstance(x, (int, float)) and _alike(x * ranks, y)):
            continue
        kind, what = ("learning-rate", "learning rate") if rate else ("optimizer", name)
        yield Finding(kind, f"{what} is {_shown(y)}, the original's is {_shown(x)}", where, fails)


def _settings(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """An optimizer's name and its settings, without the wrapper that scales the loss."""
    name = str(config.get("name", ""))
    for _ in range(3):
        inner = _parsed(config.get("inner_optimizer") or config.get("optimizer"))
        if not isinstance(inner, Mapping):
            break
        config = inner.get("config", inner)
        name = str(inner.get("class_name") or config.get("name", ""))
    return name, {k: v for k, v in _flat(config) if k.rsplit(".", 1)[-1] not in NO_UPDATE}


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        value = _parsed(value)
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def _parsed(value: Any) -> Any:
    """Schedules are recorded as JSON."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _plain(name: str) -> str:
    name = name.lower().replace("_", "").rstrip("0123456789")
    return name.removeprefix("distributed").removesuffix("optimizer")


def _alike(x: Any, y: Any) -> bool:
    if isinstance(x, (int, float)) and isinstance(y, (int, float)):
        return math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-12)
    return bool(x == y or (not x and not y))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "not set" if value is None else str(value)
