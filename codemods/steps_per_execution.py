"""`steps-per-execution`: run several training steps per call of the compiled function."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from codemods.xla import final_batches, will_cut
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.edits import SetKeyword
from rewriter.script import Script
from rewriter.training import (
    Run,
    Training,
    acts_per_batch,
    callbacks,
    distribution,
    elements_of,
    graph_mode,
    hooked_later,
    logged_per_batch,
    other_backend,
    runs_eagerly,
    trainings,
)

#: More steps per call gain little more, and callbacks, progress and interrupts come that much later.
MOST = 32

#: Methods of `keras.Model` that, overridden, may not do what N steps per call needs.
_LOOPS = (
    "fit", "fit_generator", "evaluate", "predict", "make_train_function", "make_test_function",
    "make_predict_function", "train_function", "train_on_batch",
)  # fmt: skip


@codemod(level=1, phase="compile")
def steps_per_execution(script: Script) -> Iterator[Finding]:
    """Run several training steps per call with `compile(steps_per_execution=N)`.

    Why: after every step Keras goes back to Python, which costs small models more time than the step itself.
    With N steps per call that is paid once per N. The weights are the same, bit by bit, when N divides the
    number of steps, so N is the largest number up to 32 that divides the steps of every `fit` of the model
    (and the steps of its validation, where the Keras version does not count those exactly).
    Not applied: the number of steps is not known or has no such divisor, a callback acts at every batch (it
    would see every N-th batch only), the model trains eagerly, on one batch at a time with `train_on_batch`,
    under Horovod or a strategy that does not support it, or a `fit` of it may be somewhere that is not seen.
    Keras 2 also needs data whose size it can tell for every `evaluate` and `predict`. Before TensorFlow 2.4
    there is no such argument.

    Before:
        import numpy as np
        import tensorflow as tf

        x, y = np.random.rand(512, 4), np.random.rand(512, 1)
        model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
        model.fit(x, y, batch_size=8, epochs=10)

    After:
        import numpy as np
        import tensorflow as tf

        x, y = np.random.rand(512, 4), np.random.rand(512, 1)
        model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse", steps_per_execution=32)
        model.fit(x, y, batch_size=8, epochs=10)
    """
    for training in trainings(script):
        node = training.node_in(script)
        place = training.place("steps_per_execution")
        if place is None:
            continue
        if not training.fits:
            if training.unseen and not training.on_batch:
                yield Refusal(node, f"no `fit` of this model is seen: {training.unseen[0].reason}")
            continue
        if not script.target.since(2, 4):
            yield Refusal(node, f"`compile` takes `steps_per_execution` from TensorFlow 2.4 on ({script.target})")
            return
        steps = _steps(training)
        numbers = [] if isinstance(steps, str) else [n for n, _ in steps]
        if numbers and max(numbers) < 2:
            continue  # an epoch is one step
        reason = place if isinstance(place, str) else _unsuited(training) or _unsized(training)
        if reason or isinstance(steps, str):
            hint = "give `compile` a steps_per_execution that divides the steps of an epoch, if you know it"
            yield Refusal(node, reason or str(steps), "" if reason else hint)
            continue
        assert isinstance(place, ast.Call)
        chosen = largest_divisor(math.gcd(*numbers))
        if chosen < 2:
            yield Refusal(
                node,
                f"no number from 2 to {MOST} divides {'' if len(set(numbers)) == 1 else 'all of '}{_listed(steps)}",
                "choose batch size and number of samples so that these numbers share a divisor",
            )
            continue
        message = f"{chosen} steps run per call of the compiled function: a divisor of {_listed(steps)}"
        yield Fix(place, message, [SetKeyword(place, "steps_per_execution", str(chosen))])


def largest_divisor(steps: int) -> int:
    """The largest divisor of a number of steps that is not above 32."""
    return next((n for n in range(min(steps, MOST), 0, -1) if steps % n == 0), 1)


def _unsuited(training: Training) -> str:
    """Why more than one step per call would change what the script does, whatever the number of steps."""
    script = training.script
    if training.unseen:
        return training.unseen[0].reason
    if reason := graph_mode(script) or runs_eagerly(training):
        return reason
    if script.target.keras != 2 and (backend := other_backend(script)):
        return f"the script trains on {backend}, or may do so"
    if training.on_batch and not _counts_exactly(script):
        site = training.on_batch[0]
        return f"`{site.method}` of the same model ({site.script.at(site.call)}) fails when a call runs several steps"
    for name in _LOOPS:
        if own := training.method(name):
            owner = own[0].parents[own[1]]
            assert isinstance(owner, ast.ClassDef)
            return f"`{owner.name}` has its own `{name}`"
    name, shown = distribution(script)
    if name == "horovod":
        return f"under {shown} the first N steps would run before the weights are broadcast"
    if name and not (script.target.keras == 2 and name.endswith((".MirroredStrategy", ".OneDeviceStrategy"))):
        return f"Keras does not run several steps per call under {shown} in every version"
    if reason := logged_per_batch(script):
        return reason
    for run in [*training.fits, *training.tests]:
        found, why = callbacks(run.site)
        for callback in found:
            if reason := acts_per_batch(callback):
                return reason
        if why := why or (hooked_later(script) if found else ""):
            return why
    return ""


def _counts_exactly(script: Script) -> bool:
    """Keras 3.7 and later: what is left of the data after the last N steps is run, and counted, by itself."""
    target = script.target
    if target.keras != 3:
        return False
    return target.since(2, 20) or (target.keras_version is not None and target.keras_version >= (3, 7))


def _unsized(training: Training) -> str:
    """Keras 2 raises an error where it cannot tell the number of batches itself."""
    if training.script.target.keras == 3:
        return ""
    for run in [*training.fits, *training.tests]:
        if not run.steps.given and not run.steps.sized:
            line = f" ({run.site.script.at(run.site.call)})" if run.purpose != "fit" else ""
            return f"Keras 2 must be able to tell the number of {_batches_of(run)}{line}: {run.steps.why}"
    return ""


def _batches_of(run: Run) -> str:
    names = {"fit": "training steps", "validation": "validation steps"}
    return names.get(run.purpose, f"batches of `{run.site.method}`")


def _listed(steps: list[tuple[int, Run]]) -> str:
    """`235 training steps, 1 validation step and 313 batches of `evaluate``"""
    kinds: dict[str, dict[int, None]] = {}
    for number, run in steps:
        kinds.setdefault(_batches_of(run), {})[number] = None
    parts = []
    for kind, numbers in kinds.items():
        shown = " and ".join(map(str, numbers))
        parts.append(f"{shown} {kind.removesuffix('s') if shown == '1' else kind}")
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _steps(training: Training) -> list[tuple[int, Run]] | str:
    """The numbers that N must divide, each with what runs so often; or which of them is not known."""
    script, found = training.script, list[tuple[int, Run]]()
    cut = will_cut(training)
    runs = list(training.fits)
    for run in training.tests:
        # Keras 3 rounds a number that is given up to a multiple of N; before 3.7 it may lose the rest of a test.
        rounded = run.steps.given and script.target.keras != 2
        lost = run.purpose != "predict" and script.target.keras != 2 and not _counts_exactly(script)
        if rounded or lost:
            runs.append(run)
    for run in runs:
        if run.steps.number is None or run.steps.number < 1:
            line = f" ({run.site.script.at(run.site.call)})" if run.site.call is not training.fits[0].site.call else ""
            why = run.steps.why or "there are none"
            return f"the number of {_batches_of(run)}{line} is not known: {why}"
        left_out = [b for b in final_batches(run) if b is not None and b.node in cut] if run.purpose == "fit" else []
        passes = [run.steps.number // batches for b in left_out if (batches := elements_of(b).number)]
        found.append((int(run.steps.number - max(passes, default=0)), run))  # a batch less in each pass over the data
    return found
