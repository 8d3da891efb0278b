"""What a script's idioms say about the TensorFlow and Keras that it was written for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .environment import settings
from .target import ASSUMED, FIRST_KERAS3, LAST_KERAS2, OLDEST, Evidence, Version

if TYPE_CHECKING:
    from .source import Source

_TF1 = Evidence(OLDEST, OLDEST, None)
_KERAS1 = Evidence(OLDEST, OLDEST, 2)
_KERAS2 = Evidence(None, LAST_KERAS2, 2)
_KERAS3 = Evidence(FIRST_KERAS3, None, 3)


#: Public names that only some versions have, with `tf.keras` written as `keras`.
_TABLE = (
    ("tensorflow", _TF1, """
        Session InteractiveSession placeholder placeholder_with_default ConfigProto GPUOptions contrib app
        flags layers get_variable variable_scope set_random_seed global_variables_initializer global_variables
        local_variables_initializer initialize_all_variables trainable_variables get_collection
        get_default_graph reset_default_graph log logging gfile random_normal random_uniform truncated_normal
        assign to_float disable_v2_behavior enable_v2_behavior enable_eager_execution summary.FileWriter
        summary.merge_all
        train.Saver train.AdamOptimizer train.GradientDescentOptimizer train.MomentumOptimizer
        train.RMSPropOptimizer train.AdagradOptimizer train.AdadeltaOptimizer train.FtrlOptimizer
        train.exponential_decay train.get_or_create_global_step train.string_input_producer train.batch
        train.shuffle_batch nn.rnn_cell nn.dynamic_rnn nn.softmax_cross_entropy_with_logits_v2
        losses.sparse_softmax_cross_entropy image.resize_images read_file string_split decode_raw
        parse_single_example FixedLenFeature python_io TFRecordReader FIFOQueue"""),
    ("tensorflow", Evidence(None, LAST_KERAS2), "estimator"),
    ("tensorflow", Evidence((2, 4)), "data.AUTOTUNE"),
    ("keras", Evidence(None, (2, 3), 2), """
        backend.set_session backend.get_session backend.tensorflow_backend utils.multi_gpu_model
        utils.training_utils layers.CuDNNLSTM layers.CuDNNGRU objectives"""),
    ("keras", Evidence(None, (2, 9), 2), "mixed_precision.experimental"),
    ("keras", Evidence(None, (2, 11), 2), "wrappers.scikit_learn"),
    ("keras", Evidence(None, (2, 12), 2), """
        utils.np_utils utils.generic_utils engine layers.core layers.convolutional layers.recurrent
        layers.normalization layers.merge layers.pooling layers.embeddings layers.wrappers layers.noise
        layers.advanced_activations"""),
    ("keras", Evidence((2, 10), LAST_KERAS2, 2), "optimizers.legacy"),
    ("keras", _KERAS2, "layers.experimental optimizers.experimental experimental estimator"),
    ("keras", Evidence((2, 7)), "utils.set_random_seed"),
    ("keras", Evidence((2, 10)), "utils.audio_dataset_from_directory"),
    ("keras", Evidence((2, 11)), "optimizers.AdamW"),
    ("keras", Evidence((2, 12)), "utils.FeatureSpace saving"),
    ("keras", Evidence((2, 13)), "optimizers.Lion export src"),
    ("keras", Evidence((2, 13), LAST_KERAS2, 2), """
        src.engine src.testing_infra src.dtensor src.estimator src.feature_column src.legacy_tf_layers
        src.callbacks_v1 src.backend_config"""),
    ("keras", _KERAS3, """
        ops random config distribution Variable StatelessScope dtype_policies tree quantizers KerasTensor
        DTypePolicy Function Loss Optimizer device utils.PyDataset layers.TorchModuleWrapper layers.TFSMLayer
        layers.RMSNormalization losses.Dice losses.CTC _tf_keras src.testing src.ops src.random src.trainers
        src.tree src.visualization src.distribution src.dtype_policies src.quantizers src.layers.layer
        src.models.model src.models.sequential src.models.functional"""),
    ("keras", Evidence(FIRST_KERAS3, None, 3, keras_version=(3, 5)), "optimizers.Lamb"),
    ("keras", Evidence(FIRST_KERAS3, None, 3, keras_version=(3, 10)), "optimizers.Muon"),
)  # fmt: skip
_KNOWN = {f"{root}.{name}": evidence for root, evidence, names in _TABLE for name in names.split()}
_METHODS = {
    "fit_generator": _KERAS2,
    "evaluate_generator": _KERAS2,
    "predict_generator": _KERAS2,
    "predict_classes": Evidence(None, (2, 5), 2),
}
#: Keyword arguments that no later Keras takes.
_KERAS1_ARGUMENTS = ("nb_epoch", "samples_per_epoch", "nb_val_samples", "nb_worker", "border_mode", "dim_ordering")
_LOADER_ARGUMENTS = ("workers", "use_multiprocessing", "max_queue_size")
_WORDS = (
    {name.rpartition(".")[2] for name in _KNOWN}
    | set(_METHODS)
    | set(_LOADER_ARGUMENTS)
    | set(_KERAS1_ARGUMENTS)
    | {"lr", "keras", "tf_keras", "KERAS_BACKEND", "TF_USE_LEGACY_KERAS"}
)
_SAYS = {_TF1: "is TensorFlow 1 only", _KERAS2: "is Keras 2 only", _KERAS3: "is Keras 3 only"}


def idioms(sources: Sequence[Source], known: Version = ASSUMED) -> Evidence:
    """What the idioms of scripts that run together say, beyond needing a version that is `known` anyway."""
    found = [
        (evidence, text, source, line)
        for source in sources
        for evidence, text, line in _found(source)
        if evidence.highest or evidence.keras or (evidence.lowest and evidence.lowest > known)
    ]
    found.sort(key=lambda f: (f[0].highest or (100, 0), f[0].lowest is None, [-n for n in f[0].lowest or ()]))
    total = Evidence()
    names: list[str] = []
    for evidence, text, source, line in found:
        where = f"{text} (line {line}{f' of {source.path.name}' if len(sources) > 1 else ''})"
        if total.contradicts(evidence):
            return Evidence(why=(f"the script suits different versions: {', '.join([*names, where])}",))
        names.append(where)
        total = total.narrowed(replace(evidence, why=(f"{where} {_says(evidence)}",)))
    return total


def legacy_keras(sources: Sequence[Source]) -> Evidence | None:
    """The switch that makes `tf.keras` Keras 2 with any TensorFlow, where a script sets it."""
    for source in sources:
        if "TF_USE_LEGACY_KERAS" in source.text:
            for evidence, text, line in _found(source):
                if text == "TF_USE_LEGACY_KERAS":
                    return Evidence(keras=evidence.keras, why=(f"{text} is set (line {line})",))
    return None


def which_keras(sources: Sequence[Source]) -> Evidence:
    """Whether scripts use `keras` or `tf.keras`, where the one is Keras 3 and the other Keras 2."""
    own = any(re.search(r"^\s*(?:import|from)\s+keras\b", s.text, re.MULTILINE) for s in sources)
    inside = any(
        re.search(r"\btf\.keras\b|\btensorflow\.keras\b|from tensorflow import.*\bkeras\b", s.text) for s in sources
    )
    if own == inside:
        return Evidence()
    return (
        Evidence(keras=3, why=("the script imports keras",))
        if own
        else Evidence(keras=2, why=("the script uses tf.keras",))
    )


def _says(evidence: Evidence) -> str:
    if evidence == _KERAS1:
        return "is Keras 1 only"
    if evidence in _SAYS:
        return _SAYS[evidence]
    if evidence.lowest and evidence.highest:
        return "is in TensorFlow {}.{} to {}.{}".format(*evidence.lowest, *evidence.highest)
    if evidence.highest:
        return "is gone after TensorFlow {}.{}".format(*evidence.highest)
    if evidence.keras_version:
        return "needs Keras {}.{}".format(*evidence.keras_version)
    return "needs TensorFlow {}.{}".format(*evidence.lowest) if evidence.lowest else f"means Keras {evidence.keras}"


def _found(source: Source) -> Iterator[tuple[Evidence, str, int]]:
    if _WORDS.isdisjoint(re.findall(r"\w+", source.text)):
        return
    names = _imported(source.tree)
    todo: list[tuple[ast.AST, bool]] = [(source.tree, False)]
    while todo:
        node, guarded = todo.pop()
        if not guarded:
            for evidence, text in _at(node, names):
                yield evidence, text, getattr(node, "lineno", 1)
        if isinstance(node, ast.Try) or (isinstance(node, ast.If) and _asks_version(node.test)):
            guarded = True  # what stands there suits one of several versions
        if isinstance(node, ast.Attribute):  # the names inside were read with it
            while isinstance(node, ast.Attribute):
                node = node.value
            todo.append((node, guarded))
        else:
            todo.extend((child, guarded) for child in ast.iter_child_nodes(node))


def _asks_version(test: ast.expr) -> bool:
    return any(
        isinstance(n, ast.Name | ast.Attribute)
        and re.search("version|hasattr|TF1|TF2", n.id if isinstance(n, ast.Name) else n.attr, re.IGNORECASE)
        for n in ast.walk(test)
    )


def _at(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[Evidence, str]]:
    """Idioms that a node itself is; those inside are found at their own nodes."""
    match node:
        case ast.Import():
            for alias in node.names:
                yield from _named(alias.name, alias.name)
        case ast.ImportFrom(module=str(module), level=0):
            for alias in node.names:
                yield from _named(f"{module}.{alias.name}", f"{module}.{alias.name}")
        case ast.Attribute():
            if dotted := _dotted(node, names):
                yield from _named(dotted, ast.unparse(node))
            if node.attr == "lr" and isinstance(node.value, ast.Attribute) and node.value.attr == "optimizer":
                yield _KERAS2, "optimizer.lr"
        case ast.Call():
            yield from _call(node, names)
    for key, value in settings(node, lambda _: True):  # their names leave no doubt
        if isinstance(value, ast.Constant):
            yield from _environment(key.value if isinstance(key, ast.Constant) else key, value.value)


def _call(node: ast.Call, names: dict[str, str]) -> Iterator[tuple[Evidence, str]]:
    keywords = {k.arg for k in node.keywords}
    if isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if method in _METHODS:
            yield _METHODS[method], method
        elif method in ("fit", "evaluate", "predict"):
            for argument in keywords.intersection(_LOADER_ARGUMENTS):
                yield _KERAS2, f"{method}({argument}=...)"
    for argument in keywords.intersection(_KERAS1_ARGUMENTS):
        yield _KERAS1, f"{argument}=..."
    if "lr" in keywords and re.fullmatch(r"keras\.optimizers\.[A-Z]\w*", _dotted(node.func, names)):
        yield _KERAS2, f"{ast.unparse(node.func)}(lr=...)"


def _environment(name: object, value: object) -> Iterator[tuple[Evidence, str]]:
    if name == "TF_USE_LEGACY_KERAS" and str(value).lower() in ("1", "true"):
        yield Evidence(keras=2), "TF_USE_LEGACY_KERAS"
    elif name == "KERAS_BACKEND" and value in ("jax", "torch"):
        yield _KERAS3, f"KERAS_BACKEND={value}"


def _named(dotted: str, text: str) -> Iterator[tuple[Evidence, str]]:
    dotted = _canonical(dotted)
    if dotted.split(".")[0] == "tf_keras":
        yield Evidence(keras=2), "tf_keras"
    while "." in dotted:
        if evidence := _KNOWN.get(dotted):
            yield evidence, text if text.endswith(dotted.rpartition(".")[2]) else dotted
            return
        dotted = dotted.rpartition(".")[0]


def _canonical(dotted: str) -> str:
    """`tensorflow.keras.x` as `keras.x`."""
    return re.sub(
        r"^tensorflow\.(?:python\.)?(?=keras\b)|^tensorflow(?=\.optimizers\b)",
        lambda m: "" if m[0].endswith(".") else "keras",
        dotted,
    )


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or not (root := names.get(node.id)):
        return ""
    return _canonical(".".join([root, *reversed(parts)]))


def _imported(tree: ast.Module) -> dict[str, str]:
    """Name → the one library thing that it is bound to; "" for names that are bound to several."""
    names: dict[str, str] = {}

    def bind(name: str, dotted: str) -> None:
        dotted = _canonical(dotted)
        names[name] = dotted if names.get(name, dotted) == dotted else ""

    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    root = alias.name.split(".")[0]
                    bind(alias.asname or root, alias.name if alias.asname else root)
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    bind(alias.asname or alias.name, f"{module}.{alias.name}")
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() as value):
                if dotted := _dotted(value, names):
                    bind(name, dotted)
    return names
