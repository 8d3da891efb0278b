"""`xla`: compile the training step with XLA, where all of it compiles and its shapes are fixed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from codemods.graph.xla import session_jit
from codemods.loops.xla import Rules, compiled_steps
from rewriter import catalog
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.compilable import Obstacle, of_model, of_objective, of_settings
from rewriter.data.pipelines import Route, routes, stages
from rewriter.data.rows import gathered
from rewriter.edits import Edit, SetKeyword
from rewriter.models import Structure, structure
from rewriter.script import Script, Site
from rewriter.training import (
    ENDLESS,
    Run,
    Training,
    checks_numerics,
    distribution,
    elements_of,
    graph_mode,
    other_backend,
    runs_eagerly,
    trainings,
)
from rewriter.values import Value

ON_CPU = "training runs on a CPU, where XLA seldom makes a Keras model faster"
STEP_ON_CPU = "training runs on a CPU, where XLA seldom makes a step faster than `tf.function` alone"
TRY_ON_CPU = "`tfboost tune` measures whether it does; `--select xla` applies it"


@codemod(level=2, phase="compile", hardware="GPU")
def xla(script: Script) -> Iterator[Finding]:
    """Compile the training step with XLA.

    Why: XLA fuses the operations of a step into few kernels. On a GPU that saves launches and memory traffic.
    On a CPU it seldom pays: where the target is known to be one, only `--select xla` applies it, and `tune`,
    which measures. Numbers agree up to rounding; dropout masks come from another generator.
    Keras 2 (TensorFlow 2.8 and later): `compile(jit_compile=True)`. Every new shape is compiled anew, so
    shapes must be fixed. A smaller last batch costs one more compilation; a training dataset that is shuffled
    again in every epoch, has more than one batch and is used for nothing else drops it instead
    (`drop_remainder=True`).
    Keras 3 compiles on a GPU by itself (`jit_compile="auto"`). There `jit_compile=False` is set where the
    script's own code holds operations that XLA cannot compile: training would end at the first batch.
    Training steps of the script's own that run as a graph: `@tf.function(jit_compile=True)`, also with Keras 3, and
    without Keras. `tf-function` makes a graph of those that run eagerly.
    TensorFlow 1 sessions and Estimators: `global_jit_level` in the configuration that they are given, or in a new
    one. TensorFlow then compiles those operations that it can, and leaves the others as they are.
    Not applied: the model, its losses or its metrics hold strings, lookup tables, Python functions or other
    operations that do not compile or cannot be seen; LSTM and GRU layers would lose their fused GPU kernel;
    batches of varying shape; `run_eagerly`; distributed training; before TensorFlow 2.8.

    Before:
        import numpy as np
        import tensorflow as tf

        x, y = np.random.rand(1000, 8), np.random.rand(1000, 1)
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)
        model = tf.keras.Sequential([tf.keras.layers.Dense(64, input_shape=(8,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
        model.fit(data, epochs=10)

    After:
        import numpy as np
        import tensorflow as tf

        x, y = np.random.rand(1000, 8), np.random.rand(1000, 1)
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32, drop_remainder=True)
        model = tf.keras.Sequential([tf.keras.layers.Dense(64, input_shape=(8,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse", jit_compile=True)
        model.fit(data, epochs=10)
    """
    sessions = list(session_jit(script, asked_on_cpu=_asked_for_on_cpu(script)))
    if sessions:
        yield from sessions
        return
    rules = Rules(_layer, _inputs, _dataset)
    on_cpu = STEP_ON_CPU if script.target.cpu and not _asked_for_on_cpu(script) else ""
    yield from compiled_steps(script, rules, on_cpu=on_cpu, hint=TRY_ON_CPU)
    told = False
    for training in trainings(script):
        place = training.place("jit_compile")
        on_batch = [s for s in training.on_batch if script.target.keras == 3 or _trains(s)]
        if place is None or not (training.fits or on_batch):
            continue
        node = training.node_in(script)
        if script.target.keras == 3 and not _asked_for_on_cpu(script):
            if distribution(script)[0] or runs_eagerly(training) or other_backend(script):
                continue  # TensorFlow does not compile then
            finding = _keras3(training, node, place)
            if finding is not None:
                yield finding
            elif not told:
                told = True
                if script.target.cpu:
                    yield Refusal(node, ON_CPU, TRY_ON_CPU)
                else:
                    yield Refusal(node, 'nothing to add: Keras 3 compiles on a GPU by itself (`jit_compile="auto"`)')
            continue
        if reason := _no_use(script):
            yield Refusal(node, reason, TRY_ON_CPU if reason == ON_CPU else "")
            return
        reason = place if isinstance(place, str) else refused(training)
        if reason:
            yield Refusal(node, reason)
            continue
        assert isinstance(place, ast.Call)
        edits: list[Edit] = [SetKeyword(place, "jit_compile", "True")]
        cut = cut_batches(training)
        edits += [SetKeyword(call, "drop_remainder", "True") for call in cut]
        message = "the training step is compiled with XLA"
        if cut:
            message += "; what does not fill a batch is left out of each epoch, for batches of one shape"
        elif any(_has_rest(run) for run in training.fits):
            message += "; a smaller last batch, where there is one, is compiled once more"
        yield Fix(place, message, edits)


def _no_use(script: Script) -> str:
    """Why the codemod is of no use to a whole script."""
    target = script.target
    if not target.since(2, 8):
        return f"`compile` takes `jit_compile` from TensorFlow 2.8 on ({target})"
    return ON_CPU if target.cpu and not _asked_for_on_cpu(script) else ""


def _asked_for_on_cpu(script: Script) -> bool:
    return script.target.cpu and script.options.names("xla")


def _keras3(training: Training, node: ast.AST, place: ast.Call | str) -> Finding | None:
    reason = next((o.reason for o in _own_code(training) if o.certain), "") or next(
        (r for m in training.models for layer in structure(m).layers if (r := _fails_in_keras3(layer))), ""
    )
    if not reason:
        return None
    if isinstance(place, str):
        return Refusal(node, f"{reason}, but Keras 3 compiles on a GPU; {place}", "set `jit_compile=False`")
    message = f"Keras 3 would compile the step on a GPU, and {reason}"
    return Fix(place, message, [SetKeyword(place, "jit_compile", "False")])


#: Layers of Keras 3 that do not compile, though they do not tell Keras so.
_UNTOLD = frozenset("RandomElasticTransform RandomHeight RandomWidth CutMix MixUp".split())


def _fails_in_keras3(layer: Value) -> str:
    name = layer.keras.removeprefix("layers.")
    script, call = layer.script, layer.node
    if layer.cls is not None or script is None or not isinstance(call, ast.Call):
        return ""
    if name == "Resizing":
        given = script.bind(call, ("height", "width", "interpolation")).get("interpolation")
        method = script.constant(given) if given is not None else "bilinear"
        return f"`Resizing`{_at(layer)} with {method} interpolation has no XLA kernel" if method == "bicubic" else ""
    return f"`{name}`{_at(layer)} has no XLA kernel" if name in _UNTOLD else ""


# -- whether it compiles -------------------------------------------------------------------------------------


def refused(training: Training) -> str:
    """Why the training step is not compiled on Keras 2; empty where it surely can be."""
    script = training.script
    if training.unseen:
        return training.unseen[0].reason
    if reason := graph_mode(script) or runs_eagerly(training) or checks_numerics(script):
        return reason
    name, shown = distribution(script)
    if name:
        return f"training is distributed with {shown}, which does not mix with a compiled step"
    built = [structure(m) for m in training.models]
    for model in built:
        if model.unseen:
            return model.unseen[0].reason
    if reason := next((r for m in built for layer in m.layers if (r := _layer(layer))), ""):
        return reason
    for obstacle in _own_code(training):
        return obstacle.reason
    return _optimizer(training) or _shapes(training, built)


def _own_code(training: Training) -> Iterator[Obstacle]:
    """Obstacles in the script's own layers, models, losses and metrics."""
    for model in training.models:
        yield from of_model(structure(model))
        for layer in structure(model).layers:
            yield from of_settings(layer)
    site = training.compile
    for optimizer in site.script.values(site.arguments.get("optimizer")):
        yield from of_settings(optimizer)
    if training.method("compile") is None:
        for name in ("loss", "metrics", "weighted_metrics"):
            yield from of_objective(site.script, site.arguments.get(name))


#: Layers that XLA compiles, in every version that has `jit_compile`.
_COMPILES = frozenset(
    "Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average "
    "AveragePooling1D AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D BatchNormalization "
    "Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose "
    "Convolution1D Convolution2D Convolution3D Convolution2DTranspose Cropping1D Cropping2D Cropping3D "
    "Dense DepthwiseConv1D DepthwiseConv2D Dot Dropout ELU EinsumDense Embedding Flatten GaussianDropout "
    "GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalAvgPool1D "
    "GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D GlobalMaxPooling1D "
    "GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization Identity InputLayer Lambda Layer "
    "LayerNormalization LeakyReLU Masking MaxPool1D MaxPool2D MaxPool3D MaxPooling1D MaxPooling2D "
    "MaxPooling3D Maximum Minimum MultiHeadAttention Multiply Normalization PReLU Permute RandomBrightness "
    "RandomContrast RandomFlip ReLU RepeatVector Rescaling Reshape SeparableConv1D SeparableConv2D "
    "SeparableConvolution1D SeparableConvolution2D Softmax SpatialDropout1D SpatialDropout2D "
    "SpatialDropout3D Subtract ThresholdedReLU TimeDistributed UnitNormalization UpSampling1D UpSampling2D "
    "UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D Resizing Bidirectional RNN SimpleRNN "
    "SimpleRNNCell LSTMCell GRUCell StackedRNNCells ConvLSTM1D ConvLSTM2D ConvLSTM3D LSTM GRU".split()
)
_STRINGS = frozenset(
    "StringLookup IntegerLookup TextVectorization Hashing HashedCrossing CategoryCrossing DenseFeatures "
    "SequenceFeatures".split()
)
_WARPS = frozenset("RandomRotation RandomZoom RandomTranslation RandomHeight RandomWidth".split())


def _layer(layer: Value) -> str:
    """Why a model with this layer is not compiled."""
    if layer.cls is not None:
        return ""  # its code is looked at
    name = layer.keras.removeprefix("layers.").removeprefix("experimental.")
    where = _at(layer)
    if not layer.keras:
        return f"whether `{layer.name}`{where} compiles is not known"
    if name in _STRINGS:
        return f"`{name}`{where} works on strings or lookup tables, which XLA cannot compile"
    if name in _WARPS:
        return f"`{name}`{where} transforms images in a way that XLA cannot compile"
    if name in ("CuDNNLSTM", "CuDNNGRU") or (name in ("LSTM", "GRU") and _is_fused(layer)):
        return f"`{name}`{where} would lose its fused GPU kernel"
    if name in ("UpSampling2D", "Resizing"):
        return _interpolates(layer, name, where)
    if name in ("CenterCrop", "RandomCrop"):
        return f"`{name}`{where} compiles only where no image is smaller than what it cuts out, which is not seen"
    if name in ("CategoryEncoding", "Discretization"):
        return _encodes(layer, name, where)
    return "" if name in _COMPILES else f"whether `{name}`{where} compiles is not known"


def _at(value: Value) -> str:
    return f" ({value.script.at(value.node)})" if value.script and value.node else ""


#: Arguments with which LSTM and GRU layers run in one fused kernel on a GPU; with any other value they never do.
_FUSED: dict[str, object] = {
    "activation": "tanh", "recurrent_activation": "sigmoid", "recurrent_dropout": 0, "unroll": False,
    "use_bias": True, "reset_after": True,
}  # fmt: skip


def _is_fused(layer: Value) -> bool:
    script, call = layer.script, layer.node
    if script is None or not isinstance(call, ast.Call):
        return True
    if script.target.cpu:
        return False
    arguments = script.bind(call, ("units", "activation", "recurrent_activation", "use_bias"))
    for argument, wanted in _FUSED.items():
        given = arguments.get(argument)
        if (
            given is not None
            and (known := script.values(given))
            and len(known) == 1
            and known[0].kind == "constant"
            and known[0].literal != wanted
        ):
            return False
    return True


def _encodes(layer: Value, name: str, where: str) -> str:
    script, call = layer.script, layer.node
    if script is None or not isinstance(call, ast.Call):
        return f"what `{name}`{where} gives cannot be seen"
    sparse = script.bind(call).get("sparse")
    if script.bind(call).open or (sparse is not None and script.constant(sparse) is not False):
        return f"`{name}`{where} may give sparse tensors"
    if script.target.since(2, 15):
        return ""
    return f"`{name}`{where} is known to compile from TensorFlow 2.15 on only"


def _interpolates(layer: Value, name: str, where: str) -> str:
    script, call = layer.script, layer.node
    if script is None or not isinstance(call, ast.Call):
        return f"how `{name}`{where} interpolates cannot be seen"
    signature = (
        ("size", "data_format", "interpolation") if name == "UpSampling2D" else ("height", "width", "interpolation")
    )
    given = script.bind(call, signature).get("interpolation")
    method = script.constant(given) if given is not None else "nearest" if name == "UpSampling2D" else "bilinear"
    if method == "nearest" and name == "UpSampling2D":
        return f"the gradient of `{name}`{where} has no XLA kernel"
    if method in ("bilinear", "nearest"):
        if script.target.since(2, 15):
            return ""
        return f"`{name}`{where} with {method} interpolation is known to compile from TensorFlow 2.15 on only"
    return f"`{name}`{where} interpolates in a way that XLA cannot compile"


def _optimizer(training: Training) -> str:
    site = training.compile
    expr = site.arguments.get("optimizer")
    if expr is None or training.method("compile") is not None:
        return ""
    for value in site.script.values(expr):
        if value.kind == "constant" or (value.kind == "optimizer" and value.keras and value.cls is None):
            continue
        return f"whether the optimizer `{ast.unparse(expr)}` compiles is not known"
    return ""


# -- whether shapes are fixed --------------------------------------------------------------------------------


def _shapes(training: Training, built: list[Structure]) -> str:
    """Why batches may have shapes that differ."""
    declared = True
    for model in built:
        reason, given = _inputs(model)
        if reason:
            return reason
        declared = declared and given
    for run in [*training.fits, *training.tests]:
        if reason := _batches(run, declared):
            return reason
    for site in filter(_trains, training.on_batch):
        return f"whether all batches of `train_on_batch` ({site.script.at(site.call)}) have one shape is not seen"
    return ""


def _trains(site: Site) -> bool:
    return site.method == "train_on_batch"


def _inputs(model: Structure) -> tuple[str, bool]:
    """Why the inputs of a model may vary in shape, and whether their shapes are declared at all."""
    declared = False
    for value in model.inputs:
        script, call = value.script, value.node
        if script is None or not isinstance(call, ast.Call):
            continue
        arguments = script.bind(call, ("shape", "batch_size", "name", "dtype", "sparse", "tensor", "ragged"))
        for kind in ("ragged", "sparse"):
            given = arguments.get(kind)
            if given is not None and script.constant(given) is not False:
                return f"the model takes {kind} tensors", False
        dtype = arguments.get("dtype")
        if dtype is not None and (script.constant(dtype) == "string" or script.symbol(dtype) == "tensorflow.string"):
            return "the model takes strings, which XLA cannot compile", False
        shape, first = arguments.get("shape"), 0
        if shape is None:
            shape, first = arguments.get("batch_shape") or arguments.get("batch_input_shape"), 1
        if shape is None or arguments.open:
            return f"the shape of an input ({script.at(call)}) is not given", False
        if _varies(script, shape, first):
            return f"the shape of an input ({script.at(call)}) varies: `{ast.unparse(shape)}`", False
        declared = True
    for layer in model.layers:
        script, call = layer.script, layer.node
        if script is None or not isinstance(call, ast.Call):
            continue
        for name, first in (("input_shape", 0), ("batch_input_shape", 1), ("batch_shape", 1)):
            given = script.argument(call, name)
            if given is not None:
                if _varies(script, given, first):
                    return (
                        f"the shape of the input ({script.at(call)}) varies: `{ast.unparse(given)}`",
                        False,
                    )
                declared = True
        if (
            any(script.argument(call, name) is not None for name in ("input_dim", "input_length"))
            and layer.keras != "layers.Embedding"
        ):
            declared = True
        if layer.keras == "layers.Embedding" and script.argument(call, "input_length") is not None:
            declared = True
    if any(
        m.keras.startswith("applications.")
        and m.script
        and isinstance(m.node, ast.Call)
        and m.script.argument(m.node, "input_shape") is not None
        for m in model.models
    ):
        declared = True
    return "", declared


def _varies(script: Script, shape: ast.expr, first: int) -> bool:
    """Whether a shape has a None in it, the batch apart."""
    for value in script.values(shape):
        if value.kind == "sequence":
            for item in value.items[first:]:
                if any(v.kind == "constant" and v.literal is None for v in item):
                    return True
        elif value.kind == "constant" and value.literal is None:
            return True
    return False


#: Stages that make batches of varying shape, whatever the arguments.
_VARYING = frozenset("bucket_by_sequence_length ragged_batch group_by_window sparse_batch".split())


def _batches(run: Run, declared: bool) -> str:
    """Why the batches of one `fit`, `evaluate` or `predict` may vary in shape."""
    script = run.site.script
    where = "" if run.purpose == "fit" else f" of `{run.site.method}` ({run.site.script.at(run.site.call)})"
    if run.data in ("generator", "loader") and run.source is not None:
        for value in script.values(run.source):
            if value.kind == "loader" and value.cls is None and "ImageDataGenerator" in value.name:
                continue
            return f"the batches{where} come from Python code, where their shapes are not seen"
        return ""
    if run.data == "unknown" and run.purpose != "predict":
        what = f" `{script.text(run.source)}`" if run.source is not None else ""
        return f"the shapes of the data{what}{where} are not seen"
    if run.source is None:
        return ""
    size = run.site.arguments.get("batch_size")
    if size is not None and script.integer(size) is None and _measures(script, size):
        return f"the batch size{where} may be another at every call: `{script.text(size)}`"
    for value in script.values(run.source):
        if value.kind in ("dataset", "tfds") and (reason := _dataset(value, declared)):
            return reason
        if (
            run.purpose == "fit"
            and not declared
            and run.data == "arrays"
            and value.kind not in ("array", "sequence", "mapping", "tensor", "splits", "constant")
        ):
            return "neither the model nor the data tells the shape of the input"
    return ""


def _measures(script: Script, size: ast.expr) -> bool:
    """A batch size that is the length of the data at hand, as where a `fit` is given one batch of a replay memory."""
    return any(
        (isinstance(n, ast.Call) and script.called(n) == "builtins.len")
        or (isinstance(n, ast.Attribute) and n.attr == "shape")
        for n in ast.walk(size)
    )


def _dataset(dataset: Value, declared: bool) -> str:
    """Why the elements of a dataset may vary in shape."""
    todo = [dataset]
    while todo:
        found = stages(todo.pop())
        declared = declared or any(gathered(stage) for stage in found)
        for stage in found:
            script, call = stage.script, stage.node
            if script is None or not isinstance(call, ast.Call):
                continue
            where = f"({script.at(call)})"
            if stage.name == "padded_batch":
                if not _pads_to_fixed(script, call):
                    return f"`padded_batch` {where} makes every batch as long as its longest element"
            elif stage.name in _VARYING or (
                stage.name == "apply"
                and any(
                    script.called(a).rpartition(".")[2] in (*_VARYING, "dense_to_ragged_batch", "dense_to_sparse_batch")
                    for a in call.args
                    if isinstance(a, ast.Call)
                )
            ):
                return f"`{ast.unparse(call.func).rpartition('.')[2]}` {where} makes batches of varying shape"
            elif stage.name.endswith("Dataset.from_generator"):
                if reason := _generator(script, call):
                    return f"{reason} {where}"
            elif not declared and (
                stage.base.kind in ("unknown", "parameter")
                if stage.base is not None
                else not stage.name.endswith(("from_tensor_slices", "from_tensors", ".zip", "sample_from_datasets"))
                and stage.keras not in catalog.KERAS_DATASETS
            ):
                return "neither the model nor the dataset tells the shape of the input"
            if stage.name.endswith((".zip", "zip", "concatenate", "sample_from_datasets")):
                for argument in [*call.args, *(k.value for k in call.keywords)]:
                    parts = argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument]
                    todo += [v for p in parts for v in script.values(p) if v.kind == "dataset"]
    return ""


def _pads_to_fixed(script: Script, call: ast.Call) -> bool:
    shapes = script.bind(call, "Dataset.padded_batch").get("padded_shapes")
    if shapes is None:
        return False
    for node in ast.walk(shapes):
        if isinstance(node, ast.Constant) and (node.value is None or node.value == -1):
            return False
        if isinstance(node, ast.UnaryOp):
            return False
    return all(v.kind == "sequence" for v in script.values(shapes))


def _generator(script: Script, call: ast.Call) -> str:
    arguments = script.bind(call, "Dataset.from_generator")
    given = arguments.get("output_signature") or arguments.get("output_shapes")
    if given is None:
        return "`from_generator` does not tell the shapes of its elements"
    for value in script.values(given):
        node = value.node if isinstance(value.node, ast.expr) else given
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and part.value is None:
                return "the elements of `from_generator` vary in shape"
            if (
                isinstance(part, ast.Name)
                and part is not node
                and any(
                    v.kind in ("unknown", "parameter") or (v.kind == "constant" and v.literal is None)
                    for v in (value.script or script).values(part)
                )
            ):
                return "the shapes that `from_generator` gives are not seen"
        if value.kind in ("unknown", "parameter"):
            return "the shapes that `from_generator` gives are not seen"
    return ""


# -- the last batch ------------------------------------------------------------------------------------------


def _has_rest(run: Run) -> bool:
    """Whether the last batch of an epoch may be smaller than the others."""
    if run.data != "dataset":
        return run.steps.rest
    batches = final_batches(run)
    return not batches or any(batch is None or _rest(batch) != 0 for batch in batches)


def final_batches(run: Run) -> list[Value | None]:
    """The `batch` stage that makes the batches of a `fit`, for each dataset that it may be given."""
    if run.source is None:
        return []
    return [
        next((s for s in reversed(stages(v)) if s.name == "batch"), None)
        for v in run.site.script.values(run.source)
        if v.kind == "dataset"
    ]


def _rest(batch: Value) -> int | None:
    """Elements in the last batch if it is smaller; 0 if it is full or left out; None if that is not known."""
    script, call = batch.script, batch.node
    if script is None or not isinstance(call, ast.Call) or batch.base is None:
        return None
    arguments = script.bind(call, "Dataset.batch")
    if arguments.may_have("drop_remainder"):
        given = arguments.get("drop_remainder")
        return 0 if given is not None and script.constant(given) is True else None
    size, count = script.integer(arguments.get("batch_size")), elements_of(batch.base).number
    if count == ENDLESS:
        return 0
    return None if not size or count is None else int(count) % size


def will_cut(training: Training) -> list[ast.Call]:
    """What `cut_batches` gives, if this codemod is going to compile the step."""
    script = training.script
    if script.target.keras == 3 or _no_use(script) or all(c.name != xla.name for c in script.options.codemods()):
        return []
    cut = cut_batches(training)
    return cut if cut and isinstance(training.place("jit_compile"), ast.Call) and not refused(training) else []


def cut_batches(training: Training) -> list[ast.Call]:
    """The `batch` calls that are to leave out a smaller last batch.

    Only where nothing else sees the dataset, where more than one batch remains, and where it is shuffled anew in
    every epoch, so that each epoch leaves out other samples. Not where a `fit` counts on a number of batches:
    with one batch less its data would run out in the first epoch.
    """
    found = []
    for run in training.fits:
        if run.data != "dataset" or run.steps.given or run.steps.number is None:
            continue
        for batch in final_batches(run):
            if batch is None or not _rest(batch):
                continue
            script, call = batch.script, batch.node
            assert script is not None and isinstance(call, ast.Call)
            size = script.integer(script.bind(call, "Dataset.batch").get("batch_size"))
            count = elements_of(batch.base).number if batch.base else None
            if size is None or count is None or count < 2 * size or not _reshuffled(batch):
                continue
            ways = routes(script, call)
            if ways and all(_takes_what_comes(way) for way in ways):
                found.append(call)
    return list(dict.fromkeys(found))


_HARMLESS = frozenset("map prefetch with_options repeat".split())


def _takes_what_comes(way: Route) -> bool:
    """Whether a dataset goes to a `fit` that trains on all of it, however much that is."""
    script, call = way.end.script, way.end.call
    return (
        way.end.kind == "fit"
        and set(way.names()) <= _HARMLESS
        and isinstance(call, ast.Call)
        and not script.bind(call, f"Model.{way.end.name}").may_have("steps_per_epoch")
    )


def _reshuffled(batch: Value) -> bool:
    names = []
    for stage in stages(batch)[:-1]:
        names.append(stage.name)
        if stage.name == "shuffle" and stage.script and isinstance(stage.node, ast.Call):
            again = stage.script.bind(stage.node, "Dataset.shuffle").get("reshuffle_each_iteration")
            if again is not None and stage.script.constant(again) is False:
                names[-1] = "shuffled once"
    return "shuffle" in names and "cache" not in names[names.index("shuffle") :]
