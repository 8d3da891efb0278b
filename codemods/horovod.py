"""`horovod`: one process becomes many."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from codemods.distribution import estimator, fit, keras3, session, start, tape, train_step, writes
from codemods.distribution.conversion import Conversion, untrained
from rewriter.codemod import Finding, Refusal, codemod
from rewriter.distribution.existing import distributed, missing
from rewriter.distribution.program import NAMES, Program, Way, WayKind, by_kind, program_of
from rewriter.script import Script, import_bindings
from rewriter.training import distribute_by, other_backend

#: What converts each way of training that can be converted. All ways of a program are, or none is.
SHAPES: dict[WayKind, Callable[[Conversion, list[Way]], None]] = {
    "fit": fit.convert,
    "tape": tape.convert,
    "train_step": train_step.convert,
    "session": session.convert,
    "monitored": session.convert,
    "estimator": estimator.convert,
}


@codemod(phase="distribute", distribute="horovod", hardware="several GPUs or hosts")
def horovod(script: Script) -> Iterator[Finding]:
    """Train in several processes with Horovod, which average their gradients after every step.

    Why: N processes, each on a GPU of its own, go through the data N times as fast. All that this takes is done or
    nothing is: `hvd.init()` and a GPU for every process before anything uses one; each sample on one rank, with as
    many steps on all; the optimizer wrapped; the first weights, metrics and decisions in common; learning rates
    scaled linearly with a warm-up (Goyal et al. 2017; `--no-lr-scaling` leaves them); files and prints by rank 0.
    Every process keeps the batch size of the script.

    In loops of its own, every tape becomes a `hvd.DistributedGradientTape`, the weights and the optimizers' state of
    rank 0 are shared after the first step, and learning rates grow in the loop over the epochs, where there is one.

    A TensorFlow 1 session, also a monitored one, has its GPU in its configuration, takes the weights of rank 0 when its
    variables are set, and is fed parts of the arrays; `tf.gradients` are averaged where they are applied.

    An Estimator has its GPU in its `RunConfig` and its checkpoints on rank 0, whose weights all ranks take whenever
    `train` starts; rank 0 evaluates, predicts and exports. Input functions give each rank as much. Canned Estimators
    get a function that makes their optimizer.

    Horovod's own optimizer, tape and callbacks do not work with Keras 3 (TensorFlow 2.16 to 2.18): small functions and
    callbacks, which are written into the script, do their part.

    Not applied: a `compile`, an optimizer, a `fit`, its data or a write cannot be proven; a model may train with the
    optimizer that it was loaded with; the program is distributed already; TensorFlow 2.19 and later, for which Horovod
    cannot be built (`--distribute mirrored` or `multiworker`).

    Before:
        import tensorflow as tf
        (x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
        model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, epochs=20, callbacks=[tf.keras.callbacks.EarlyStopping()], validation_data=(x_test, y_test))
        model.save("model.h5")

    After:
        import tensorflow as tf
        import horovod.tensorflow.keras as hvd

        hvd.init()
        gpus = tf.config.list_physical_devices("GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        if gpus:
            tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
        (x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
        model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
        model.compile(
            hvd.DistributedOptimizer(tf.keras.optimizers.Adam(learning_rate=0.001 * hvd.size())),
            "sparse_categorical_crossentropy",
        )
        model.fit(
            x[hvd.rank():len(x) // hvd.size() * hvd.size():hvd.size()],
            y[hvd.rank():len(y) // hvd.size() * hvd.size():hvd.size()],
            epochs=20,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
                hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.001 * hvd.size(), warmup_epochs=5),
                tf.keras.callbacks.EarlyStopping(),
            ],
            validation_data=(x_test, y_test),
            verbose=1 if hvd.rank() == 0 else 0,
        )
        if hvd.rank() == 0:
            model.save("model.h5")
    """
    if distribute_by(script) != "horovod":
        return
    program = program_of(script)
    if program is None:
        return
    ways = program.ways
    if (already := distributed(program)) is not None:
        yield from _already(program, *already[1:])
        return
    if not ways:
        yield from untrained(program)
        return
    if (reason := _impossible(script, ways)) is not None:
        yield Refusal(ways[0].node, *reason)
        return
    conversion = Conversion(program)
    for kind, mine in by_kind(ways):
        if kind in SHAPES:
            SHAPES[kind](conversion, mine)
        else:
            conversion.refuse(mine[0].script, mine[0].node, f"{NAMES[kind]} is not converted to Horovod yet")
    if not conversion.refusals:
        start.start(conversion)
        keras3.define(conversion)
        writes.on_rank_0(conversion)
    conversion.note("every rank loads the data: what the script downloads should be there before it starts")
    conversion.note("start it: horovodrun -np 4 python {script}")
    conversion.note("on several hosts: horovodrun -np 8 -H host1:4,host2:4 python {script}")
    yield from conversion.result("trains in as many processes as horovodrun starts, each on a part of the data")


def _impossible(script: Script, ways: list[Way]) -> tuple[str, str] | None:
    """Why Horovod cannot train with the TensorFlow of the script, and what can."""
    target = script.target
    if target.since(2, 19):
        return (
            f"Horovod cannot be built for {target}",
            "--distribute mirrored (the GPUs of one host) or multiworker (several hosts)",
        )
    if all(w.kind in (*session.KINDS, "estimator") for w in ways):
        if target.since(1, 15) and target.highest < (2, 16):
            return None
        what = "Estimators" if ways[0].kind == "estimator" else "programs with sessions"
        return f"{what} are converted for TensorFlow 1.15 to 2.15, not for {target}", ""
    if target.keras is None or (target.keras == 3 and not target.before(2, 19)):
        may = "may have Keras 2 or 3" if target.keras is None else "may be one that Horovod cannot be built for"
        return (
            f"it has to be certain what runs it: {target} {may}",
            "--target tf2.15 (Keras 2) or tf2.18 (Keras 3), or --python with the interpreter that will run it",
        )
    if target.keras == 3 and (legacy := keras3.another_keras(script)):
        return f"{legacy}: it is converted for Keras 2 up to TensorFlow 2.15 only", "--target tf2.15"
    if target.keras == 2 and not target.before(2, 16):
        return f"Keras 2 is converted for TensorFlow 2.4 to 2.15, not for {target}", "--target tf2.15"
    if not target.since(2, 4):
        return f"it is converted for TensorFlow 2.4 to 2.15, not for {target}", ""
    if not target.since(2, 6) and any(b.symbol.split(".")[0] == "keras" for b in import_bindings(script)):
        return f"`keras` is another package than `tf.keras` in {target}: Horovod averages for one of them", ""
    if backend := other_backend(script):
        return f"Keras computes with {backend}", ""
    return None


def _already(program: Program, node: ast.AST, name: str) -> Iterator[Finding]:
    if name != "Horovod":
        reason = f"the program is distributed already, by {name}: Horovod does not mix with that"
        lacking = list(missing(program))
        yield Refusal(node, reason + (f"; as it stands: {'; '.join(lacking)}" if lacking else ""))
        return
    lacking = list(missing(program))
    yield Refusal(
        node,
        "the program trains with Horovod already" + (f", but {'; '.join(lacking)}" if lacking else ""),
        "add by hand what is missing" if lacking else "",
    )
