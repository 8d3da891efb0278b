"""The samples of every epoch: their number, their sums, their order, and whether augmentation still varies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..record import Data, Run
from .finding import Array, Finding, batch_of, first_of_each_seed, ranks_of

#: Sums over the same data in another order differ by less.
ROUNDING = 1e-6
#: Share of the gradients that were not zero and now are, from which on it is underflow.
UNDERFLOW = 0.2


class _Seen(NamedTuple):
    """What all ranks saw of one part in one epoch. Without sums, only the samples were counted."""

    samples: int
    sums: tuple[float, ...] = ()
    order: float | None = None
    labels: bool = True  # whether they were seen: else their sums are 0

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
                labels = len(sums) != 2
                sums = sums if labels else (*sums, 0.0, 0.0, 0.0)
                found[data.loop, data.part][data.epoch].append(_Seen(data.samples, sums, data.order, labels))
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
    order = sum(orders) if len(orders) == len(ranks) else None
    return _Seen(sum(rank.samples for rank in ranks), sums, order, all(rank.labels for rank in ranks))


def same_for_all_seeds(runs: Sequence[Run]) -> bool:
    seeds = [_seen(run) for run in first_of_each_seed(runs).values()]
    first, others = seeds[0] if seeds else {}, seeds[1:]
    return bool(others) and all(
        epochs.keys() <= other.get(part, {}).keys()
        and _alike_throughout([list(epochs.values()), [other[part][e] for e in epochs]], _equal)
        for part, epochs in first.items()
        for other in others
    )


def same_data(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    a = {seed: _seen(run) for seed, run in first_of_each_seed(original).items()}
    b = {seed: _seen(run) for seed, run in first_of_each_seed(rewritten).items()}
    ranks = ranks_of(rewritten) // ranks_of(original) or 1
    batch = max((batch_of(record) for run in original for record in run.records), default=1)
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
            yield from _counts(o, r, ranks, batch * ranks_of(rewritten), level, where)
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


def no_longer_varies(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    for before, after in zip(map(_seen, original), map(_seen, rewritten), strict=False):
        for part in before:
            epochs = sorted(before[part].keys() & after.get(part, {}))
            if part[1] == "train" and epochs:
                o, r = [before[part][e] for e in epochs], [after[part][e] for e in epochs]
                yield from _frozen([o], [r], _where_part(part))


def _cycled(o: list[list[_Seen]], r: list[list[_Seen]]) -> Iterator[tuple[list[_Seen], list[_Seen]]]:
    return ((o[i % len(o)], own) for i, own in enumerate(r))


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
    labels = all(seen.labels for seen in (*first, *second))
    which = slice(None) if labels else slice(0, 2)
    if all(_equal(a, b, which) for p, q in _cycled(o, r) for a, b in zip(p, q, strict=True)):
        return
    off = [_differs(first, second, i) if labels or i < 2 else False for i in range(5)]
    if any(off[:4]):
        what = " and ".join(name for name, part in (("inputs", off[:2]), ("labels", off[2:4])) if any(part))
        i = off.index(True)
        a, b = (np.mean([seen.means[i] for seen in group]) for group in (first, second))
        message = f"the {what} are not the original's (their checksum is {b:.5g} a sample instead of {a:.5g})"
        yield Finding(kinds[0], message, where)
    elif off[4]:
        yield Finding(kinds[1], "the labels belong to other inputs than the original's", where)
    elif labels and len(o) > 1 and _alike_throughout(o, _equal) and _alike_throughout([o[0], *r], _as_many):
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


def underflow(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
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
