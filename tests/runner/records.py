"""Recorded runs that nobody has run: losses, data and times as a test wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rewriter.runner.record import Data, Ending, Epoch, Loop, Record, Run, Step

ADAM = {"name": "Adam", "learning_rate": 0.001, "beta_1": 0.9, "epsilon": 1e-7}


def run(
    losses: Sequence[float | None],
    *,
    seed: int = 0,
    per_epoch: int = 0,  # batches; 0: one epoch
    batch: int = 32,
    execution: int = 1,  # steps per execution
    kind: str = "batch",
    optimizer: Mapping[str, Any] = ADAM,
    policy: str = "float32",
    compute: tuple[str, ...] = ("float32",),
    data: Sequence[Data] = (),
    logs: Sequence[Mapping[str, float]] = (),
    ending: Ending = "finished",
    size: int = 1,
    loops: int = 1,
) -> Run:
    """A run whose batches have these losses, written down as the harness would: `kind` "mean" keeps running means."""
    per_epoch = per_epoch or len(losses)
    records = []
    for rank in range(size):
        record = Record(rank=rank, size=size, data=list(data))
        for loop in range(loops):
            record.loops.append(Loop(loop, "fit", kind, 0.0, optimizer, policy, compute, steps_per_execution=execution))
            for epoch, begin in enumerate(range(0, len(losses), per_epoch)):
                own = losses[begin : begin + per_epoch]
                means = running_means(own) if kind == "mean" else own
                for first in range(0, len(own), execution):
                    end = min(first + execution, len(own))
                    steps, loss = end - first, means[end - 1]
                    record.steps.append(Step(loop, epoch, 0.01 * (begin + end), steps, steps * batch, loss))
                extra = logs[epoch] if epoch < len(logs) else {}
                if len(own) < per_epoch or (ending != "finished" and begin + per_epoch >= len(losses)):
                    continue  # it did not come to its end
                record.epochs.append(Epoch(loop, epoch, 0.01 * (begin + len(own)), len(own), len(own) * batch, extra))
        records.append(record)
    return Run(ending, 0, 1.0, records, seed=seed)


def running_means(losses: Sequence[float | None]) -> list[float]:
    return (np.cumsum(losses) / np.arange(1, len(losses) + 1)).tolist()


def seen(
    x: np.ndarray, y: np.ndarray, epoch: int = 0, part: str = "train", loop: int = 0, zeros: float | None = None
) -> Data:
    """The sums over samples that fold to `x` and `y`."""
    sums = tuple(float(v) for v in (x.sum(), (x * x).sum(), y.sum(), (y * y).sum(), (x * y).sum()))
    return Data(loop, part, epoch, len(x), sums, zeros)
