"""What is found, and what all comparisons share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..record import Loop, Record, Run

Array = NDArray[np.float64]
Key = tuple[int, int]  # loop, epoch


@dataclass(frozen=True)
class Finding:
    """kind: "loss", "nan", "stalled", "not-repeatable", "samples", "length", "data", "validation-data", "validation",
    "augmentation-frozen", "order-frozen", "labels", "learning-rate", "schedule", "optimizer", "underflow", "precision",
    "ranks-diverge", "batch", "no-effect", "not-trained" or "ended"."""

    kind: str
    message: str
    where: str = ""
    fails: bool = True


def tolerance_at(steps: float) -> float:
    """How far, relatively, two float32 runs may have drifted apart by rounding alone: 1e-5 at first, 1e-3 after 100."""
    return 1e-5 + 1e-6 * math.pow(steps, 1.5)


def first_of_each_seed(runs: Iterable[Run]) -> dict[int, Run]:
    found: dict[int, Run] = {}
    for run in runs:
        found.setdefault(run.seed, run)
    return found


def ranks_of(runs: Sequence[Run]) -> int:
    return max((record.size for run in runs for record in run.records), default=1)


def scale_of(runs: Sequence[Run]) -> int:
    """How many ranks or replicas train together."""
    return max((max(record.size, record.replicas) for run in runs for record in run.records), default=1)


def percent(share: float) -> str:
    return f"{share:.2%}" if share >= 1e-3 else f"{share:.1e}"


def place_of(key: Key) -> str:
    return f"epoch {key[1]}" if key[0] == 0 else f"loop {key[0]}, epoch {key[1]}"


def loops_of_both(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[tuple[Loop, Loop]]:
    a, b = (
        {loop.id: loop for record in runs[0].records[:1] for loop in record.loops} if runs else {}
        for runs in (original, rewritten)
    )
    return ((a[loop], b[loop]) for loop in sorted(a.keys() & b.keys()))


def name_of(loop: Loop) -> str:
    return "" if loop.id == 0 else f"loop {loop.id}"


def batch_of(record: Record) -> int:
    return max((-(-step.samples // max(step.steps, 1)) for step in record.steps), default=0) or 1
