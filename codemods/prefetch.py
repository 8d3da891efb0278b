"""`prefetch`: prepare the next batch while the accelerator works on this one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter import catalog
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.edits import Chain
from rewriter.script import Script
from rewriter.values import Value


@codemod(level=1, phase="input")
def prefetch(script: Script) -> Iterator[Finding]:
    """End training and validation datasets in `prefetch(AUTOTUNE)`.

    Why: without it the accelerator waits while the next batch is read and decoded. TensorFlow 2.11 and later add a
    prefetch of their own to every pipeline that ends without one; there the line only makes it visible.
    Not applied: the dataset cannot be followed to its last stage.

    Before:
        import tensorflow as tf
        ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ds)

    After:
        import tensorflow as tf
        ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32).prefetch(tf.data.AUTOTUNE)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ds)
    """
    for site in script.sites("fit", "evaluate", "fit_generator"):
        for name in ("x", "generator", "validation_data"):
            argument = site.arguments.get(name)
            if argument is None:
                continue
            for dataset in script.values(argument):
                if dataset.kind == "dataset" and not _prefetched(dataset):
                    yield _fix(script, argument, dataset)


def _prefetched(dataset: Value) -> bool:
    return dataset.name in ("prefetch",)


def _fix(script: Script, argument: ast.expr, dataset: Value) -> Finding:
    owner, node = dataset.script, dataset.node
    assert owner is not None and isinstance(node, ast.expr)
    extras = [e for s, e in owner.flow(node) if isinstance(p := s.parents.get(e), ast.Attribute)
              and p.attr in catalog.DATASET_EXTRAS]
    if owner.target.since(2, 11):
        message = "the next batch is prepared while this one trains (TensorFlow 2.11 and later also do so unasked)"
    else:
        message = "the next batch is prepared while this one trains"
    place = argument if extras else node
    if not isinstance(place, ast.Call | ast.Name | ast.Attribute):
        return Refusal(argument, "the end of the pipeline is not written as one expression")
    return Fix(place, message, [Chain(place, "prefetch({%s})" % owner.autotune)])
