"""What in the code of a training step XLA cannot compile.

    for found in obstacles(script, function):
        found.certain    # it fails on every TensorFlow version, on the first batch
        found.reason     # "`tf.py_function` (line 12) runs Python, which XLA cannot compile"

The project's own functions are followed. What is not known to compile is an obstacle that is not certain. The
tables come from running operations with `jit_compile=True`, alone and under a gradient, on TensorFlow 2.15.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import catalog
from .models import Structure, elements
from .script import Script
from .target import Version
from .values import Value


@dataclass(frozen=True, eq=False)
class Obstacle:
    """A call that does not compile (`certain`), or is not known to."""

    node: ast.AST
    script: Script
    reason: str
    certain: bool = False


_PYTHON = "runs Python code"
_TEXT = "works on strings"
_TABLE = "looks up a table"
_FILES = "reads or decodes files"
_PRINTS = "prints"
_RAGGED = "makes tensors of varying shape"
_NO_KERNEL = "has no XLA kernel"

#: Operations, as patterns of their names without `tensorflow.`, that XLA compiles in no version.
_NEVER: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern + "$"), why)
    for pattern, why in (
        (r"py_function|numpy_function|py_func", _PYTHON),
        (r"print|Print|debugging\.print", _PRINTS),
        (r"strings\.\w+|as_string|string_\w+|regex_replace|substr|decode_raw", _TEXT),
        (r"lookup\..+|contrib\.lookup\..+", _TABLE),
        (r"io\.(?!.*VarLen|.*FixedLen).+|read_file|write_file|image\.(de|en)code_\w+|audio\.(de|en)code_wav", _FILES),
        (r"image\.(stateless_random|random|adjust)_jpeg_quality|image\.extract_jpeg_shape", _FILES),
        (r"summary\.\w+", "writes summaries"),
        (r"timestamp", "reads the clock"),
        (r"queue\.\w+", "uses a queue"),
        (r"sparse\.(sparse_dense_matmul|softmax|add|concat|reorder|reshape|reduce_\w+|slice|fill_empty_rows|"
         r"segment_\w+|bincount|cross\w*|transpose|maximum|minimum|split)", _NO_KERNEL),
        (r"unique_with_counts|math\.segment_\w+|segment_\w+", _RAGGED),
        (r"ragged\.(constant|stack|range|boolean_mask)|RaggedTensor\.(to_tensor|from_\w+)", _RAGGED),
        (r"image\.(crop_and_resize|combined_non_max_suppression|sample_distorted_bounding_box)", _NO_KERNEL),
        (r"image\.non_max_suppression_(with_scores|overlaps)|sets\.\w+|fingerprint", _NO_KERNEL),
        (r"edit_distance|histogram_fixed_width(_bins)?|(math\.)?reduce_euclidean_norm", _NO_KERNEL),
        (r"nn\.(max_pool_with_argmax|(safe_)?embedding_lookup_sparse|dilation2d|erosion2d|fractional_\w+_pool\w*|"
         r"nce_loss|sampled_softmax_loss|ctc_(beam_search|greedy)_decoder\w*|isotonic_regression)", _NO_KERNEL),
        (r"(linalg\.(det|slogdet|eig|eigvals|lu\w*|logm|sqrtm|tridiagonal_solve|banded_triangular_solve))", _NO_KERNEL),
        (r"random\.(gamma|poisson|stateless_gamma|stateless_poisson|\w+_candidate_sampler)", _NO_KERNEL),
        (r"math\.bessel_\w+|math\.special\.\w+", _NO_KERNEL),
        (r"raw_ops\.(ImageProjective|String|Lookup|Decode|Read|Write|PyFunc|EagerPyFunc)\w*",
         _NO_KERNEL),
    )
)  # fmt: skip
_NEVER_KERAS = {
    "backend.print_tensor": _PRINTS, "backend.ctc_batch_cost": _NO_KERNEL, "backend.ctc_decode": _NO_KERNEL,
    "backend.ctc_label_dense_to_sparse": _NO_KERNEL,
}  # fmt: skip
#: Operations that compile from a version on; before it they do not, or it is not known.
_SINCE: dict[str, Version] = {
    "boolean_mask": (2, 15), "unique": (2, 15), "dynamic_partition": (2, 15), "repeat": (2, 15),
    "image.random_crop": (2, 15), "image.stateless_random_crop": (2, 15), "random_crop": (2, 15),
    "image.non_max_suppression": (2, 15), "math.bincount": (2, 15), "bincount": (2, 15),
    "math.confusion_matrix": (2, 15), "image.resize": (2, 15), "nn.ctc_loss": (2, 21),
}  # fmt: skip
#: Modules of TensorFlow whose operations compile, those in the tables above excepted.
_MODULES = re.compile(
    r"(math|nn|linalg|signal|random|bitwise|image|autodiff|types|dtypes|initializers|xla|"
    r"experimental\.numpy|compat|keras|random\.experimental|autograph(\.experimental)?)\.\w+"
    r"|(Tensor|Variable|GradientTape|TensorShape|DType|TensorSpec|Module|function|constant|name_scope|"
    r"init_scope)"
    r"(\.\w+)*$"
)
#: Operations directly in `tensorflow.` that compile.
_TOP = frozenset(
    "abs acos acosh add add_n argmax argmin argsort asin asinh atan atan2 atanh batch_to_space bitcast "
    "broadcast_dynamic_shape broadcast_static_shape broadcast_to case cast ceil clip_by_global_norm "
    "clip_by_norm clip_by_value complex concat cond constant constant_initializer control_dependencies "
    "convert_to_tensor cos cosh cumsum custom_gradient device divide dynamic_stitch einsum ensure_shape "
    "equal erf exp expand_dims expm1 eye fill floor foldl foldr gather gather_nd "
    "get_static_value gradients grad_pass_through greater greater_equal group guarantee_const "
    "identity identity_n image_gradients is_symbolic_tensor is_tensor less less_equal linspace log log1p "
    "log_sigmoid logical_and logical_not logical_or logical_xor lin_space map_fn matmul maximum meshgrid "
    "minimum mod multiply name_scope negative no_gradient no_op norm not_equal one_hot ones "
    "ones_initializer ones_like pad parallel_stack pow rank range real realdiv reciprocal recompute_grad "
    "reduce_all reduce_any reduce_euclidean_norm reduce_logsumexp reduce_max reduce_mean reduce_min "
    "reduce_prod reduce_std reduce_sum reduce_variance reshape reverse reverse_sequence roll round rsqrt "
    "saturate_cast scalar_mul scan scatter_nd searchsorted sequence_mask shape shape_n sigmoid sign sin "
    "sinh size slice sort space_to_batch space_to_batch_nd split sqrt square squared_difference squeeze "
    "stack stop_gradient strided_slice subtract switch_case tan tanh tensor_scatter_nd_add "
    "tensor_scatter_nd_max tensor_scatter_nd_min tensor_scatter_nd_sub tensor_scatter_nd_update tensordot "
    "tile timestamp to_float to_int32 to_int64 transpose truediv truncatediv tuple unstack "
    "variable_creator_scope vectorized_map where while_loop zeros zeros_initializer zeros_like TensorArray "
    "newaxis float16 float32 float64 int32 int64 bool nest.flatten nest.map_structure nest.pack_sequence_as "
    "distribute.get_replica_context distribute.get_strategy __internal__.smart_cond.smart_cond "
    "executing_eagerly squared_difference contrib.layers.flatten".split()
)
#: Libraries whose functions run while the step is traced, not in it.
_WHILE_TRACING = re.compile(
    r"(builtins|numpy|math|functools|itertools|operator|collections|copy|inspect|typing|random|logging|os|"
    r"time|datetime|warnings|sys|re|string|json|abc|absl\.logging|contextlib|einops)\b"
)
#: Methods of objects that are not followed (an optimizer, a tape, a metric, a tensor) that compile.
_METHODS = frozenset(
    "apply_gradients gradient batch_jacobian jacobian watch stop_recording minimize get_scaled_loss "
    "scale_loss get_unscaled_gradients update_state result reset_state reset_states reset_metrics unpack "
    "get_shape as_list set_shape with_values append extend items keys values get update insert pop index "
    "format join split strip lower upper startswith endswith copy add_loss add_metric add_weight "
    "add_variable assign assign_add assign_sub read write stack unstack gather concat close mark_used size "
    "identity numpy_input compute_loss compute_metrics call __call__ build count_params get_weights "
    "read_value value ref is_compatible_with rank ndims sum mean max min reshape astype get_config "
    "set_weights replace sort zip uniform normal as_default merge_call setdefault isdigit encode decode "
    "to_tensor".split()
)
#: Where a class runs inside the step: everything else is reached from here.
_LAYER_ENTRIES = ("call", "__call__", "compute_mask")
_MODEL_ENTRIES = (
    *_LAYER_ENTRIES,
    "train_step",
    "test_step",
    "predict_step",
    "compute_loss",
    "compute_metrics",
)
_LOSS_ENTRIES = ("call", "__call__", "update_state", "result", "reset_state", "reset_states")


def of_model(built: Structure) -> Iterator[Obstacle]:
    """Obstacles in the project's own code that runs inside a model."""
    seen: set[ast.AST] = set()
    for part in [built.model, *built.layers, *built.models]:
        if part.cls is not None:
            yield from of_class(part.cls, _MODEL_ENTRIES, seen)
    for code in built.code:
        if code.role != "method":
            yield from obstacles(code.script, code.node, seen)
    for operator in built.operators:
        if operator.script and isinstance(operator.node, ast.Call):
            yield from _of_symbol(operator.script, operator.node, operator.name)


def of_class(cls: Value, entries: Iterable[str], seen: set[ast.AST]) -> Iterator[Obstacle]:
    if cls.script is None or not isinstance(cls.node, ast.ClassDef):
        return
    yield from _integer_weights(cls)
    for name in entries:
        if (found := cls.script.method(cls.node, name)) is not None:
            yield from obstacles(*found, seen)


def _integer_weights(cls: Value) -> Iterator[Obstacle]:
    """Weights of a class that hold integers: TensorFlow keeps them on the CPU, where a step compiled for a GPU
    cannot reach them (keras-team/keras #20250, tensorflow/tensorflow #53192)."""
    assert cls.script is not None and isinstance(cls.node, ast.ClassDef)
    for script, method in cls.script.methods(cls.node).values():
        for call in ast.walk(method):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and (call.func.attr in ("add_weight", "add_variable") or script.called(call) == "tensorflow.Variable")
            ):
                dtype = script.argument(call, "dtype")
                name = str(script.constant(dtype) or script.symbol(dtype).rpartition(".")[2]) if dtype else ""
                if name.startswith(("int", "uint")):
                    reason = (
                        f"`{cls.name}` keeps a weight of type {name} ({script.at(call)}), out of reach of a GPU's XLA"
                    )
                    yield Obstacle(call, script, reason, True)


def of_settings(made: Value) -> Iterator[Obstacle]:
    """Obstacles in the project's own code that a layer or an optimizer is given: regularizers, constraints, schedules.

    Initializers run before the step, activations are part of the model's code.
    """
    if made.script is None or not isinstance(made.node, ast.Call):
        return
    call, seen = made.node, set[ast.AST]()
    given = [*call.args, *(k.value for k in call.keywords if not (k.arg or "").endswith(("initializer", "activation")))]
    for argument in given if made.kind in ("layer", "optimizer") else ():
        for value in made.script.values(argument):
            if value.cls is not None and value.kind in ("object", "schedule", "setting"):
                yield from of_class(value.cls, ("__call__", "call"), seen)
            elif (
                value.kind == "function" and value.script and made.kind == "layer" and not made.keras.endswith("Lambda")
            ):
                yield from obstacles(value.script, value.node, seen)


def of_objective(script: Script, expr: ast.expr | None, seen: set[ast.AST] | None = None) -> Iterator[Obstacle]:
    """Obstacles in what `compile` is given as losses or metrics: names, functions, objects, lists of them."""
    seen = set() if seen is None else seen
    if expr is None or expr in seen:
        return
    for value in script.values(expr):
        owner, node = value.script or script, value.node
        if value.kind == "sequence":
            for item in value.items:
                for v in item:
                    yield from _objective(owner, v, expr, seen)
        elif value.kind == "mapping" and isinstance(node, ast.Dict):
            for part in node.values:
                yield from of_objective(owner, part, seen)
        elif value.kind == "mapping" and isinstance(node, ast.Call):
            for keyword in node.keywords:
                yield from of_objective(owner, keyword.value, seen)
        else:
            yield from _objective(owner, value, expr, seen)


def _objective(script: Script, value: Value, expr: ast.expr, seen: set[ast.AST]) -> Iterator[Obstacle]:
    if value.kind == "constant" or (value.keras and not value.keras.startswith("wrappers.")):
        if isinstance(value.node, ast.Call) and value.kind != "constant":
            for argument in [*value.node.args, *(k.value for k in value.node.keywords)]:
                for given in script.values(argument):  # MeanMetricWrapper(my_function)
                    if given.kind in ("function", "method") and given.script:
                        yield from obstacles(given.script, given.node, seen)
    elif value.kind in ("function", "method") and isinstance(value.node, ast.AST) and value.script:
        if value.kind == "method" and not isinstance(value.node, ast.FunctionDef | ast.Lambda):
            yield Obstacle(expr, script, f"what `{script.text(expr)}` computes is not seen ({script.at(expr)})")
        else:
            yield from obstacles(value.script, value.node, seen)
    elif value.cls is not None:
        yield from of_class(value.cls, _LOSS_ENTRIES, seen)
    elif value.kind == "sequence":
        for item in value.items:
            for v in item:
                yield from _objective(value.script or script, v, expr, seen)
    else:
        yield Obstacle(expr, script, f"what `{script.text(expr)}` computes is not seen ({script.at(expr)})")


def obstacles(script: Script, function: ast.AST | None, seen: set[ast.AST] | None = None) -> Iterator[Obstacle]:
    """Obstacles in a function and in what it calls."""
    seen = set() if seen is None else seen
    if function is None or function in seen:
        return
    seen.add(function)
    body = getattr(function, "body", [])
    for statement in body if isinstance(body, list) else [body]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield from _of_call(script, node, seen)
            elif isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
                yield Obstacle(node, script, f"XLA may not compile the gradient of a `while` loop ({script.at(node)})")
            elif isinstance(node, ast.For | ast.comprehension) and script.is_dataset(node.iter):
                yield Obstacle(node.iter, script, "a loop over a dataset runs inside the step", True)
            elif isinstance(node, ast.Subscript) and (
                why := next(filter(None, map(_never, script.values(node.value))), "")
            ):
                yield Obstacle(node, script, f"`{script.text(node)}` ({script.at(node)}) {why}", True)


def _never(made: Value | None) -> str:
    """Why nothing that an object of TensorFlow does is compiled: of a table, a queue."""
    if made is None or not isinstance(made.node, ast.Call) or not made.name.startswith("tensorflow."):
        return ""
    name = made.name.removeprefix("tensorflow.")
    if not name.rpartition(".")[2][:1].isupper():  # a function: what it returns is a tensor
        return ""
    return next((f"{why}, which XLA cannot compile" for pattern, why in _NEVER if pattern.match(name)), "")


def _of_call(script: Script, call: ast.Call, seen: set[ast.AST]) -> Iterator[Obstacle]:
    for callee in script.values(call.func):
        match callee.kind:
            case "symbol":
                yield from _of_symbol(script, call, callee.name)
            case "function":
                yield from obstacles(callee.script or script, callee.node, seen)
            case "method":
                if isinstance(callee.node, ast.FunctionDef) and callee.script:
                    yield from obstacles(callee.script, callee.node, seen)
                elif why := _never(callee.base):
                    yield Obstacle(call, script, f"`{script.text(call.func)}` ({script.at(call)}) {why}", True)
                elif callee.base is not None and callee.base.kind in (
                    "unknown",
                    "parameter",
                    "object",
                    "method",
                ):
                    if callee.name not in _METHODS:
                        yield _unknown(script, call)
                elif callee.base is not None and callee.base.kind == "dataset":
                    spelled = f"`{script.text(call.func)}` ({script.at(call)})"
                    yield Obstacle(call, script, f"{spelled} reads a dataset inside the step", True)
            case "object" if callee.cls is not None and callee.cls.script and isinstance(callee.cls.node, ast.ClassDef):
                method = callee.cls.script.method(callee.cls.node, "__call__")  # of a `tf.Module`
                if method is None:
                    yield _unknown(script, call)
                else:
                    yield from obstacles(*method, seen)
            case "layer" | "model" | "class" | "tensor" | "constant" | "metric" | "loss" | "optimizer" | "schedule":
                pass  # layers are listed by the model; the rest computes with what is allowed
            case _:
                if not _is_listed_layer(script, call.func):
                    yield _unknown(script, call)


def _is_listed_layer(script: Script, func: ast.expr) -> bool:
    """`layer(x)` in `for layer in self.blocks`, and `self.blocks[i](x)`, where the list holds layers."""
    lists: list[ast.expr] = []
    if isinstance(func, ast.Subscript):
        lists.append(func.value)
    elif isinstance(func, ast.Name):
        for binding in script.names.reaching(func):
            if binding.kind != "loop" or binding.value is None:
                return False
            inner = binding.value
            while isinstance(inner, ast.Call) and inner.args and script.called(inner) in (
                "builtins.enumerate", "builtins.zip", "builtins.reversed", "builtins.list",
            ):  # fmt: skip
                inner = inner.args[binding.path[0] if inner.args[1:] and binding.path else 0]
            lists.append(inner)
    items = [elements(script, part) for part in lists]
    return bool(items) and all(
        found and all(v.kind in ("layer", "model") for item in found for v in item.values) for found in items
    )


def _unknown(script: Script, call: ast.Call) -> Obstacle:
    return Obstacle(call, script, f"whether `{script.text(call.func)}` ({script.at(call)}) compiles is not known")


def _of_symbol(script: Script, call: ast.Call, name: str) -> Iterator[Obstacle]:
    place, spelled = script.at(call), script.text(call.func)

    def cannot(why: str) -> Obstacle:
        rest = "" if why == _NO_KERNEL else ", which XLA cannot compile"
        return Obstacle(call, script, f"`{spelled}` ({place}) {why}{rest}", True)

    path = catalog.keras_path(name)
    if path:
        if path in _NEVER_KERAS:
            yield cannot(_NEVER_KERAS[path])
        elif path in ("ops.image.resize", "backend.resize_images"):
            yield from _resizing(script, call, "nearest" if path.startswith("backend") else "bilinear")
        return
    if not name.startswith("tensorflow."):
        family, _, rest = name.partition(".")
        if not _WHILE_TRACING.match(name) or (family == "builtins" and not hasattr(builtins, rest)):
            yield _unknown(script, call)
        return
    name = name.removeprefix("tensorflow.")
    for pattern, why in _NEVER:
        if pattern.match(name):
            yield cannot(why)
            return
    if name.startswith("debugging.") or name in ("Assert", "assert_equal"):
        yield Obstacle(call, script, f"XLA leaves out the check `{spelled}` ({place})")
        return
    if name in ("image.resize", "image.resize_images", "image.resize_with_pad"):
        yield from _resizing(script, call, "bilinear")
    elif name == "image.resize_nearest_neighbor":
        yield _without_gradient(script, call)
    target = script.target
    if name in ("linalg.expm", "linalg.eigh_tridiagonal", "hessians") or (
        name == "while_loop" and script.argument(call, "maximum_iterations") is None
    ):
        yield Obstacle(call, script, f"XLA cannot compile the gradient of `{spelled}` ({place})")
        return
    needs_version = _SINCE.get(name)
    if name == "where" and len(call.args) + len(call.keywords) == 1:
        needs_version = (2, 15)
    if name == "TensorArray" and script.argument(call, "dynamic_size") is not None:
        needs_version = (2, 21)
    if needs_version and not target.since(*needs_version):
        version = ".".join(map(str, needs_version))
        yield Obstacle(call, script, f"`{spelled}` ({place}) compiles from TensorFlow {version} on only")
        return
    if name not in _TOP and not _MODULES.match(name):
        yield _unknown(script, call)


def _resizing(script: Script, call: ast.Call, default: str) -> Iterator[Obstacle]:
    """Only bilinear resizing, without antialiasing, has a kernel and a gradient."""
    spelled = f"`{script.text(call.func)}` ({script.at(call)})"
    arguments = script.bind(call, ("images", "size", "method"))
    antialias = arguments.get("antialias")
    if antialias is not None and script.constant(antialias) is not False:
        yield Obstacle(call, script, f"{spelled} resizes with antialiasing, which XLA cannot compile", True)
        return
    given = arguments.get("method") or arguments.get("interpolation")
    method = (
        default if given is None else script.constant(given) or _METHOD.get(script.symbol(given).rpartition(".")[2])
    )
    if method in ("nearest", 1):
        yield _without_gradient(script, call)
    elif method is None:
        yield Obstacle(call, script, f"how {spelled} interpolates is not known")
    elif method not in ("bilinear", 0):
        yield Obstacle(call, script, f"{spelled} resizes with {method} interpolation, which XLA cannot compile", True)


_METHOD = {"BILINEAR": "bilinear", "NEAREST_NEIGHBOR": "nearest", "BICUBIC": "bicubic", "AREA": "area"}


def _without_gradient(script: Script, call: ast.Call) -> Obstacle:
    spelled = f"`{script.text(call.func)}` ({script.at(call)})"
    return Obstacle(call, script, f"the gradient of {spelled} with nearest interpolation has no XLA kernel")
