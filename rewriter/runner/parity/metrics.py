"""What is measured on validation data at the end of an epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ..record import Run
from .finding import Finding, Key, first_of_each_seed, place_of, tolerance_at
from .losses import Judged

#: As `losses.ALIKE`, for what is measured after whole epochs.
ALIKE_AFTER_AN_EPOCH = 0.5
LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "mape", "msle", "perplexity", "divergence", "crossentropy", "hinge")
HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "iou", "dice", "r2", "cosine_similarity")


def validation_metrics(original: Sequence[Run], rewritten: Sequence[Run], level: int, exact: bool) -> Iterator[Finding]:
    a, b = first_of_each_seed(original), first_of_each_seed(rewritten)
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
                place = f"{place_of((loop, epochs[e]))}, seed {seeds[s]}"
                yield Finding("validation", message, place)
            continue
        noise = np.abs(o) * 0.05
        judged = Judged(o, r, noise, ALIKE_AFTER_AN_EPOCH if seeds else 0.0)
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
