"""What the function of a dataset's `map` does besides computing: draws, writes, prints, Python, the unknown.

    for effect in effects(script, map_func):
        effect.kind, effect.what, effect.script, effect.node
    order_matters(script, map_func)      # why it must be run in order, "" where it need not

Python code in a mapped function runs once, when the function is traced, in a serial map as in a parallel one;
only TensorFlow operations with a state, and what is called through `tf.py_function`, can notice an order. The
analysis enters the project's own functions and classes, lambdas, partials, methods, Keras layers and models.

`seeds(script)` lists the calls that make the random operations of a program repeatable.
"""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass
from typing import Literal

from .. import catalog
from ..models import structure
from ..scopes import FUNCTIONS
from ..script import Script
from ..values import Value
from .pipelines import related

EffectKind = Literal["random", "seeded", "python", "write", "print", "unknown"]


@dataclass(frozen=True, eq=False, slots=True)
class Effect:
    """One thing that a function does.

    kind: "random" (a stateful draw without a seed of its own), "seeded" (one with a seed), "python"
    (`py_function`), "write" (variables, tables, queues, files), "print", "unknown" (calls the unseen).
    """

    kind: EffectKind
    what: str  # as the user would name it: `tf.image.random_crop`
    script: Script
    node: ast.AST

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)


# -- tables -------------------------------------------------------------------------------------------------

#: Operations of `tensorflow.` whose results depend on what was drawn before.
_RANDOM = re.compile(
    r"(random\.(?!stateless_|set_|get_|create_|fold_in|split|Generator|Algorithm|experimental)\w+"
    r"|random_\w+|truncated_normal|multinomial|image\.(random_\w+|sample_distorted_bounding_box\w*)"
    r"|nn\.(dropout|alpha_dropout|\w*candidate_sampler|fractional_\w+_pool|sampled_softmax_loss|nce_loss)"
    r"|raw_ops\.(Random|Truncated|Parameterized|Multinomial)\w*|layers\.dropout"
    r"|keras\.(backend\.(random_\w+|dropout)|random\.(?!SeedGenerator)\w+))$"
)
_PYTHON = frozenset("py_function numpy_function py_func contrib.eager.py_func data.Dataset.from_generator".split())
_PRINTS = frozenset({"print", "Print", "debugging.print"})
_WRITES = re.compile(
    r"(assign\w*|scatter_(add|sub|update|mul|div|min|max|nd_add|nd_sub|nd_update)|io\.write_\w+|write_file"
    r"|summary\.\w+|contrib\.summary\.\w+|count_up_to)$"
)
#: Objects with a state that operations change.
_STATEFUL = re.compile(
    r"(Variable|get_variable|lookup\.(experimental\.)?(Mutable|Dense)HashTable|contrib\.lookup\.Mutable\w+"
    r"|queue\.\w+Queue|\w+Queue|train\.ExponentialMovingAverage)$"
)
_CHANGING_METHODS = re.compile(
    r"(assign\w*|scatter_\w+|batch_scatter_update|insert|insert_or_assign|remove|enqueue\w*|dequeue\w*"
    r"|count_up_to)$"
)
_GENERATOR = re.compile(r"random\.(experimental\.)?(Generator|get_global_generator|create_rng)")
_GENERATOR_DRAWS = frozenset("normal uniform truncated_normal uniform_full_int binomial make_seeds split".split())

#: Keras layers that draw whenever they are called, and those that draw only in training.
_RANDOM_LAYER = re.compile(r"Random\w+|RandAugment|AugMix|CutMix|MixUp|GridMask|ChannelShuffle|Jittered\w+")
_DROPOUTS = re.compile(r"Dropout|GaussianNoise|ActivityNoise")
_NORMS = re.compile(r"(Sync)?BatchNormalization\w*|SpectralNormalization|VectorQuant\w+|AdaptiveNorm\w+")

#: Python libraries that do nothing to a graph: what they compute is a constant of the traced function.
_TRACED = frozenset(
    "builtins numpy math os pathlib functools itertools collections operator typing re json string copy "
    "logging warnings time datetime six absl sys random enum dataclasses argparse abc glob".split()
)
#: Libraries of TensorFlow operations without state, but for names with "random" in them.
_PURE_LIBRARIES = frozenset("tensorflow_addons tensorflow_text tensorflow_io tensorflow_graphics".split())

#: Methods of tensors, strings and Python containers.
_HARMLESS_METHODS = frozenset(
    "get_shape set_shape numpy as_list to_tensor to_list to_sparse with_values bounding_shape merge_dims "
    "row_lengths flat_values eval ref is_compatible_with num_elements pop items keys values get update "
    "append extend copy setdefault index count sort reverse popitem format join split strip lower upper "
    "replace startswith endswith decode encode rstrip lstrip rsplit zfill title astype reshape transpose "
    "sum mean std min max flatten squeeze clip tolist item dot swapaxes all any ravel repeat stack unstack "
    "read write size gather concat evaluate lookup mark_used _replace _asdict".split()
)

#: What calls the functions that it is given.
_TAKING_FUNCTIONS = frozenset(
    "cond case switch_case map_fn vectorized_map while_loop foldl foldr scan partial map filter flat_map "
    "interleave apply".split()
)

#: Where the seed stands in calls that may have it by position.
_SEED_POSITION = {
    "image.random_flip_left_right": 1,
    "image.random_flip_up_down": 1,
    "image.random_brightness": 2,
    "image.random_contrast": 3,
    "image.random_saturation": 3,
    "image.random_hue": 2,
    "image.random_crop": 2,
    "image.random_jpeg_quality": 3,
    "random.uniform": 4,
    "random.normal": 4,
    "random.truncated_normal": 4,
    "random.shuffle": 1,
    "random.categorical": 3,
    "random_uniform": 4,
    "random_normal": 4,
    "random_crop": 2,
    "random_shuffle": 1,
    "truncated_normal": 4,
    "multinomial": 2,
    "nn.dropout": 3,
}


def effects(script: Script, function: ast.expr) -> list[Effect]:
    """Everything that the function does which an order could matter to; one entry per place."""
    walk = _Walk()
    walk.called(script, function, None)
    return walk.found


def seeds(script: Script) -> list[tuple[Script, ast.Call, str]]:
    """The calls that seed TensorFlow's random operations in the program that a script belongs to.

    Seeds of NumPy and of Python's `random` are left out: TensorFlow does not see them.
    """
    found = []
    for member in related(script):
        for call in member.calls:
            if name := _seeding(member, call):
                found.append((member, call, name))
    return found


def keras_seeds(script: Script) -> list[tuple[Script, ast.Call, str]]:
    """`seeds`, and `random.seed`: layers of Keras that draw take their seed from Python's `random`."""
    return seeds(script) + [
        (m, c, "random.seed") for m in related(script) for c in m.calls if m.called(c) == "random.seed"
    ]


def order_matters(script: Script, function: ast.expr, *, seen: bool = True) -> str:
    """Why the function must be run on one element after the other, in their order; "" where it need not be.

    `seen` is whether the program that runs it is seen, and with it all that may set a seed.
    """
    kinds = ("python", "write", "print", "unknown", "seeded", "random")
    for effect in sorted(effects(script, function), key=lambda e: kinds.index(e.kind)):
        what, where = f"`{effect.what}`", f"({effect.script.at(effect.node)})"
        match effect.kind:
            case "python":
                return f"it runs Python code through {what} {where}"
            case "write":
                return f"it changes a state that lasts: {what} {where}"
            case "print":
                return f"it prints {where}: the lines would come in another order"
            case "unknown":
                return f"what {what} does is not seen {where}"
            case "seeded":
                return f"{what} draws with a seed {where}: a parallel map would draw in another order"
            case "random":
                by_keras = effect.what[:1].isupper() or "keras.random" in effect.what
                if found := (keras_seeds if by_keras else seeds)(script):
                    other, call, name = found[0]
                    return (
                        f"{what} draws random numbers {where} and `{name}` makes them repeatable "
                        f"({other.at(call)}): a parallel map would draw in another order"
                    )
                if not seen:
                    return f"{what} draws random numbers {where}, and whether a seed is set is not seen"
    return ""


def _seeding(script: Script, call: ast.Call) -> str:
    """The name of a call that seeds TensorFlow, "" for any other; unknown functions named like one count."""
    func = call.func
    last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if last == "RunConfig":
        return "tf_random_seed" if script.argument(call, "tf_random_seed") else ""
    if "seed" not in last.lower() and "determinism" not in last:
        return ""
    name = script.called(call)
    if name.startswith(("tensorflow.", "keras.", "tf_keras.")):
        unset = call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value is None
        seeding = last in ("set_seed", "set_random_seed", "manual_seed", "enable_op_determinism")
        return _shown(name, script, func) if seeding and not unset else ""
    if name.split(".")[0] in _TRACED or name.split(".")[0] in ("torch", "jax"):
        return ""
    named_so = re.search(r"(set|fix|init)\w*seed|seed_(everything|all|it)|set_global_determinism", last)
    outside = all(v.kind in ("unknown", "symbol") for v in script.values(func))
    return last if named_so and outside else ""


def _shown(name: str, script: Script, func: ast.expr) -> str:
    """The name as it is written, or a short form of it."""
    try:
        text = ast.unparse(func)
    except (ValueError, RecursionError):
        text = name
    return text if len(text) < 60 else name


class _Walk:
    def __init__(self) -> None:
        self.found: list[Effect] = []
        self._seen: set[tuple[ast.AST, bool]] = set()

    def _add(self, kind: EffectKind, what: str, script: Script, node: ast.AST) -> None:
        if all(e.node is not node or e.kind != kind for e in self.found):
            self.found.append(Effect(kind, what, script, node))

    # -- what is called -------------------------------------------------------------------------------------

    def called(self, script: Script, func: ast.expr, call: ast.Call | None) -> None:
        """The effects of calling an expression; without `call` it is what a dataset's method calls."""
        at = call or func
        for value in script.values(func):
            self._value(value, script, func, call, at)

    def _value(self, value: Value, script: Script, func: ast.expr, call: ast.Call | None, at: ast.AST) -> None:
        shown = _shown(value.name, script, func)
        match value.kind:
            case "function" | "method" if value.script is not None and isinstance(value.node, FUNCTIONS):
                self._function(value.script, value.node)
            case "method":
                self._method(value, script, call, at, shown)
            case "symbol":
                self._symbol(value.name, script, call, at, shown)
            case "class":
                if value.script and isinstance(value.node, ast.ClassDef):
                    for name in ("__init__", "__post_init__"):
                        if found := value.script.method(value.node, name):
                            self._function(*found)
            case "layer" | "model":
                self._layer(value, script, call, at, shown)
            case "object" if value.cls and value.cls.script and isinstance(value.cls.node, ast.ClassDef):
                if found := value.cls.script.method(value.cls.node, "__call__"):
                    self._function(*found)
                else:
                    self._add("unknown", shown, script, at)
            case "tensor" if value.name in (
                "tensorflow.function",
                "tensorflow.autograph.to_graph",
                "tensorflow.autograph.experimental.do_not_convert",
                "tensorflow.make_template",
                "tensorflow.recompute_grad",
            ):
                if isinstance(value.node, ast.Call) and value.node.args and value.script:
                    self.called(value.script, value.node.args[0], call)
            case "constant" if value.literal is None:
                pass
            case "loss" | "metric" | "setting":
                pass
            case "object" if value.name.split(".")[0] in _PURE_LIBRARIES:
                self._library(value.name, script, at, shown)
            case _:
                self._add("unknown", shown, script, at)

    # -- the project's own code -----------------------------------------------------------------------------

    def _function(self, script: Script, function: ast.AST) -> None:
        if (function, True) in self._seen or len(self._seen) > 400:
            return
        self._seen.add((function, True))
        body = (
            function.body
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            else [getattr(function, "body", function)]
        )
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Call):
                    self._call(script, node)

    def _call(self, script: Script, call: ast.Call) -> None:
        if isinstance(call.func, ast.Lambda):
            return  # its body is walked where it stands
        self.called(script, call.func, call)
        for argument in [*call.args, *(k.value for k in call.keywords)]:
            if not isinstance(argument, ast.Name | ast.Attribute):
                continue
            for value in script.values(argument):  # tf.cond(p, flip, keep): a function that is handed on
                if value.kind in ("function", "method") and value.script and isinstance(value.node, FUNCTIONS):
                    self._function(value.script, value.node)
                elif (
                    value.kind == "symbol"
                    and value.name.startswith("tensorflow.")
                    and self._takes_functions(script, call)
                ):
                    shown = _shown(value.name, script, argument)
                    self._symbol(value.name, script, None, argument, shown)

    @staticmethod
    def _takes_functions(script: Script, call: ast.Call) -> bool:
        last = script.called(call).rpartition(".")[2] or (
            call.func.attr if isinstance(call.func, ast.Attribute) else ""
        )
        return last in _TAKING_FUNCTIONS

    # -- the libraries --------------------------------------------------------------------------------------

    def _symbol(self, name: str, script: Script, call: ast.Call | None, at: ast.AST, shown: str) -> None:
        root, _, rest = name.partition(".")
        if root == "tensorflow" or catalog.keras_path(name):
            path = f"keras.{catalog.keras_path(name)}" if catalog.keras_path(name) else rest
            if path in _PYTHON:
                self._add("python", shown, script, at)
            elif path in _PRINTS:
                self._add("print", shown, script, at)
            elif _WRITES.match(path):
                self._add("write", shown, script, at)
            elif _RANDOM.match(path):
                self._add("seeded" if _seeded(script, call, path) else "random", shown, script, at)
            elif path.startswith("contrib."):
                self._add("unknown", shown, script, at)
        elif root in _PURE_LIBRARIES:
            self._library(name, script, at, shown)
        elif (root not in _TRACED and catalog.kind_of_call(name) == "") or (
            root == "builtins" and not hasattr(builtins, rest)
        ):
            self._add("unknown", shown, script, at)

    def _library(self, name: str, script: Script, at: ast.AST, shown: str) -> None:
        last = name.rpartition(".")[2].lower()
        if "random" in last or "mixup" in last or "cutout" in last:
            self._add("random", shown, script, at)

    def _method(self, value: Value, script: Script, call: ast.Call | None, at: ast.AST, shown: str) -> None:
        """A method of something that is no class of the project."""
        base, name = value.base, value.name
        if base is None or (name in _HARMLESS_METHODS and not _GENERATOR.search(base.name)):
            return
        owner, root = base.name, base.name.split(".")[0]
        if _CHANGING_METHODS.match(name) and (
            _STATEFUL.search(owner)
            or base.kind in ("unknown", "parameter")
            or (base.kind == "tensor" and name.startswith("assign"))
        ):
            self._add("write", shown, script, at)
        elif _GENERATOR.search(owner):
            if name in _GENERATOR_DRAWS:
                free = "non_deterministic" in owner or "get_global" in owner
                self._add("random" if free else "seeded", shown, script, at)
        elif base.kind in ("layer", "model"):
            if name in ("call", "__call__"):
                self._layer(base, script, call, at, shown)
            elif name not in ("get_config", "compute_output_shape", "get_vocabulary", "vocabulary_size"):
                self._add("unknown", shown, script, at)
        elif root in _PURE_LIBRARIES:
            self._library(f"{owner}.{name}", script, at, shown)
        elif name not in ("__init__", "build") and (
            base.kind in ("unknown", "parameter")
            or (
                base.kind == "object"
                and ("." in owner or owner == "super")
                and root not in _TRACED
                and root != "tensorflow"
            )
        ):
            self._add("unknown", shown, script, at)

    # -- Keras ----------------------------------------------------------------------------------------------

    def _layer(self, value: Value, script: Script, call: ast.Call | None, at: ast.AST, shown: str) -> None:
        """Calling a layer or a model; without `training=` it is taken as not training."""
        training = script.argument(call, "training") if call else None
        off = training is not None and _is_constant(script, training) and not script.constant(training)
        trains = training is not None and not off
        node = value.node or (value.cls.node if value.cls else None) or at
        if (node, trains) in self._seen:
            return
        self._seen.add((node, trains))
        if value.kind == "layer" and not value.cls:
            self._library_layer(value, script, at, shown, trains, off)
            return
        built = structure(value)
        for layer in [*built.layers, *built.models]:
            if not layer.cls:
                self._library_layer(layer, script, at, shown, trains, off)
        for code in built.code:
            self._function(code.script, code.node)
        if built.unseen:
            self._add("unknown", shown, script, at)

    def _library_layer(self, layer: Value, script: Script, at: ast.AST, shown: str, trains: bool, off: bool) -> None:
        path = layer.keras
        name = path.rpartition(".")[2] or layer.name.rpartition(".")[2]
        if not path:
            root = layer.name.split(".")[0]
            if root in _PURE_LIBRARIES:
                self._library(layer.name, script, at, shown)
            else:
                self._add("unknown", shown, script, at)
        elif path.startswith("layers."):
            made = layer.node if isinstance(layer.node, ast.Call) else None
            if (_RANDOM_LAYER.fullmatch(name) and not off) or (_DROPOUTS.search(name) and trains):
                seeded = layer.script and made and _given(layer.script, layer.script.argument(made, "seed"))
                self._add("seeded" if seeded else "random", name, script, at)
            elif _NORMS.fullmatch(name) and trains:
                self._add("write", f"{name}(training=...)", script, at)
            elif (
                name == "Lambda"
                and made
                and layer.script
                and (function := layer.script.bind(made, "layers.Lambda").get("function"))
            ):
                self.called(layer.script, function, None)
        elif path.startswith("applications."):
            if trains:
                self._add("write", f"{shown}(training=...)", script, at)
        else:
            self._add("unknown", shown, script, at)


def _is_constant(script: Script, node: ast.expr) -> bool:
    found = script.values(node)
    return len(found) == 1 and found[0].kind == "constant"


def _given(script: Script, node: ast.expr | None) -> bool:
    return node is not None and not (_is_constant(script, node) and script.constant(node) is None)


def _seeded(script: Script, call: ast.Call | None, path: str) -> bool:
    if call is None:
        return False
    if any(k.arg is None for k in call.keywords):
        return True
    if _given(script, script.argument(call, "seed")):
        return True
    position = _SEED_POSITION.get(path)
    return position is not None and len(call.args) > position and _given(script, call.args[position])


def reseeds(script: Script) -> str:
    """What to add to a message where a further operation changes a seeded run.

    In a TensorFlow 1 graph, operations without a seed derive one from the number of operations before them.
    """
    if script.target.before(2, 0) and seeds(script):
        return " (with the graph's seed, other initial weights are drawn: the graph has more operations)"
    return ""
