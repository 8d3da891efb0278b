"""What single codemods do to the speed of a script, from sets of them that were timed in rounds.

In a round every set is run once, in turn. The logarithm of a throughput is taken as a sum: of the round, which is what
the machine does meanwhile, and of the set, or of its codemods. Least squares over all runs then compares two sets that
met in no round, by way of others, and takes the noise from all runs together. Whether a codemod helps can so be told
from few runs: in a two-level design (Plackett and Burman 1946, https://doi.org/10.1093/biomet/33.4.305) each of them is
in half of the sets, and every run tells of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from . import speed
from .record import Run

if TYPE_CHECKING:
    import numpy as np

#: A set of codemods, in the order of their names.
Names = tuple[str, ...]

#: Degrees of freedom below which there is no interval.
FEWEST_FREE = 1


class Rounds:
    """The runs of sets of codemods, round by round."""

    def __init__(self) -> None:
        self.runs: list[dict[Names, Run]] = []
        self.measured: dict[tuple[int, ...], tuple[dict[Names, speed.Throughput], dict[Names, str]]] = {}

    def between(self, first: Names, second: Names) -> speed.SpeedUp:
        """How many times as fast the second set is. Both must have been measured in three rounds at least."""
        if first == second:
            return speed.SpeedUp("not measured", "it is the same script")
        logs, why = self._logs()
        for names in (first, second):
            count = sum(names == one for _, one, _ in logs)
            if count < speed.FEWEST_PAIRS:
                reason = f"{count} runs are too few, {speed.FEWEST_PAIRS} are needed"
                return speed.SpeedUp("not measured", why.get(names) or reason)
        sets = list(dict.fromkeys(names for _, names, _ in logs))
        rows = [[float(names == one) for one in sets] for _, names, _ in logs]
        return _contrast(logs, rows, [(one == second) - (one == first) for one in sets])

    def each(self, names: Names, without: Names = ()) -> dict[str, speed.SpeedUp]:
        """What each codemod does on the average over the sets that it is in, against those without it.

        without: sets that hold one of these do not count.
        """
        logs, why = self._logs()
        logs = [log for log in logs if not any(name in log[1] for name in without)]
        rows = [[float(name in one) for name in names] for _, one, _ in logs]
        if not logs:
            reason = next(iter(why.values()), "nothing was run")
            return dict.fromkeys(names, speed.SpeedUp("not measured", reason))
        return {name: _contrast(logs, rows, [float(name == one) for one in names], bare=True) for name in names}

    def _logs(self) -> tuple[list[tuple[int, Names, float]], dict[Names, str]]:
        """Round, set and logarithm of the throughput of each run that has one; why others have none."""
        logs: list[tuple[int, Names, float]] = []
        why: dict[Names, str] = {}
        for number, made in enumerate(self.runs):
            key = tuple(map(id, made.values()))  # a round only grows: what was measured is not measured again
            if key not in self.measured:
                self.measured[key] = speed.alike(made)
            found, reasons = self.measured[key]
            logs += [(number, names, math.log(one.rate)) for names, one in found.items()]
            why |= reasons
        return logs, why


def halves(names: Names) -> tuple[list[Names], list[Names]]:
    """Sets that hold each codemod, and each two of them, equally often, all of them first; and what those leave out.

    With both, what two codemods do together is not mistaken for what a third one does.
    """
    import numpy as np
    from scipy.linalg import circulant, hadamard

    size = next(size for size in (4, 8, 12, *(2**k for k in range(4, 31))) if size > len(names))
    if size == 12:  # Plackett's and Burman's own
        signs = np.vstack([np.ones(11), circulant([-1, -1, 1, -1, -1, -1, 1, 1, 1, -1, 1])])
    else:
        signs = hadamard(size)[:, 1:]

    def chosen(wanted: int) -> list[Names]:
        return [tuple(n for n, sign in zip(names, row, strict=False) if sign == wanted) for row in signs]

    return chosen(1), chosen(-1)


def _contrast(
    logs: Sequence[tuple[int, Names, float]],
    rows: Sequence[Sequence[float]],
    weights: Iterable[float],
    *,
    bare: bool = False,
) -> speed.SpeedUp:
    """The weighted sum of the coefficients of `rows`, in a model that also has one for every round.

    bare: also where the runs are too few for an interval.
    """
    import numpy as np

    rounds = sorted({number for number, _, _ in logs})
    blocks = [[float(number == one) for one in rounds] for number, _, _ in logs]
    matrix: np.ndarray = np.hstack([np.array(rows), np.array(blocks)])
    values = np.array([value for _, _, value in logs])
    wanted = np.array([*weights, *(0.0 for _ in rounds)])
    inverse = np.linalg.pinv(matrix)
    free = len(values) - int(np.linalg.matrix_rank(matrix))
    if (free < FEWEST_FREE and not bare) or not np.allclose(wanted @ inverse @ matrix, wanted):
        return speed.SpeedUp("not measured", "too few runs tell it apart from the others")
    fitted = inverse @ values
    if free < FEWEST_FREE:
        return speed.SpeedUp("no difference shown", "too few runs for an interval", math.exp(wanted @ fitted))
    noise = float(np.sum((values - matrix @ fitted) ** 2)) / free
    error = float(np.sqrt(noise * wanted @ (inverse @ inverse.T) @ wanted))
    return speed.judged(float(wanted @ fitted), error, free)
