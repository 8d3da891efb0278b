"""Which precision values have in a model's own code under a mixed-precision policy, and where two of them
meet.

Layers cast their inputs and weights by themselves. Code of the script's own (a `call` method, an activation,
a `Lambda`, operators between layers) does not: `layer_output * tf.constant(2.0)` is an error, `+ 1e-8` is
nothing, and `* -1e9` is infinite in float16. `Precision` follows the values through such code and lists what
would go wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from . import catalog
from .low_precision import HUGE, LOOKUPS, TINY
from .models import Code, Structure, is_passive, structure
from .scopes import FUNCTIONS, Binding
from .script import Script, own_nodes
from .values import Value

#: A value's possible precisions. Python numbers, integers and masks have none: they take that of what they
#: meet.
LOW = frozenset({"low"})
FULL = frozenset({"full"})
FREE: frozenset[str] = frozenset()
#: What a model is called with: cast if it is float, exact if it is not.
DATA = frozenset({"low", "data"})
Kinds = frozenset[str]

_MAX_DEPTH = 8
_SAME = frozenset({"low", "full"})

#: Functions that make float32 tensors where no dtype is given (after `tensorflow.` and
#: `backend.`/`ops.`/`random.`).
_MAKERS = frozenset(
    "zeros ones eye linspace one_hot convert_to_tensor fill constant Variable variable random_normal "
    "random_uniform random_bernoulli truncated_normal random_normal_variable random_uniform_variable "
    "cast_to_floatx".split()
)
_INTEGERS = frozenset(
    "shape rank size range arange argmax argmin count_nonzero equal not_equal less less_equal greater "
    "greater_equal logical_and logical_or logical_not sequence_mask is_nan is_finite is_inf print Assert "
    "no_op group int_shape ndim epsilon floatx image_data_format is_tensor any all reduce_any reduce_all "
    "searchsorted bincount Tensor TensorShape learning_phase name_scope control_dependencies function "
    "is_keras_tensor is_symbolic_tensor top_k_mask isnan isinf isfinite assert_equal assert_greater "
    "assert_rank get_static_value convert_to_numpy".split()
)
_NO_HALF = frozenset(
    "linalg.inv linalg.det linalg.slogdet linalg.logdet linalg.cholesky linalg.qr linalg.svd linalg.eigh "
    "linalg.eig linalg.solve linalg.lstsq linalg.triangular_solve linalg.pinv linalg.expm linalg.logm "
    "linalg.sqrtm linalg.lu linalg.eigvals linalg.eigvalsh linalg.matrix_rank linalg.cholesky_solve "
    "nn.ctc_loss nn.ctc_beam_search_decoder math.betainc math.igamma math.igammac math.zeta math.polygamma "
    "math.bessel_i0 math.bessel_i1 math.unsorted ctc_batch_cost ctc_decode complex math.real math.imag "
    "histogram_fixed_width unique math.bincount".split()
)
_OPAQUE = frozenset("py_function numpy_function py_func".split())
_OVERFLOWS = frozenset("exp expm1 sinh cosh".split())
_BOUNDED = frozenset(
    "tanh sigmoid softmax hard_sigmoid log_sigmoid log_softmax clip clip_by_value minimum sin cos softsign".split()
)
_NORMALIZE = frozenset({"l2_normalize", "normalize"})
_NEUTRAL_ATTRIBUTES = frozenset("shape dtype ndim name rank get_shape batch_size".split())
_CONFIG_PARAMETERS = frozenset(
    "self cls training mask attention_mask padding_mask look_ahead_mask return_attention_scores".split()
)
#: Weights of Keras's layers, which are cast where a layer's `call` reads them.
_WEIGHTS = frozenset("kernel bias embeddings gamma beta recurrent_kernel depthwise_kernel pointwise_kernel".split())
_RECURRENT = frozenset(
    "layers.LSTM layers.GRU layers.SimpleRNN layers.RNN layers.Bidirectional layers.LSTMCell layers.GRUCell "
    "layers.SimpleRNNCell layers.StackedRNNCells".split()
)
#: Layers that return integers; `CategoryEncoding` gives floats.
_LOOKUPS = frozenset(f"layers.{name}" for name in LOOKUPS - {"CategoryEncoding"})
_WRAPPERS = frozenset({"layers.TimeDistributed", "layers.Wrapper"})
_CONFIG_METHODS = frozenset(
    "build get_config from_config compute_output_shape compute_mask add_weight set_weights get_weights".split()
)
_NUMBER_KEYWORDS = frozenset("axis axes seed name num k depth keepdims perm shape rate dtype maxlen num_heads".split())


@dataclass(frozen=True)
class Trouble:
    """Code that fails, or works differently, in low precision. `float16`: only there, not in bfloat16."""

    node: ast.AST
    script: Script
    reason: str
    float16: bool = False


def of_dtype(script: Script, node: ast.expr | None, same: Callable[[ast.expr], Kinds] | None = None) -> Kinds | None:
    """What a `dtype=` argument gives; None where that is not known, FREE for what is not a float."""
    if node is None:
        return None
    if isinstance(node, ast.Attribute) and node.attr in (
        "dtype",
        "compute_dtype",
        "_compute_dtype",
        "variable_dtype",
        "compute_dtype_object",
    ):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return LOW if "compute" in node.attr else FULL
        if node.attr == "dtype":
            return same(node.value) if same else LOW
    found: set[str] = set()
    for value in script.values(node):
        name = value.literal if value.kind == "constant" else value.name.rpartition(".")[2]
        if value.kind == "constant" and value.literal is None:
            continue
        if value.kind == "object" and value.name.endswith("floatx"):
            name = "float32"
        if value.kind not in ("constant", "symbol", "object") or not isinstance(name, str):
            return None
        name = name.removesuffix("_ref")
        if name in ("float32", "float64", "float", "double", "single", "floatx", "float_"):
            found |= FULL
        elif name in ("float16", "half", "bfloat16"):
            found |= LOW
        elif not name.startswith(("int", "uint", "bool", "str", "long", "complex", "object", "resource")):
            return None
    return frozenset(found)


def chooses(script: Script, given: ast.expr) -> bool:
    """Is a `dtype=` another precision than float32, or one that cannot be followed?"""
    kinds = of_dtype(script, given)
    if kinds is None or kinds & LOW:
        return True
    names = [ast.unparse(given), *(str(v.literal if v.kind == "constant" else v.name) for v in script.values(given))]
    return kinds == FULL and any("64" in name for name in names)


def _is_dtype(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == "dtype"


def has_float32(script: Script, call: ast.Call) -> bool:
    given = script.bind(call).get("dtype")
    return given is not None and of_dtype(script, given) == FULL


def settings(scripts: Iterable[Script]) -> Iterator[tuple[Script, ast.expr]]:
    """Precisions that may be passed on to layers: in dicts, and in calls of the script's own functions."""
    for script in scripts:
        for node in ast.walk(script.tree):
            found: list[ast.expr] = []
            if isinstance(node, ast.Dict):
                found = [v for k, v in zip(node.keys, node.values, strict=True) if _is_dtype(k)]
            elif isinstance(node, ast.Assign):
                found = [node.value for t in node.targets if isinstance(t, ast.Subscript) and _is_dtype(t.slice)]
            elif isinstance(node, ast.Call) and not any(
                v.kind in ("symbol", "layer", "model") and v.name != "builtins.dict" for v in script.values(node.func)
            ):
                found = [k.value for k in node.keywords if k.arg == "dtype"]
                if (
                    isinstance(node.func, ast.Attribute)
                    and node.func.attr == "setdefault"
                    and any(map(_is_dtype, node.args[:1]))
                ):
                    found += node.args[1:2]
            for expr in found:
                if chooses(script, expr):
                    yield script, expr


class Precision:
    """The precisions in a model.

    pinned: the layer calls that (will) compute in float32. integers: the `Input` calls that (will) be integers.
    """

    def __init__(
        self,
        structure: Structure,
        pinned: Collection[ast.AST],
        keras2: bool,
        keras3: bool,
        integers: Collection[ast.AST] = (),
    ) -> None:
        self.structure, self.pinned, self.keras2, self.keras3 = structure, pinned, keras2, keras3
        self.integers = integers
        self.given: dict[ast.AST, dict[int | str, Kinds]] = {}  # what the script's own layers are called with
        self.troubles: dict[tuple[ast.AST, str], Trouble] = {}
        self._frames: dict[tuple[ast.AST, tuple[Kinds, ...]], Kinds] = {}
        self._models: dict[ast.AST, Kinds] = {}

    def check(self) -> list[Trouble]:
        """Everything in the model's own code that low precision breaks."""
        symbolic = _Frame(self, {}, None, 0)
        symbolic.symbolic = True
        for operator in self.structure.operators:
            if operator.script is None or operator.node is None or _in_class(operator.script, operator.node):
                continue
            if isinstance(operator.node, ast.AugAssign):
                symbolic.augment(operator.script, operator.node)
            else:
                symbolic.of(operator.script, operator.node)
        for tensor in self.structure.calls:
            if tensor.script and isinstance(tensor.node, ast.Call) and not _in_class(tensor.script, tensor.node):
                symbolic.of(tensor.script, tensor.node)
        self._first_in_chain()
        todo = [c for c in self.structure.code if c.role != "method" or c.layer.node is self.structure.model.node]
        for code in todo:
            self._code(code)
        rest = [c for c in self.structure.code if c not in todo]
        while rest:  # a class that others call comes after them: then it is known with what
            known = [c for c in rest if c.layer.node in self.given] or rest
            self._code(known[0])
            rest.remove(known[0])
        return list(self.troubles.values())

    def _first_in_chain(self) -> None:
        """The first layer of a Sequential gets what the model is called with."""
        whole = self.structure.model.keras == "models.Sequential"
        for chain in self.structure.chains if whole else ():
            first = next((v for v in chain if v.kind == "layer"), None)
            if first is None or first.cls is None or first.node is None:
                continue
            inputs = [v for v in chain if v.keras == "layers.Input" and v.script and isinstance(v.node, ast.Call)]
            given = DATA
            for value in inputs:
                assert value.script is not None and isinstance(value.node, ast.Call)
                explicit = of_dtype(value.script, value.script.bind(value.node).get("dtype"))
                given = LOW if explicit is None or explicit else FREE
            self.given.setdefault(first.node, {})[0] = given

    def _code(self, code: Code) -> None:
        if getattr(code.node, "name", "") == "get_initial_state" and code.owner is not None:
            if _Frame(self, {}, code.owner, 0).run(code.script, code.node) & FULL:
                self.note(code.script, code.node, "the initial state is float32, and the state of a step is not")
            return
        if code.role == "method" and not self._is_run_by_keras(code):
            return
        layer = code.layer
        full = layer.node in self.pinned or self._explicit(layer) == FULL
        usual = FULL if full else LOW
        arguments = code.node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        seen: dict[int | str, Kinds] = {}
        if code.role == "method":
            parameters = parameters[1:]
            seen = self.given.get(layer.node, {}) if layer.node is not None else {}
            if not full and layer.node is self.structure.model.node:
                usual = DATA
        kinds = {
            a: FREE if a.arg in _CONFIG_PARAMETERS else seen.get(i, seen.get(a.arg, usual))
            for i, a in enumerate(parameters)
        }
        _Frame(self, kinds, code.owner, 0).run(code.script, code.node)

    def _is_run_by_keras(self, code: Code) -> bool:
        """Does Keras give this method tensors? What a class overrides of a finished layer (`Conv2D`), it does."""
        name = getattr(code.node, "name", "")
        if name in ("call", "__call__"):
            return True
        if name.startswith("__") or name in _CONFIG_METHODS or code.owner is None:
            return False
        bases = code.script.library_bases(code.owner)
        return any(
            catalog.keras_path(b).startswith("layers.") and catalog.keras_path(b) != "layers.Layer" for b in bases
        )

    def _explicit(self, layer: Value) -> Kinds | None:
        if layer.script is None or not isinstance(layer.node, ast.Call):
            return None
        return of_dtype(layer.script, layer.script.bind(layer.node).get("dtype"))

    def of_layer(self, layer: Value) -> Kinds:
        """The precision of what a layer returns."""
        explicit = self._explicit(layer)
        if layer.node is not None and layer.node in self.pinned:
            return FULL
        if (
            explicit is None
            and self.keras2
            and layer.keras == "layers.UpSampling2D"
            and layer.script
            and isinstance(layer.node, ast.Call)
            and layer.script.constant(layer.script.argument(layer.node, "interpolation")) not in (None, "nearest")
        ):
            return FULL
        return LOW if explicit is None else explicit

    def of_model(self, model: Value) -> Kinds:
        """The precision of what a model in it returns: that of the layers at its end."""
        key = model.node or (model.cls.node if model.cls else None)
        if key is None or not self.pinned:
            return LOW
        if key not in self._models:
            self._models[key] = LOW  # (while looking: a model that holds itself)
            last = [next((v for v in tail if v.kind == "layer"), None) for tail in structure(model).tails]
            self._models[key] = FREE.union(*(self.of_layer(v) if v is not None else LOW for v in last)) or LOW
        return self._models[key]

    def note(self, script: Script, node: ast.AST, reason: str, float16: bool = False) -> None:
        self.troubles.setdefault((node, reason), Trouble(node, script, reason, float16))


class _Frame:
    """One activation of a function: what its parameters are."""

    def __init__(
        self, model: Precision, parameters: dict[ast.arg, Kinds], owner: ast.ClassDef | None, depth: int
    ) -> None:
        self.model, self.parameters, self.owner, self.depth = model, parameters, owner, depth
        self.symbolic = False
        self.memo: dict[ast.AST, Kinds] = {}
        self.busy: set[ast.AST] = set()

    def run(self, script: Script, function: ast.AST) -> Kinds:
        """Walk a function; its return value's precision."""
        if isinstance(function, ast.Lambda):
            return self.of(script, function.body)
        found: set[str] = set()
        for node in own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                found |= self.of(script, node.value)
            elif isinstance(node, ast.BinOp | ast.Call | ast.Compare):
                self.of(script, node)
            elif isinstance(node, ast.AugAssign):
                self.augment(script, node)
        return frozenset(found)

    def augment(self, script: Script, node: ast.AugAssign) -> None:
        """`x += y`: what the name may have been before meets the value."""
        left = FREE
        if isinstance(node.target, ast.Name):
            for binding in script.names.scope_of(node.target).bindings.get(node.target.id, ()):
                if binding.node is not node.target:
                    left = left | self.of_binding(script, binding)
        self.meet(script, node, [(node.target, left), (node.value, self.of(script, node.value))], node.op)

    def of(self, script: Script, node: ast.AST | None) -> Kinds:
        if node is None or node in self.busy:
            return FREE
        if node not in self.memo:
            self.busy.add(node)
            try:
                self.memo[node] = self._of(script, node)
            finally:
                self.busy.discard(node)
        return self.memo[node]

    def _of(self, script: Script, node: ast.AST) -> Kinds:
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.Lambda():
                return FREE
            case ast.Name():
                kinds = [self.of_binding(script, b) for b in script.names.reaching(node)]
                return FREE.union(*kinds)
            case ast.Attribute():
                return self._attribute(script, node)
            case ast.Subscript() | ast.Starred() | ast.Await():
                return self.of(script, node.value)
            case ast.UnaryOp():
                return FREE if isinstance(node.op, ast.Not) else self.of(script, node.operand)
            case ast.BinOp():
                return self.meet(script, node, [(e, self.of(script, e)) for e in (node.left, node.right)], node.op)
            case ast.Compare():
                sides = [node.left, *node.comparators]
                self.meet(script, node, [(e, self.of(script, e)) for e in sides], None)
                return FREE
            case ast.BoolOp():
                return FREE.union(*(self.of(script, v) for v in node.values))
            case ast.IfExp():
                return self.of(script, node.body) | self.of(script, node.orelse)
            case ast.NamedExpr():
                return self.of(script, node.value)
            case ast.Tuple() | ast.List() | ast.Set():
                return FREE.union(*(self.of(script, e) for e in node.elts))
            case ast.Dict():
                return FREE.union(*(self.of(script, e) for e in node.values))
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self.of(script, node.elt)
            case ast.Call():
                return self._call(script, node)
        return FREE

    def of_binding(self, script: Script, binding: Binding) -> Kinds:
        if binding.kind == "parameter" and isinstance(binding.node, ast.arg):
            if binding.node in self.parameters:
                return self.parameters[binding.node]
            tensors = [
                v for v in script._evaluate.binding(binding) if v.kind == "tensor" and isinstance(v.node, ast.expr)
            ]
            return FREE.union(*(self.of(v.script or script, v.node) for v in tensors if v.node not in self.busy))
        if binding.kind in ("assign", "augment", "loop", "with") and binding.value is not None:
            value: ast.expr = binding.value
            for index in binding.path:
                if (
                    isinstance(value, ast.Tuple | ast.List)
                    and index < len(value.elts)
                    and not any(isinstance(e, ast.Starred) for e in value.elts)
                ):
                    value = value.elts[index]
            return self.of(script, value)
        if binding.kind == "import":
            values = [
                v for v in script._evaluate.binding(binding) if v.kind == "tensor" and isinstance(v.node, ast.expr)
            ]
            return FREE.union(*(self.of(v.script or script, v.node) for v in values))
        return FREE

    # -- where two values meet -------------------------------------------------------------------------------

    def meet(
        self,
        script: Script,
        node: ast.AST,
        parts: list[tuple[ast.expr, Kinds]],
        op: ast.operator | None,
        promotes: bool = False,
    ) -> Kinds:
        together = FREE.union(*(k for _, k in parts))
        if together >= _SAME:
            whole = [(e, k) for e, k in parts if k]
            apart = any(
                "low" in a and "full" in b for i, (_, a) in enumerate(whole) for j, (_, b) in enumerate(whole) if i != j
            )
            if apart and not promotes and not (self.symbolic and not self.model.keras2):
                culprit = next((e for e, k in whole if "full" in k), node)
                self.model.note(
                    script,
                    node,
                    f"a float32 tensor{_named(script, culprit)} meets one of a layer's "
                    "precision: TensorFlow does not mix them",
                )
            return FULL
        if "low" in together:
            for expr, kinds in parts:
                if not kinds:
                    self._number(script, node, expr, op)
        return together

    def _number(self, script: Script, node: ast.AST, expr: ast.expr, op: ast.operator | None) -> None:
        number = script.number(expr)
        if isinstance(op, ast.Pow):
            return
        if number is None:
            inner = expr.operand if isinstance(expr, ast.UnaryOp) else expr
            name = ast.unparse(inner) if isinstance(inner, ast.Attribute) else ""
            if (name.endswith((".min", ".max")) and "float32" in name) or name.endswith(
                ("float32).min", "float32).max")
            ):
                self.model.note(script, node, f"`{name}` is infinite in float16", True)
            for value in script.values(expr):
                if value.kind == "constant" and isinstance(value.literal, int | float):
                    self._limit(script, node, value.literal)
            return
        self._limit(script, node, number)

    def _limit(self, script: Script, node: ast.AST, number: float) -> None:
        if isinstance(number, bool) or number == 0 or number in (float("inf"), float("-inf")) or number != number:
            return
        if abs(number) > HUGE:
            self.model.note(
                script,
                node,
                f"the constant {number:g} is infinite in float16 (its largest number is 65504)",
                True,
            )
        elif abs(number) <= TINY:
            self.model.note(script, node, f"the constant {number:g} is zero in float16", True)

    # -- attributes and calls --------------------------------------------------------------------------------

    def _attribute(self, script: Script, node: ast.Attribute) -> Kinds:
        if node.attr in _NEUTRAL_ATTRIBUTES:
            return FREE
        if isinstance(node.value, ast.Name) and self.owner is not None and self._is_self(script, node.value):
            owner = next((s for s in script.project.scripts.values() if self.owner in s.names.scopes), script)
            found: set[str] = set()
            for s, expr in owner.assigned_attributes(self.owner).get(node.attr, []):
                found |= _Frame(self.model, {}, self.owner, self.depth + 1)._kept(s, expr)
            return frozenset(found)
        values = script.values(node)
        for value in values:
            if value.kind == "tensor" and isinstance(value.node, ast.expr) and value.script and value.node is not node:
                return self.of(value.script, value.node)
            if value.kind == "method" and (
                value.name in ("output", "outputs")
                or (value.name in _WEIGHTS and value.base is not None and value.base.kind == "layer")
            ):
                return LOW
        return self.of(script, node.value) if node.attr in ("T", "values", "numpy") else FREE

    def _kept(self, script: Script, expr: ast.expr) -> Kinds:
        """What is kept in an attribute: weights are cast when they are read, tensors are not."""
        if (
            isinstance(expr, ast.Call)
            and isinstance(expr.func, ast.Attribute)
            and expr.func.attr in ("add_weight", "add_variable")
        ):
            return LOW
        if any(v.kind in ("layer", "model") for v in script.values(expr)):
            return FREE
        return self.of(script, expr)

    def _is_self(self, script: Script, name: ast.Name) -> bool:
        function = script.function_of(name)
        return (
            isinstance(function, ast.FunctionDef) and bool(function.args.args) and function.args.args[0].arg == name.id
        )

    def _call(self, script: Script, node: ast.Call) -> Kinds:
        given = [a.value if isinstance(a, ast.Starred) else a for a in node.args]
        given += [k.value for k in node.keywords]
        found: set[str] = set()
        values = script.values(node.func)
        for callee in values:
            found |= self._called(script, node, callee, given)
        return frozenset(found)

    def _called(self, script: Script, node: ast.Call, callee: Value, given: list[ast.expr]) -> Kinds:
        match callee.kind:
            case "layer":
                self._extra_inputs(script, node, callee)
                self._enters(script, node, callee)
                kinds = FREE.union(*(self.of(script, e) for e in node.args))
                if callee.keras in _LOOKUPS or (node.args and not kinds and is_passive(callee)):
                    return FREE  # integers, which stay what they are
                if callee.name == "get_layer" and self.model.pinned:
                    return LOW | FULL  # it may be one that stays in float32
                return self.model.of_layer(callee)
            case "model":
                self._enters(script, node, callee)
                return self.model.of_model(callee)
            case "function" | "method" if isinstance(callee.node, FUNCTIONS) and callee.script is not None:
                return self._function(script, node, callee)
            case "symbol":
                return self._symbol(script, node, callee.name, given)
        together = FREE.union(*(self.of(script, e) for e in given))
        if isinstance(node.func, ast.Attribute):
            attr = node.func.attr
            foreign = (
                callee.kind == "object"
                and callee.cls is None
                and "." in callee.name
                and callee.name.split(".")[0]
                not in ("tensorflow", "keras", "tf_keras", "numpy", "builtins", "functools")
            )
            if (foreign or callee.kind == "parameter") and together & LOW and self._is_own(script, node.func.value):
                shown = ast.unparse(node.func)
                self.model.note(
                    script, node, f"`{shown}` comes from outside: what it does in low precision is not seen"
                )
            if attr in ("add_weight", "add_variable"):
                return LOW
            if attr in ("assign", "assign_add", "assign_sub"):
                if together & LOW:
                    self.model.note(script, node, "a float32 weight is assigned what is computed in low precision")
                return FULL
            if attr in ("shape", "get_shape", "as_list", "append", "items", "keys", "format"):
                return FREE
            if attr == "get_initial_state":
                state = script.bind(node, ("inputs", "batch_size", "dtype"))
                explicit = of_dtype(script, state.get("dtype")) if self.model.keras2 else None
                return self.of(script, state.get("inputs")) or explicit or LOW
            if attr == "call" or self._is_own(script, node.func.value):
                return LOW if together else FREE
            return together | self.of(script, node.func.value)
        if isinstance(node.func, ast.Subscript):
            return LOW if together else FREE
        return together

    def _is_own(self, script: Script, expr: ast.expr) -> bool:
        return isinstance(expr, ast.Name) and self.owner is not None and self._is_self(script, expr)

    def _extra_inputs(self, script: Script, node: ast.Call, layer: Value) -> None:
        """Keras 2 casts only the first argument of a layer's call."""
        for expr in node.args[:1]:
            self.of(script, expr)
        extra = [*node.args[1:], *(k.value for k in node.keywords if k.arg not in _CONFIG_PARAMETERS)]
        own = layer.cls is not None or (layer.keras in _RECURRENT and not self.symbolic)
        for expr in extra:
            if self.of(script, expr) & FULL and own and self.model.keras2 and self.model.of_layer(layer) & LOW:
                self.model.note(
                    script,
                    expr,
                    f"a float32 tensor{_named(script, expr)} is not cast: Keras 2 casts only the first "
                    "argument of a layer",
                )

    def _enters(self, script: Script, node: ast.Call, layer: Value) -> None:
        """What a layer is called with: cast on the way in, which integers in a float tensor do not survive."""
        if layer.cls is not None and layer.node is not None:
            full = layer.node in self.model.pinned
            given = self.model.given.setdefault(layer.node, {})
            named: list[tuple[int | str, ast.expr]] = list(enumerate(node.args))
            for key, expr in [*named, *((k.arg, k.value) for k in node.keywords if k.arg)]:
                kinds = self.of(script, expr)
                cast = kinds if full or not kinds & FULL else (kinds - FULL) | LOW
                given[key] = given.get(key, FREE) | cast
        looked_up = layer.keras == "layers.Embedding"
        wrapped = isinstance(layer.node, ast.Call) and layer.script is not None and layer.keras in _WRAPPERS
        if wrapped:
            looked_up = any(
                v.keras == "layers.Embedding"
                for e in layer.node.args[:1]  # type: ignore[union-attr]
                for v in layer.script.values(e)  # type: ignore[union-attr]
            )
        for expr in node.args[:1] if looked_up else ():
            kinds = self.of(script, expr)
            if ("low" in kinds and "data" not in kinds) or (wrapped and kinds):
                self.model.note(
                    script,
                    node,
                    "numbers of words or items reach the Embedding rounded to 16 bits: their Input is float "
                    '(dtype="int32" would keep them exact)',
                )

    def _function(self, script: Script, node: ast.Call, callee: Value) -> Kinds:
        function, owner = callee.node, callee.script
        assert owner is not None and isinstance(function, FUNCTIONS)
        arguments = [*function.args.posonlyargs, *function.args.args]
        cls = owner.parents.get(function)
        bound_self = callee.kind == "method" or (isinstance(cls, ast.ClassDef) and isinstance(node.func, ast.Attribute))
        names = tuple(a.arg for a in arguments)
        bound = script.bind(node, names[1:] if bound_self else names)
        parameters = {a: self.of(script, bound.get(a.arg)) for a in [*arguments, *function.args.kwonlyargs]}
        key = (function, tuple(parameters.values()))
        if key not in self.model._frames:
            if self.depth > _MAX_DEPTH:
                return FREE.union(*parameters.values())
            self.model._frames[key] = FREE.union(*parameters.values())
            frame = _Frame(self.model, parameters, cls if isinstance(cls, ast.ClassDef) else self.owner, self.depth + 1)
            frame.symbolic = self.symbolic
            self.model._frames[key] = frame.run(owner, function)
        return self.model._frames[key]

    def _symbol(self, script: Script, node: ast.Call, name: str, given: list[ast.expr]) -> Kinds:
        kinds = [(e, self.of(script, e)) for e in given]
        keywords = {id(k.value): k.arg or "" for k in node.keywords}
        together = FREE.union(*(k for _, k in kinds))
        path, root = catalog.keras_path(name), name.split(".")[0]
        if path == "layers.Input":
            if node in self.model.integers:
                return FREE
            explicit = of_dtype(script, script.bind(node).get("dtype"))
            return FULL if explicit is None else explicit
        if path.startswith("layers."):
            return FULL if node in self.model.pinned else LOW
        if root in ("numpy", "builtins", "math", "random", "typing", "functools", "copy", "os"):
            return together if name in ("builtins.sum", "builtins.max", "builtins.min", "builtins.abs") else FREE
        short = path.partition(".")[2] if path else name.removeprefix("tensorflow.")
        last = short.rpartition(".")[2]
        if path and not path.startswith(("backend.", "ops.", "random.", "activations.", "applications.", "utils.")):
            return FREE  # a loss, an initializer, a schedule
        if root not in ("tensorflow", "keras", "tf_keras", "einops"):
            if together & LOW:
                self.model.note(script, node, f"what `{name}` does with low precision is not known")
            return together
        if last in _OPAQUE:
            self.model.note(script, node, f"`{last}` runs Python code with fixed types")
            return FULL
        dtype = script.argument(node, "dtype")
        if last in ("cast", "saturate_cast", "to_float", "to_double", "as_dtype"):
            wanted = dtype if dtype is not None else node.args[1] if len(node.args) > 1 else None
            target = FULL if last.startswith("to_") else of_dtype(script, wanted, lambda e: self.of(script, e))
            if target is None:
                self.model.note(script, node, "the type that is cast to cannot be followed")
                return together
            kinds_in = FREE.union(*(self.of(script, e) for e in node.args[:1]))
            if (
                not target
                and wanted is not None
                and "low" in kinds_in
                and "data" not in kinds_in
                and "int" in ast.unparse(wanted)
            ):
                self.model.note(script, node, "integers above 2048 (256 in bfloat16) are rounded before this cast")
            if wanted is not None and _is_written_half(script, wanted):
                self.model.note(script, node, f"`{ast.unparse(wanted)}` is written out")
            return target
        if last in _MAKERS or short.startswith("random.") or (path.startswith("random.") and last != "SeedGenerator"):
            return self._made(script, node, last, short, dtype)
        if last in _INTEGERS:
            return FREE
        if short in _NO_HALF or (short.startswith(("signal.", "linalg.eig")) and last != "frame"):
            if together & LOW:
                self.model.note(script, node, f"`{short}` has no half-precision version")
            return FULL
        if short.startswith("image.resize") or last == "resize_images":
            return FULL if self.model.keras2 or root == "tensorflow" else together
        if last in _OVERFLOWS and together & LOW and node.args and not _is_bounded(script, node.args[0]):
            self.model.note(script, node, f"`{last}` overflows float16 for inputs above 11", True)
        if last in _NORMALIZE and together & LOW and "epsilon" not in keywords.values():
            self.model.note(
                script,
                node,
                f"`{last}` guards against division by zero with 1e-12, which is zero in float16",
                True,
            )
        parts = []
        for expr, kind in kinds:
            if keywords.get(id(expr), "") in _NUMBER_KEYWORDS:
                continue
            if isinstance(expr, ast.List | ast.Tuple):
                parts += [(e, self.of(script, e)) for e in expr.elts]
            else:
                parts.append((expr, kind))
        if (
            parts
            and root == "tensorflow"
            and not path
            and not parts[0][1]
            and "low" in together
            and any(v.kind == "array" for v in script.values(parts[0][0]))
        ):
            self.model.note(script, node, f"`{last}` takes its precision from a NumPy array")
        return self.meet(script, node, parts, None, promotes=path.startswith("ops.") and not self.model.keras2)

    def _made(self, script: Script, node: ast.Call, last: str, short: str, dtype: ast.expr | None) -> Kinds:
        if short.startswith("random.") and last in (
            "shuffle",
            "set_seed",
            "Generator",
            "categorical",
            "randint",
            "SeedGenerator",
        ):
            return FREE if last != "shuffle" else FREE.union(*(self.of(script, a) for a in node.args))
        position = {"zeros": 1, "ones": 1, "constant": 1, "convert_to_tensor": 1, "eye": 3, "fill": 9}.get(last)
        if dtype is None and position is not None and len(node.args) > position:
            dtype = node.args[position]
        if dtype is not None:
            if _is_written_half(script, dtype):
                self.model.note(script, node, f"`{ast.unparse(dtype)}` is written out")
            explicit = of_dtype(script, dtype, lambda e: self.of(script, e))
            return FULL if explicit is None else explicit
        if last in ("constant", "Variable", "convert_to_tensor", "fill", "variable"):
            value = node.args[1 if last == "fill" else 0] if len(node.args) > (1 if last == "fill" else 0) else None
            if last == "convert_to_tensor" and value is not None and (kinds := self.of(script, value)):
                return kinds
            if (
                value is not None
                and short in ("constant", "fill", "convert_to_tensor")
                and _only_integers(script, value)
            ):
                return FREE
        return FULL


def _is_written_half(script: Script, dtype: ast.expr) -> bool:
    return any(
        str(v.literal if v.kind == "constant" else v.name).endswith(("float16", "half"))
        for v in script.values(dtype)
        if v.kind in ("constant", "symbol")
    )


def _only_integers(script: Script, node: ast.expr) -> bool:
    literals = [n for n in ast.walk(node) if isinstance(n, ast.Constant)]
    if literals and not any(isinstance(n, ast.Name | ast.Call) for n in ast.walk(node)):
        return all(isinstance(n.value, int | str | bytes) for n in literals)
    return isinstance(script.constant(node), int | str)


def _is_bounded(script: Script, node: ast.expr, depth: int = 0) -> bool:
    """Certainly not much above zero: a difference to the maximum, a negated or a squashed value."""
    match node:
        case ast.BinOp(op=ast.Sub()):
            return any(
                isinstance(n, ast.Call) and ast.unparse(n.func).rpartition(".")[2] in ("max", "reduce_max", "amax")
                for n in ast.walk(node.right)
            )
        case ast.UnaryOp(op=ast.USub()):
            inner = node.operand
            return isinstance(inner, ast.Call) and ast.unparse(inner.func).rpartition(".")[2] in (
                "square",
                "abs",
                "relu",
                "sum",
                "reduce_sum",
                "norm",
            )
        case ast.Call():
            return ast.unparse(node.func).rpartition(".")[2] in _BOUNDED
        case ast.Name() if depth < 3:
            bindings = script.names.reaching(node)
            return bool(bindings) and all(
                b.kind == "assign" and b.value is not None and not b.path and _is_bounded(script, b.value, depth + 1)
                for b in bindings
            )
    return False


def _named(script: Script, node: ast.AST) -> str:
    text = ast.unparse(node) if isinstance(node, ast.expr) else ""
    return f" (`{text}`)" if text and len(text) < 50 else ""


def _in_class(script: Script, node: ast.AST) -> bool:
    """In a class that is a layer or model itself: its `call` is walked with known parameters."""
    return any(
        isinstance(c, ast.ClassDef)
        and script.kind_of_class(c) in ("layer", "model")
        and any(
            isinstance(f, ast.FunctionDef) and f.name in ("call", "__call__")
            for f in script.enclosing(node, *FUNCTIONS)
        )
        for c in script.enclosing(node, ast.ClassDef)
    )
