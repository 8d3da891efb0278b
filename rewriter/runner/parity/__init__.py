"""Do two scripts train the same? Judged from recorded runs of both, with equal seeds.

Level 1 promises the same numbers: losses are compared step by step. Rounding differs where operations are reordered,
and training amplifies it, so the tolerance grows with the steps (`tolerance_at`), and with what two runs of the script
at the same seed differ by, where such runs are given. An original that does not repeat itself is judged as at level 2,
and so is what comes after rounding has visibly grown beyond the tolerance (`_chaotic`): a network at a high learning
rate takes 50 steps from 1e-7 to 1e-2. Where the script sets no seed, its rewrite need not repeat itself either.

Levels 2 and 3 promise the same training: loss curves over several seeds. A curve is cut into windows along the
samples; their means over the first half, the second half and the end may differ by as much as the original's own
seeds let expect, and by a small share of the loss (see `losses`), which is what a lower precision may cost.

Whatever the level: the data of every epoch and whether their order still varies, how long training lasts, optimizers
and how the learning rate moves, NaN, gradients that vanish, float64 that is lost, ranks whose weights differ. A finding
with `fails=False` is a remark.

Several ranks are compared with one process that has the same global batch and the same learning rates (`batches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..record import Run
from .batches import Batches, batches, put_together, same_batches, scaled_rates
from .data import no_longer_varies, same_data, same_for_all_seeds, underflow
from .endings import endings, lengths, lost_precision, nans, no_effect, not_trained, ranks_diverge
from .finding import Array, Finding, scale_of, tolerance_at
from .losses import Losses, losses
from .metrics import validation_metrics
from .optimizers import same_optimizers, schedules

__all__ = ["Array", "Batches", "Finding", "Parity", "batches", "compare", "losses", "put_together", "tolerance_at"]

#: What one run of each script shows for good: more seeds take none of it back.
CERTAIN = frozenset(
    "nan samples precision optimizer learning-rate augmentation-frozen order-frozen validation-data ranks-diverge "
    "not-trained".split()
)
EXACT = frozenset({"length", "schedule"})


@dataclass(frozen=True)
class Parity:
    """`tolerance` says in words how much difference was allowed and why; `compared` counts the compared losses.

    settled: there is a finding that no further run can take back.
    blind: share of the loss below which a difference of the loss curves would not be noticed; 0 where they are exact.
    exact: all losses were compared one by one.
    """

    findings: tuple[Finding, ...]
    tolerance: str
    compared: int
    settled: bool = False
    blind: float = 0.0
    exact: bool = False

    @property
    def same(self) -> bool:
        return self.compared > 0 and not any(finding.fails for finding in self.findings)


def compare(
    original: Sequence[Run],
    rewritten: Sequence[Run],
    level: int,
    unseeded: tuple[Sequence[Run], Sequence[Run]] = ((), ()),
    as_is: Sequence[Run] = (),
    wanted: Batches | None = None,
) -> Parity:
    """Several runs of the original at one seed show whether it repeats itself; of the rewritten, the first counts.

    unseeded: runs in which TensorFlow had no seed. With one, random operations in a dataset draw the same in every
    epoch, so that only these runs show an augmentation that no longer varies.
    as_is: runs of the original by itself, where `original` are those that have the batches and rates of several ranks,
    as `wanted` tells.
    """
    own = as_is or original
    findings = [*endings([*as_is, *original], rewritten), *nans(original, rewritten)]
    findings += same_data([*as_is, *original], rewritten, level)
    findings += no_longer_varies(*unseeded)
    findings += underflow(original, rewritten)
    findings += same_optimizers(own, rewritten, level)
    findings += schedules(own, rewritten, level)
    findings += same_batches(wanted or Batches(), scale_of(rewritten))
    findings += scaled_rates(own, rewritten, level)
    findings += no_effect(own, rewritten)
    findings += lost_precision(own, rewritten, level)
    findings += ranks_diverge(original, rewritten)
    if not any(finding.kind == "samples" for finding in findings):  # which tells it better
        findings += lengths(own, rewritten)
    findings += not_trained(original, rewritten)
    lost = any(f.kind in ("nan", "ended", "not-trained") and f.fails for f in findings)
    curves = Losses(original, rewritten, level)
    if not lost:  # otherwise said already
        curves.judge()
        findings += curves.findings
        # ranks move the averages of a batch normalization less often than one process does
        alike = curves.exact and scale_of(original) == scale_of(rewritten)
        findings += validation_metrics(original, rewritten, level, alike)
    if not curves.compared and not lost:
        findings.append(Finding("loss", "no loss was recorded that both scripts have: nothing can be compared"))
    failing = {finding.kind for finding in findings if finding.fails}
    # Where all numbers are the same, noise has moved nothing.
    certain = CERTAIN | (EXACT if curves.exact else frozenset()) | ({"data"} if same_for_all_seeds(original) else set())
    settled = curves.settled or bool(failing & certain)
    return Parity(
        tuple(dict.fromkeys(findings)), " ".join(curves.tolerance), curves.compared, settled, curves.blind, curves.exact
    )
