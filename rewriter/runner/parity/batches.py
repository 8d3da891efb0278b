"""Training on several ranks against one process: the same global batch, and learning rates that were scaled on purpose.

N ranks apply the mean of N batches' gradients, at learning rates that are scaled for that. The original is run once as
it is, and again such that N of its batches make one update, at the rewritten script's learning rates: then all other
numbers are the same. What the rates were moved by is judged here: up to N times, once warmed up for good. Where the
batch of all ranks together is the original's, so are the rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..record import Record, Run, Updates
from .finding import Array, Finding, batch_of, scale_of

#: How far off a factor may be without being another one.
SLACK = 0.02
#: Batches of ranks that differ by less than this share from a multiple are that multiple.
WHOLE = 0.05


@dataclass(frozen=True)
class Batches:
    """How many of the original's batches make one of the rewritten script's, and its rates, by optimizer.

    reason: why they cannot be given the same; empty where they can.
    """

    original: int = 0
    rewritten: int = 0
    every: int = 1
    rates: tuple[tuple[float | None, ...], ...] = ()
    reason: str = ""

    @property
    def same(self) -> bool:
        """Whether the original as it is has the same batches and rates."""
        return not self.reason and self.every == 1 and not any(self.rates)

    def config(self) -> dict[str, object]:
        """What the harness is told."""
        return {"every": self.every, "rates": [list(r) if None not in r else [] for r in self.rates]}


def batches(original: Run, rewritten: Run) -> Batches:
    """The original as it is, against the rewritten script."""
    before, after = (sum(batch_of(r) for r in run.records if r.samples) for run in (original, rewritten))
    rates = tuple(one.rates for one in _updates(rewritten))
    if not _updates(original):
        return Batches(before, after, reason="no optimizer was seen that applies its gradients")
    if any(record.replicas > 1 for record in original.records) or len(original.records) > 1:
        return Batches(before, after, reason="the original trains on several devices itself")
    ratio = after / before if before and after else float(scale_of([rewritten]))
    every = round(ratio)
    if every < 1 or abs(ratio / every - 1) > WHOLE:
        return Batches(before, after, reason=f"one is {ratio:.3g} times the other")
    if rates == tuple(one.rates[: len(r)] for one, r in zip(_updates(original), rates, strict=False)):
        rates = ()
    return Batches(before, after, every, rates)


def put_together(run: Run, wanted: Batches) -> bool:
    """Whether a run of the original did what it was asked for."""
    return any(one.every == wanted.every and one.count for one in _updates(run))


def _updates(run: Run) -> list[Updates]:
    return next((r for r in run.records if r.rank == 0), Record()).updates


def same_batches(wanted: Batches, ranks: int) -> Iterator[Finding]:
    if wanted.reason and wanted.original != wanted.rewritten:
        message = f"a batch has {wanted.rewritten or 'more'} samples on all {ranks} ranks together, the original's has"
        message += f" {wanted.original or 'fewer'}: they could not be compared with the same ({wanted.reason})"
        yield Finding("batch", message, fails=False)
    elif wanted.every > 1:
        one = f"{wanted.every} batches of {wanted.original} samples" if wanted.original else f"{wanted.every} batches"
        yield Finding("batch", f"the original is compared with {one} an update, as {ranks} ranks make it", fails=False)


# -- learning rates ----------------------------------------------------------------------------------------------


def are_known(original: Sequence[Run], rewritten: Sequence[Run]) -> bool:
    """Whether the rates of all updates are there to be judged."""
    if not original or not rewritten or scale_of(rewritten) <= scale_of(original):
        return False
    a, b = _updates(original[0]), _updates(rewritten[0])
    return bool(a) and len(a) == len(b) and all(None not in one.rates and one.rates for one in (*a, *b))


def scaled_rates(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    """original: as it is. Its rate at the same sample, times a factor between 1 and what the batch is times its own."""
    if not are_known(original, rewritten) or level >= 3:
        return
    first, second = original[0], rewritten[0]
    reacts = any(loop.reacts for run in (first, second) for record in run.records for loop in record.loops)
    found = batches(first, second)
    every = found.every
    most = scale_of(rewritten) / scale_of(original) if found.reason else every
    pairs = list(zip(_updates(first), _updates(second), strict=True))
    for place, (a, b) in enumerate(pairs):
        where = f"optimizer {place}" if len(pairs) > 1 else ""
        factors = _factors(np.array(a.rates, float), np.array(b.rates, float), every)
        if reacts:  # noise decides when it moves the rate
            factors = factors[:, :1]
        yield from _judge(np.array(b.rates, float), factors, most, where, _epoch(second))


def _factors(before: Array, after: Array, every: int) -> Array:
    """The factor at each update, the least and the greatest; a neighbouring update of the original may be meant."""

    def factor(rate: float, old: float) -> float:
        return rate / old if old else np.inf if rate else 1.0

    found = []
    for i, rate in enumerate(after[: -(-len(before) // every)]):
        near = before[max(0, (i - 1) * every) : (i + 2) * every]
        found.append((factor(rate, before[i * every]), factor(rate, near.max()), factor(rate, near.min())))
    factors: Array = np.array(found, np.float64).reshape(-1, 3).T
    return factors


def _judge(rates: Array, factors: Array, most: float, where: str, epoch: int) -> Iterator[Finding]:
    middle, low, high = factors
    off = np.flatnonzero((low > most * (1 + SLACK)) | (high < 1 - SLACK))
    if len(off):
        i = int(off[0])
        factor = low[i] if low[i] > most else high[i]
        message = f"the learning rate is {rates[i]:.6g} at update {i}, {factor:.3g} times the original's"
        allowed = f"{most:g} times the batch may have 1 to {most:g} times" if most > 1 else "the batch is the same"
        yield Finding("learning-rate", f"{message}: {allowed}", where)
        return
    reached = np.maximum.accumulate(low)
    fallen = np.flatnonzero(high < reached * (1 - 0.2))
    if len(fallen):
        i = int(fallen[0])
        message = f"the learning rate is {reached[i]:.3g} times the original's first, and {high[i]:.3g} times at update"
        yield Finding("learning-rate", f"{message} {i}", where)
        return
    if 1 + SLACK < (top := float(middle.max())) < np.inf:
        begin, end = float(middle[0]), int(np.argmax(middle >= top * (1 - 1e-3))) + 1
        message = f"{begin:.3g} times the original's"
        if begin < top * (1 - SLACK):
            message += (
                f" at first, {top:.3g} times after {end / epoch:.3g} epochs" if epoch else f", then {top:.3g} times"
            )
        message += f" (for {most:g} times the batch; Goyal et al. 2017): compared at these rates"
        yield Finding("learning-rate", f"the learning rate is {message}", where, fails=False)


def _epoch(run: Run) -> int:
    """Updates in an epoch, 0 where that is not known."""
    return next((epoch.steps for record in run.records for epoch in record.epochs), 0)
