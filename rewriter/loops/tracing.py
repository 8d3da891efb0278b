"""What code would do differently, or not at all, if TensorFlow traced it into a graph.

    tracer = Tracer([(script, first_call)])
    tracer.function(script, function, {"x": TENSOR, "model": OBJECT})
    tracer.hazards      # each with its place and a reason
    tracer.shapes       # where the static shape of a tensor is read

A traced function runs as Python once per signature; later calls run the operations that were recorded. So Python side
effects happen once, what Python reads from outside is frozen, and a tensor has no value. The walk follows the code in
order with the kind of every expression, enters the project's own functions, classes, layers and models, and calls a
hazard whatever it cannot see.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .. import catalog
from ..models import elements, structure
from ..scopes import FUNCTIONS
from ..script import Script
from ..values import Value, Values, is_drawing, is_property
from .changes import CHANGES, changes, global_stores, holds_variables, is_new, stores
from .order import runs_before

Kind: TypeAlias = str
TENSOR: Kind = "tensor"  # has no value while it is traced; also a nest of tensors
RAW: Kind = "raw"  # a NumPy array that is handed to the step: a tensor in it, of another or an unknown type
FLOATS: Kind = "floats"  # a float32 NumPy array that is handed to the step: in it, a tensor like any other
LIST: Kind = "list"  # a Python container, of tensors or others
PYTHON: Kind = "python"  # a Python value that is the same for every call
OBJECT: Kind = "object"  # a model, an optimizer, a function: the same for every call
ARRAY: Kind = "array"  # a NumPy array that is the same for every call
TAPE: Kind = "tape"
UNKNOWN: Kind = "unknown"

#: Of several things that an expression may be, what is careful to assume.
#: What has no value while it is traced.
_TENSORS = (TENSOR, RAW, FLOATS)
_ORDER = (UNKNOWN, RAW, TENSOR, FLOATS, LIST, ARRAY, TAPE, OBJECT, PYTHON)

#: A Python loop over more numbers than this makes a graph that takes long to build.
MOST_ROUNDS = 200


#: A NumPy array that a step reads from outside becomes a constant of the graph, which may not be large.
MOST_ROWS = 20_000


def worst(kinds: Iterable[Kind]) -> Kind:
    found = set(kinds)
    return next((k for k in _ORDER if k in found), PYTHON)


@dataclass(frozen=True, eq=False)
class Hazard:
    script: Script
    node: ast.AST
    reason: str
    #: What is made anew, for which the step can have a function of its own: "begins" where training begins anew with
    #: it (a model, an optimizer, a variable), "goes on" where it may only be another epoch (a metric, a loss).
    anew: str = ""


_STATIC = frozenset("shape dtype ndim rank name device graph op".split())
_LISTS = frozenset(
    "trainable_variables trainable_weights non_trainable_variables non_trainable_weights variables weights losses "
    "layers metrics updates inputs outputs submodules metrics_names".split()
)
_SETTINGS = frozenset(
    "name built trainable input_shape output_shape dtype compute_dtype units filters stateful".split()
)
_VARIABLES = frozenset("learning_rate lr iterations kernel bias embeddings gamma beta".split())

_ENDS_OF_TENSORS = frozenset("numpy item tolist eval __float__ __int__".split())
_ARRAY_METHODS = frozenset(
    "astype reshape mean sum max min flatten ravel copy transpose squeeze T argmax argmin std var clip dot size".split()
)
_READS = frozenset("items values keys get copy index count most_common __getitem__ __len__ __contains__".split())
_TEXT_METHODS = frozenset(m for m in dir(str) if not m.startswith("_"))
_MODEL_METHODS = frozenset(
    "call __call__ get_layer compute_output_shape reset_states reset_state count_params compute_mask get_config "
    "from_config add_loss losses".split()
)
_OPTIMIZER_METHODS = frozenset(
    "apply_gradients apply minimize get_scaled_loss get_unscaled_gradients scale_loss variables _decayed_lr get_config "
    "compute_gradients _compute_gradients update_step".split()
)
#: What an optimizer of the script's own may do in a step.
_OPTIMIZER_CODE = (
    "apply_gradients", "apply", "minimize", "compute_gradients", "_compute_gradients", "get_gradients", "update_step",
    "_resource_apply_dense", "_resource_apply_sparse", "get_updates",
)  # fmt: skip
_METRIC_METHODS = frozenset("update_state result reset_state reset_states __call__".split())
_TAPE_METHODS = frozenset("gradient jacobian batch_jacobian watch stop_recording reset watched_variables".split())
_VARIABLE_METHODS = re.compile(r"assign\w*|scatter_\w+|read_value|value|batch_scatter_update|sparse_read")

#: Builtins that only compute with what Python knows, or build containers.
_PURE_BUILTINS = frozenset(
    "abs len range zip enumerate list tuple dict set frozenset reversed sum min max pow divmod slice isinstance "
    "issubclass hasattr getattr callable type super str repr format round float int bool complex map filter sorted any "
    "all chr ord object staticmethod property".split()
)
_NUMBERS = frozenset("float int bool complex round hash max min sorted any all pow divmod".split())
_CONTAINERS = frozenset("zip list tuple dict set reversed enumerate map filter sorted".split())
#: Libraries whose functions compute with tensors and hold no state.
_TENSOR_LIBRARIES = frozenset(
    "tensorflow_addons tensorflow_probability tensorflow_text tensorflow_graphics tensorflow_io einops".split()
)
_NOT_IN_GRAPH = re.compile(
    r"(summary|config|data|distribute|saved_model|profiler|test|train|estimator|lite|compat\.v1\.train|feature_column"
    r"|io\.gfile|lookup|queue|autograph|experimental|contrib)\."
)
#: What of it computes in a graph as eagerly; of the last two, only objects that were made outside.
_TRACED = ("train.ExponentialMovingAverage", "experimental.numpy", "lookup.", "saved_model.load")
_CREATES = re.compile(r"(Variable|get_variable|TensorArrayV1|Module|random\.(experimental\.)?Generator\.\w+)$")
_TAKES_FUNCTIONS = re.compile(
    r"(cond|case|switch_case|map_fn|vectorized_map|while_loop|foldl|foldr|scan|custom_gradient|recompute_grad"
    r"|autodiff\.\w+|nest\.map_structure)$"
)
#: Operations that take an array as it is, whatever its type.
_TAKES_ARRAYS = re.compile(
    r"(cast|convert_to_tensor|constant|one_hot|reshape|expand_dims|squeeze|shape|size|rank|identity|gather|argmax|argmin"
    r"|nn\.(sparse_softmax_cross_entropy_with_logits|embedding_lookup)|transpose|image\.\w+|to_float|stack)$"
)
_WITH = re.compile(
    r"(GradientTape|name_scope|device|control_dependencies|keras\.name_scope|keras\.backend\.name_scope|stop_gradient)$"
)


class Tracer:
    """Walks what would be traced. `first`: the first calls of it; `fresh`: loops that define the function anew."""

    def __init__(self, first: Sequence[tuple[Script, ast.AST]], fresh: Sequence[ast.AST] = ()) -> None:
        self.first, self.fresh = list(first), list(fresh)
        self.hazards: list[Hazard] = []
        self.shapes: list[tuple[Script, ast.AST]] = []
        self.derived: list[tuple[Script, ast.AST]] = []  # of these, the ones that are not those of a parameter
        self.dynamic: list[tuple[Script, ast.Call]] = []  # what gives a tensor whose shape depends on values
        self._results: dict[tuple[ast.AST, tuple[tuple[str, Kind], ...]], Kind] = {}
        self._active: list[ast.AST] = []
        self._layers: set[object] = set()

    def hazard(self, script: Script, node: ast.AST, reason: str, anew: str = "") -> None:
        if all(h.node is not node for h in self.hazards):
            self.hazards.append(Hazard(script, node, reason, anew))

    def once(self, script: Script, node: ast.AST, what: str) -> None:
        self.hazard(script, node, f"it {what} ({script.at(node)}): in a graph that happens once, while it is traced")

    def function(self, script: Script, function: ast.AST, kinds: dict[str, Kind]) -> Kind:
        """Walk a function; what it returns."""
        key = (function, tuple(sorted(kinds.items())))
        if function in self._active:
            self.hazard(script, function, f"`{getattr(function, 'name', 'it')}` calls itself ({script.at(function)})")
            return UNKNOWN
        if key not in self._results:
            self._active.append(function)
            self._results[key] = _Frame(self, script, dict(kinds), function).whole()
            self._active.pop()
        return self._results[key]

    def statements(self, script: Script, statements: Sequence[ast.stmt], kinds: dict[str, Kind]) -> dict[str, Kind]:
        """Walk statements that stand in a loop; what the names are after them."""
        frame = _Frame(self, script, dict(kinds), None)
        frame.bound = _bound_in(script, statements)
        frame.inside = {n for s in statements for n in ast.walk(s)}
        frame.block(statements)
        return frame.env

    @property
    def open_shape(self) -> str:
        """Why a static shape that is read may be unknown in a graph, which an eager tensor always has."""
        if not self.dynamic or not self.derived:
            return ""
        (script, node), (other, made) = self.derived[0], self.dynamic[0]
        return (
            f"it reads a static shape ({script.at(node)}), which a graph may not know: "
            f"that of `{other.text(made.func)}` ({other.at(made)}) depends on values"
        )

    def is_fixed(self, script: Script, node: ast.AST) -> bool:
        """Does the code at a node run only before the step is first called, or only after its last call?"""
        return all(runs_before(script, node, first, self.fresh) for first in self.first) or all(
            runs_before(*first, (script, node), self.fresh) for first in self.first
        )


class _Frame:
    """One activation: what its local names are."""

    def __init__(self, tracer: Tracer, script: Script, env: dict[str, Kind], function: ast.AST | None) -> None:
        self.tracer, self.script, self.env, self.node = tracer, script, env, function
        self.given = frozenset(env)
        self.bound: set[str] = set()
        self.inside: set[ast.AST] = set()  # the nodes of statements that are no function
        self.returns: list[Kind] = []

    # -- functions and statements ---------------------------------------------------------------------------

    def whole(self) -> Kind:
        function = self.node
        if isinstance(function, ast.Lambda):
            return self.expr(function.body)
        if not isinstance(function, ast.FunctionDef):
            self.tracer.hazard(self.script, function or self.script.tree, "a coroutine cannot be traced")
            return UNKNOWN
        if self.script.is_generator(function):
            self.tracer.hazard(
                self.script,
                function,
                f"`{function.name}` is a generator ({self.script.at(function)}), which cannot be traced",
            )
            return UNKNOWN
        self.bound = set(self.script.names.scopes[function].bindings)
        self.block(function.body)
        return worst(self.returns)

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def hazard(self, node: ast.AST, reason: str) -> None:
        self.tracer.hazard(self.script, node, reason)

    def once(self, node: ast.AST, what: str) -> None:
        self.tracer.once(self.script, node, what)

    def statement(self, node: ast.stmt) -> None:
        script, at = self.script, self.script.at(node)
        match node:
            case ast.Expr():
                self.expr(node.value)
            case ast.Assign():
                kind = self.expr(node.value)
                for target in node.targets:
                    self.assign(target, kind, node.value)
            case ast.AnnAssign():
                if node.value is not None:
                    self.assign(node.target, self.expr(node.value), node.value)
            case ast.AugAssign():
                kind = self.expr(node.value)
                if isinstance(node.target, ast.Name):
                    before = self.env.get(node.target.id, UNKNOWN)
                    if before in (LIST, ARRAY) and not self.is_own(node.target):
                        self.once(node, f"changes `{node.target.id}`")
                    self.env[node.target.id] = self.mixed(node, before, kind)
                else:
                    self.assign(node.target, kind, node.value)
            case ast.Return():
                kind = self.expr(node.value) if node.value is not None else PYTHON
                self.returns.append(kind)
                if self.tracer._active[:1] == [self.node]:
                    self.returned(node)
            case ast.If():
                self.branch(node, node.test)
                known = script.values(node.test)
                constant = len(known) == 1 and known[0].kind == "constant"
                start = dict(self.env)
                if not constant or known[0].literal:
                    self.block(node.body)
                after, self.env = self.env, start
                if not constant or not known[0].literal:
                    self.block(node.orelse)
                self.env = {
                    name: worst([e[name] for e in (after, self.env) if name in e]) for name in {*after, *self.env}
                }
            case ast.For():
                self.loop(node.target, node.iter)
                self.block(node.body)
                self.block(node.orelse)
            case ast.While():
                self.hazard(node, f"a `while` loop ({at}) would run while the step is traced")
            case ast.With():
                self.with_(node)
            case ast.FunctionDef():
                self.env[node.name] = OBJECT
                for decorator in node.decorator_list:
                    self.expr(decorator)
            case ast.Assert():
                if self.expr(node.test) not in (PYTHON, LIST, OBJECT):
                    self.hazard(node, f"an assertion on what may be a tensor ({at}) is not checked in a graph")
            case ast.Raise() | ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Break() | ast.Continue():
                pass
            case ast.Global() | ast.Nonlocal():
                self.once(node, f"changes the {type(node).__name__.lower()} `{', '.join(node.names)}`")
            case ast.Delete():
                for target in node.targets:
                    if not isinstance(target, ast.Name) or target.id not in self.bound | self.given:
                        self.once(node, f"deletes `{script.text(target)}`")
            case ast.Try():
                self.hazard(node, f"a `try` statement ({at}) catches nothing that happens in a graph")
            case _:
                self.hazard(node, f"a `{type(node).__name__.lower()}` statement ({at}) cannot be followed")

    def returned(self, node: ast.Return) -> None:
        """What a step returns must be tensors, or None."""
        parts: list[ast.expr] = [] if node.value is None else [node.value]
        while parts:
            part = parts.pop()
            if isinstance(part, ast.Tuple | ast.List):
                parts += part.elts
                continue
            if isinstance(part, ast.Dict):
                parts += part.values
                continue
            if isinstance(part, ast.Constant) and part.value is None:
                continue
            kind = self.expr(part)
            shown = f"`{self.script.text(part)}` ({self.script.at(part)})"
            if kind in (PYTHON, OBJECT, TAPE, ARRAY):
                self.hazard(node, f"it returns {shown}, which is not a tensor")
            elif kind == LIST and not (isinstance(part, ast.Name) and part.id in self.env) and _is_read(part):
                self.hazard(node, f"it returns {shown}, which may hold more than tensors")
            elif holds_variables(self.script, part):
                self.hazard(node, f"it returns {shown}, which holds variables: a graph returns their values")

    def with_(self, node: ast.With) -> None:
        for item in node.items:
            call = item.context_expr
            name = self.script.called(call) if isinstance(call, ast.Call) else ""
            if _WITH.search(name.removeprefix("tensorflow.")):
                for argument in call.args if isinstance(call, ast.Call) else ():
                    self.expr(argument)
                if isinstance(item.optional_vars, ast.Name):
                    self.env[item.optional_vars.id] = TAPE if name.endswith("GradientTape") else OBJECT
            elif (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "stop_recording"
            ):
                self.expr(call.func.value)
            else:
                self.hazard(
                    node, f"it enters `{self.script.text(call)}` ({self.script.at(node)}) only while it is traced"
                )
        self.block(node.body)

    def assign(self, target: ast.expr, kind: Kind, value: ast.expr | None) -> None:
        match target:
            case ast.Name():
                if target.id in self.bound | self.given:
                    self.env[target.id] = kind
                else:
                    self.once(target, f"changes `{target.id}`")
            case ast.Tuple() | ast.List():
                given = (
                    value.elts
                    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
                    else None
                )
                for index, element in enumerate(target.elts):
                    if given is not None:
                        self.assign(element, self.expr(given[index]), given[index])
                    else:
                        self.assign(element, _element(kind), None)
            case ast.Starred():
                self.assign(target.value, LIST, None)
            case ast.Attribute():
                self.expr(target.value)
                self.once(target, f"sets `{self.script.text(target)}`")
            case ast.Subscript():
                if self.is_outer(target.value):
                    self.once(target, f"changes `{self.script.text(target.value)}`")
                    return
                base, key = self.expr(target.value), self.expr(target.slice)
                if not self.is_own(target.value) or base in (*_TENSORS, ARRAY):
                    self.once(target, f"changes `{self.script.text(target.value)}`")
                elif key == TENSOR:
                    self.hazard(target, f"a tensor is a key ({self.script.at(target)})")

    def is_own(self, node: ast.expr) -> bool:
        """A container that was made here: a local name for something new, no second name for what is outside."""
        if not isinstance(node, ast.Name) or node.id not in self.bound - self.given or node.id not in self.env:
            return False
        found = self.script.names.scope_of(node).lookup(node.id)
        return all(
            is_new(self.script, b.part or b.value)
            for b in (found[1] if found else ())
            if b.kind != "augment" and (self.node is not None or b.node in self.inside)
        )

    def is_outer(self, node: ast.expr) -> bool:
        """A Python container from outside."""
        root = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name) or (root.id in self.env and not isinstance(node, ast.Attribute)):
            return False
        values = self.script.values(node)
        return all(v.kind in ("sequence", "mapping") or (v.kind == "object" and v.name == "list") for v in values)

    def branch(self, node: ast.AST, test: ast.expr) -> Kind:
        kind = self.expr(test)
        shown = f"`{self.script.text(test)}` ({self.script.at(node)})"
        if kind in (*_TENSORS, ARRAY):
            self.hazard(node, f"it branches on a tensor: {shown}")
        elif kind == UNKNOWN:
            self.hazard(node, f"it branches on what may differ from call to call: {shown}")
        return kind

    # -- loops ----------------------------------------------------------------------------------------------

    def loop(self, target: ast.expr, iterated: ast.expr) -> None:
        kinds = self.iterated(iterated)
        if isinstance(kinds, list) and isinstance(target, ast.Tuple | ast.List) and len(kinds) == len(target.elts):
            for element, kind in zip(target.elts, kinds, strict=True):
                self.assign_loop(element, kind)
        else:
            self.assign_loop(target, worst(_flat(kinds)))

    def assign_loop(self, target: ast.expr, kind: object) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            inner = kind if isinstance(kind, list) and len(kind) == len(target.elts) else None
            for index, element in enumerate(target.elts):
                self.assign_loop(element, inner[index] if inner else _element(worst(_flat(kind))))
        elif isinstance(target, ast.Name):
            self.env[target.id] = worst(_flat(kind))
        else:
            self.once(target, f"sets `{self.script.text(target)}`")

    def iterated(self, node: ast.expr) -> object:
        """The kind of an element, as a list where it is a tuple."""
        script, at = self.script, self.script.at(node)
        if isinstance(node, ast.Call):
            name = script.called(node)
            if name == "builtins.range":
                if any(self.expr(a) not in (PYTHON, OBJECT) for a in node.args):
                    self.hazard(node, f"a loop over a range that may be a tensor ({at})")
                rounds = [script.integer(a) for a in node.args]
                if len(rounds) < 3 and all(r is not None for r in rounds):
                    count = rounds[-1] - (rounds[0] if len(rounds) == 2 else 0)  # type: ignore[operator]
                    if count > MOST_ROUNDS:
                        self.hazard(
                            node, f"a loop over {count} numbers ({at}) would be written out {count} times in the graph"
                        )
                return PYTHON
            if name == "builtins.enumerate" and node.args:
                return [PYTHON, self.iterated(node.args[0])]
            if name == "builtins.zip":
                return [self.iterated(a) for a in node.args]
            if name in ("builtins.reversed", "builtins.list", "builtins.tuple") and node.args:
                return self.iterated(node.args[0])
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "values", "keys") and not node.args:
                base = self.expr(node.func.value)
                element = TENSOR if base in (LIST, TENSOR) else base
                return {"items": [PYTHON, element], "values": element, "keys": PYTHON}[node.func.attr]
        if any(v.kind in ("dataset", "loader", "generator", "iterator", "tfds") for v in script.values(node)):
            self.hazard(node, f"a loop over data runs inside the step ({at})")
            return UNKNOWN
        kind = self.expr(node)
        if kind in (*_TENSORS, ARRAY):
            self.hazard(node, f"it iterates over a tensor ({at})")
        elif kind == UNKNOWN:
            self.hazard(node, f"what it iterates over is not known: `{script.text(node)}` ({at})")
        if kind == LIST:
            found = [v for value in script.values(node) for item in value.items for v in item]
            return kind_of(tuple(found)) if found and kind_of(tuple(found)) != UNKNOWN else TENSOR
        return PYTHON if kind == PYTHON else OBJECT

    # -- expressions ----------------------------------------------------------------------------------------

    def expr(self, node: ast.expr | None) -> Kind:
        match node:
            case None | ast.Constant():
                return PYTHON
            case ast.JoinedStr():
                self.written(node, [self.expr(v.value) for v in node.values if isinstance(v, ast.FormattedValue)])
                return PYTHON
            case ast.Name():
                return self.name(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                return self.subscript(node)
            case ast.Call():
                return self.call(node)
            case ast.Tuple() | ast.List() | ast.Set():
                kinds = [self.expr(e.value if isinstance(e, ast.Starred) else e) for e in node.elts]
                return PYTHON if all(k == PYTHON for k in kinds) else LIST
            case ast.Dict():
                kinds = [self.expr(e) for e in [*filter(None, node.keys), *node.values]]
                return PYTHON if all(k == PYTHON for k in kinds) else LIST
            case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                parts = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
                self.written(node, [self.expr(p) for p in parts])
                return PYTHON
            case ast.BinOp():
                return self.mixed(node, self.expr(node.left), self.expr(node.right))
            case ast.UnaryOp():
                kind = self.expr(node.operand)
                if isinstance(node.op, ast.Not):
                    if kind in (*_TENSORS, ARRAY, UNKNOWN):
                        self.hazard(node, f"`not` needs the value of what may be a tensor ({self.script.at(node)})")
                    return PYTHON
                return kind
            case ast.Compare():
                return self.compare(node)
            case ast.BoolOp():
                kinds = [self.expr(v) for v in node.values]
                if any(k in (*_TENSORS, ARRAY) for k in kinds[:-1]):
                    self.hazard(node, f"`and`/`or` needs the value of a tensor ({self.script.at(node)})")
                return worst(kinds)
            case ast.IfExp():
                self.branch(node, node.test)
                return worst([self.expr(node.body), self.expr(node.orelse)])
            case ast.Lambda():
                return OBJECT
            case ast.Starred():
                return self.expr(node.value)
            case ast.Slice():
                return worst([self.expr(p) for p in (node.lower, node.upper, node.step)])
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                self.comprehension(node.generators)
                return PYTHON if self.expr(node.elt) == PYTHON else LIST
            case ast.DictComp():
                self.comprehension(node.generators)
                self.expr(node.key)
                return PYTHON if self.expr(node.value) == PYTHON else LIST
            case ast.NamedExpr():
                kind = self.expr(node.value)
                self.env[node.target.id] = kind
                return kind
        self.hazard(node, f"`{self.script.text(node)}` ({self.script.at(node)}) cannot be followed")
        return UNKNOWN

    def written(self, node: ast.AST, kinds: Sequence[Kind]) -> None:
        if any(k in _TENSORS for k in kinds):
            self.hazard(node, f"the value of a tensor is written into a string ({self.script.at(node)})")

    def comprehension(self, generators: Sequence[ast.comprehension]) -> None:
        for generator in generators:
            self.loop(generator.target, generator.iter)
            for condition in generator.ifs:
                self.branch(condition, condition)

    def compare(self, node: ast.Compare) -> Kind:
        kinds = [self.expr(node.left), *(self.expr(c) for c in node.comparators)]
        if all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return PYTHON
        if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            if kinds[0] in _TENSORS:
                self.hazard(node, f"`in` needs the value of a tensor ({self.script.at(node)})")
            return PYTHON if kinds[0] == PYTHON else worst(kinds[:1])
        if len(node.ops) > 1 and any(k in _TENSORS for k in kinds):
            self.hazard(node, f"a chain of comparisons needs the value of a tensor ({self.script.at(node)})")
        found = worst(kinds)
        return PYTHON if found in (OBJECT, LIST) else found

    def mixed(self, node: ast.AST, left: Kind, right: Kind) -> Kind:
        if RAW in (left, right):
            self.hazard(node, f"{_RAW} ({self.script.at(node)})")
            return TENSOR
        if UNKNOWN in (left, right) and TENSOR in (left, right):
            return TENSOR
        found = worst([left, right])
        return TENSOR if found == FLOATS or (found == OBJECT and TENSOR in (left, right)) else found

    def name(self, node: ast.Name) -> Kind:
        if node.id in self.env and (node.id in self.bound or node.id in self.given):
            return self.env[node.id]
        if node.id in self.env and not self.script.names.reaching(node):
            return self.env[node.id]  # of a comprehension
        if node.id in self.env and self.node is None:
            return self.env[node.id]
        return self.captured(node)

    def captured(self, node: ast.Name) -> Kind:
        """A name from outside: what it is, and whether it stays that."""
        script = self.script
        reaching = script.names.reaching(node)
        if any(b.kind == "loop" and self._is_comprehension(b.node) for b in reaching):
            return self.env.get(node.id, UNKNOWN)
        values = script.values(node)
        kind = kind_of(values)
        found = script.names.scope_of(node).lookup(node.id)
        for binding in found[1] if found else ():
            if binding.kind in ("import", "def", "class", "parameter", "star"):
                continue
            if not self.tracer.is_fixed(script, binding.node):
                self.tracer.hazard(
                    script,
                    node,
                    f"it reads `{node.id}` ({script.at(node)}), which is given another value later "
                    f"({script.at(binding.node)}): the step would keep the first one",
                    anew=anew(values),
                )
                return kind
        if found and found[0] is script.names.module and kind != TENSOR:
            for other, place in global_stores(script, node.id):
                if not self.tracer.is_fixed(other, place):
                    self.hazard(
                        node,
                        f"it reads `{node.id}` ({script.at(node)}), which may be given another value "
                        f"({other.at(place)}): the step would keep the first one",
                    )
                    return kind
        if kind != TENSOR and not _is_code(values):
            self.unchanged(node)
        if any(v.kind == "array" and ("load" in v.name or (v.length or 0) > MOST_ROWS) for v in values):
            self.hazard(
                node,
                f"it reads the array `{node.id}` ({script.at(node)}) from outside: a large constant of the graph",
            )
        return kind

    def _is_comprehension(self, node: ast.AST) -> bool:
        return any(isinstance(p, ast.comprehension) for p in self.script.enclosing(node, ast.comprehension))

    def unchanged(self, node: ast.expr) -> None:
        """A container that is read must not be changed once the step was traced."""
        for other, place in changes(self.script, node):
            if not self.tracer.is_fixed(other, place):
                self.hazard(
                    node,
                    f"it reads `{self.script.text(node)}` ({self.script.at(node)}), which is changed later "
                    f"({other.at(place)}): the step would keep what it was",
                )
                return

    def attribute(self, node: ast.Attribute) -> Kind:
        base = self.expr(node.value)
        if base in _TENSORS:
            if base in (RAW, FLOATS) and node.attr in _ARRAY_METHODS:
                self.hazard(
                    node, f"`{self.script.text(node)}` ({self.script.at(node)}) is of NumPy arrays, not of tensors"
                )
            if node.attr in _STATIC:
                if node.attr == "shape":
                    self.static(node, node.value)
                return PYTHON
            return TENSOR
        if base == TAPE:
            return OBJECT
        values = self.script.values(node)
        owners = {v.kind for v in self.script.values(node.value)}
        found = self.of_property(node, values)
        if found is not None:
            return found
        if owners & {"model", "layer", "optimizer", "metric", "unknown", "parameter", "object"} or base == OBJECT:
            known = not all(v.kind == "method" and v.base is not None and v.node is node for v in values)
            if not known and node.attr in _LISTS:
                return LIST
            if not known and node.attr in _SETTINGS:
                return PYTHON
            if not known and node.attr in _VARIABLES:
                return TENSOR
        kind = kind_of(values)
        if kind == UNKNOWN and node.attr in _LISTS:
            return LIST
        if base in (LIST, PYTHON) and kind in (UNKNOWN, OBJECT):
            kind = PYTHON if base == PYTHON else OBJECT
        if not any(isinstance(v.node, FUNCTIONS) and v.kind in ("method", "function") for v in values):
            self.attribute_stays(node)
            if kind != TENSOR and not _is_code(values):
                self.unchanged(node)
        return kind

    def static(self, node: ast.expr, tensor: ast.expr) -> None:
        """The static shape of a tensor is read."""
        self.tracer.shapes.append((self.script, node))
        bindings = self.script.names.reaching(tensor) if isinstance(tensor, ast.Name) else ()
        if self.node is None:
            handed = bool(bindings) and all(b.node not in self.inside for b in bindings)
        else:
            handed = self.tracer._active[:1] == [self.node] and {b.kind for b in bindings} == {"parameter"}
        if not handed:
            self.tracer.derived.append((self.script, node))

    def of_property(self, node: ast.Attribute, values: Values) -> Kind | None:
        for owner in self.script.values(node.value):
            cls = owner.cls
            if cls is not None and cls.script and isinstance(cls.node, ast.ClassDef):
                method = cls.script.method(cls.node, node.attr)
                if method and is_property(method[1]):
                    return self.tracer.function(*method, {"self": OBJECT})
        return None

    def attribute_stays(self, node: ast.Attribute) -> None:
        own = isinstance(node.value, ast.Name) and node.value.id == "self"
        mine = self._class_of(self.script, node) if own else None
        for other, store, owner in stores(self.script.project, node.attr):
            theirs = isinstance(owner, ast.Name) and owner.id == "self"
            if self.script.symbol(node) and getattr(store, "attr", "") != node.attr:
                continue  # any attribute of some object, and this is of a library's module
            if own and theirs and mine is not self._class_of(other, store) and not self._kin(mine, other, store):
                continue
            function = other.function_of(store)
            if theirs and getattr(function, "name", "") in (
                "__init__",
                "build",
                "__post_init__",
                "set_up",
                "_build",
            ):
                continue
            if not self.tracer.is_fixed(other, store):
                self.hazard(
                    node,
                    f"it reads `{self.script.text(node)}` ({self.script.at(node)}), which is given another value "
                    f"({other.at(store)}): the step would keep the first one",
                )
                return

    @staticmethod
    def _class_of(script: Script, node: ast.AST) -> ast.ClassDef | None:
        return next((c for c in script.enclosing(node, ast.ClassDef) if isinstance(c, ast.ClassDef)), None)

    def _kin(self, mine: ast.ClassDef | None, other: Script, store: ast.AST) -> bool:
        theirs = self._class_of(other, store)
        if mine is None or theirs is None:
            return True
        return any(c is theirs for _, c in self.script.ancestry(mine)) or any(
            c is mine for _, c in other.ancestry(theirs)
        )

    def subscript(self, node: ast.Subscript) -> Kind:
        base, index = self.expr(node.value), self.expr(node.slice)
        if base == RAW:
            return RAW
        if base in (LIST, PYTHON, ARRAY, OBJECT) and index in _TENSORS and not isinstance(node.slice, ast.Slice):
            self.hazard(node, f"a tensor is an index into Python or NumPy data ({self.script.at(node)})")
        if base == LIST:
            kind = kind_of(self.script.values(node))
            return kind if kind not in (UNKNOWN,) else TENSOR
        if base == OBJECT:
            return kind_of(self.script.values(node))
        return base

    # -- calls ----------------------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> Kind:
        script = self.script
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in CHANGES and self.is_outer(node.func.value):
                self.once(node, f"changes `{script.text(node.func.value)}`")
                return PYTHON
            if (found := self.method_of_local(node, node.func)) is not None:
                return found
        arguments = [*node.args, *(k.value for k in node.keywords)]
        kinds = [self.expr(a) for a in arguments]
        if isinstance(node.func, ast.Lambda):
            return self.lambda_(script, node.func, node)
        if not isinstance(node.func, ast.Name | ast.Attribute):
            self.expr(node.func)
        if isinstance(node.func, ast.Name) and self.env.get(node.func.id) in _TENSORS:
            pass  # an element of a list: it may be a layer
        elif isinstance(node.func, ast.Name) and node.func.id not in self.env:
            self.name(node.func)
        elif isinstance(node.func, ast.Attribute):
            self.expr(node.func)
        values = [v for v in script.values(node.func) if not (v.kind == "constant" and v.literal is None)]
        return worst([self.called(v, node, kinds) for v in values]) if values else UNKNOWN

    def method_of_local(self, node: ast.Call, func: ast.Attribute) -> Kind | None:
        """A method of a tensor, a tape, or a container that was made here; None for any other call."""
        script, name, at = self.script, func.attr, self.script.at(node)
        receiver = func.value
        local = isinstance(receiver, ast.Name) and receiver.id in self.env
        root = receiver
        while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
            root = root.func if isinstance(root, ast.Call) else root.value
        computed = isinstance(receiver, ast.Call | ast.BinOp | ast.Subscript | ast.UnaryOp)
        if (
            not local
            and not computed
            and not (isinstance(root, ast.Name) and self.env.get(root.id) in (*_TENSORS, TAPE))
        ):
            return None
        if any(isinstance(v.node, FUNCTIONS) and v.script is not None for v in script.values(func)):
            return None
        kind = self.expr(receiver)
        if kind == TAPE:
            kinds = [self.expr(a) for a in [*node.args, *(k.value for k in node.keywords)]]
            if name not in _TAPE_METHODS:
                self.hazard(node, f"what `{script.text(func)}` does is not known ({at})")
            sources = script.bind(node, ("target", "sources")).get("sources")
            return (
                LIST
                if name == "gradient" and sources is not None and self.expr(sources) in (LIST, OBJECT, UNKNOWN)
                else (TENSOR if kinds else LIST)
            )
        if kind in _TENSORS:
            arguments = [self.expr(a) for a in [*node.args, *(k.value for k in node.keywords)]]
            if name in _ENDS_OF_TENSORS:
                self.hazard(node, f"`.{name}()` needs the value of a tensor ({at})")
                return UNKNOWN
            if kind in (RAW, FLOATS):
                self.hazard(node, f"`.{name}()` ({at}) is a method of NumPy arrays, not of tensors")
            if name in ("get_shape", "shape"):
                self.static(node, receiver)
                return PYTHON
            if name in CHANGES - {"add", "write"} and RAW not in arguments:
                self.once(node, f"changes `{script.text(receiver)}`")
            return PYTHON if name in ("as_list", "set_shape") else TENSOR
        if local and kind in (LIST, PYTHON) and name in CHANGES | _READS | _TEXT_METHODS:
            kinds = [self.expr(a) for a in [*node.args, *(k.value for k in node.keywords)]]
            if name in CHANGES:
                if not self.is_own(receiver):
                    self.once(node, f"changes `{script.text(receiver)}`")
                elif isinstance(receiver, ast.Name) and any(k != PYTHON for k in kinds):
                    self.env[receiver.id] = LIST
            return LIST if kind == LIST or any(k != PYTHON for k in kinds) else PYTHON
        if kind == PYTHON and not local:
            if name == "format":
                self.written(node, [self.expr(a) for a in [*node.args, *(k.value for k in node.keywords)]])
            for a in [*node.args, *(k.value for k in node.keywords)]:
                self.expr(a)
            if name == "as_list" or name in _READS | _TEXT_METHODS:
                return PYTHON
        return None

    def lambda_(self, script: Script, function: ast.Lambda, node: ast.Call) -> Kind:
        names = tuple(a.arg for a in function.args.args)
        bound = script.bind(node, names)
        return self.tracer.function(script, function, {**self.env, **{n: self.expr(bound.get(n)) for n in names}})

    def called(self, value: Value, node: ast.Call, kinds: list[Kind]) -> Kind:
        script, at = self.script, self.script.at(node)
        shown = f"`{script.text(node.func)}` ({at})"
        match value.kind:
            case "function" | "method" if isinstance(value.node, FUNCTIONS) and value.script is not None:
                return self.project_function(value, node)
            case "method":
                return self.library_method(value, node, kinds)
            case "symbol":
                return self.symbol(value.name, node, kinds)
            case "class":
                return self.constructed(value, node)
            case "layer" | "model":
                self.layer(value, node)
                return TENSOR
            case "loss" | "metric" | "setting" | "schedule":
                if value.cls is not None:
                    self.of_class(value, ("call", "__call__", "update_state", "result"))
                return TENSOR
            case "object" if value.cls is not None and value.cls.script and isinstance(value.cls.node, ast.ClassDef):
                if method := value.cls.script.method(value.cls.node, "__call__"):
                    return self.project_function(Value("method", method[1], method[0], "__call__"), node)
                self.hazard(node, f"what {shown} does is not seen")
                return UNKNOWN
            case "object" | "tensor" if value.name.split(".")[0] in _TENSOR_LIBRARIES:
                return TENSOR
            case "tensor" if value.name in (
                "tensorflow.function",
                "tensorflow.recompute_grad",
                "tensorflow.custom_gradient",
            ):
                if isinstance(value.node, ast.Call) and value.node.args and value.script:
                    return _Frame(self.tracer, value.script, dict(self.env), None).handed(value.node.args[0])
                return TENSOR
        if self.is_listed_layer(node.func):
            return TENSOR
        self.hazard(node, f"what {shown} does is not seen")
        return UNKNOWN

    def is_listed_layer(self, func: ast.expr) -> bool:
        """`layer(x)` in `for layer in self.blocks`, and `self.blocks[i](x)`, where the list holds layers."""
        lists: list[ast.expr] = []
        if isinstance(func, ast.Subscript):
            lists = [func.value]
        elif isinstance(func, ast.Name):
            for binding in self.script.names.reaching(func):
                inner = binding.value if binding.kind == "loop" else None
                while isinstance(inner, ast.Call) and inner.args and isinstance(inner.func, ast.Name):
                    inner = inner.args[binding.path[0] if inner.args[1:] and binding.path else 0]
                if inner is None:
                    return False
                lists.append(inner)
        items = [elements(self.script, part) for part in lists]
        if not items or not all(items):
            return False
        found = [v for item in items for i in item or () for v in i.values]
        if not found or any(v.kind not in ("layer", "model") for v in found):
            return False
        for v in found:
            self.layer(v, func)
        return True

    def project_function(self, value: Value, node: ast.Call) -> Kind:
        function, owner = value.node, value.script
        assert owner is not None and isinstance(function, FUNCTIONS)
        if isinstance(function, ast.Lambda):
            names = tuple(a.arg for a in function.args.args)
            bound = self.script.bind(node, names)
            return self.tracer.function(owner, function, {n: self.expr(bound.get(n)) for n in names})
        a = function.args
        names = tuple(p.arg for p in [*a.posonlyargs, *a.args])
        offset = 1 if value.kind == "method" and names and not _is_static(function) else 0
        bound = self.script.bind(node, names[offset:])
        kinds: dict[str, Kind] = {n: OBJECT for n in names[:offset]}
        for name in [*names[offset:], *(p.arg for p in a.kwonlyargs)]:
            given = bound.get(name)
            kinds[name] = self.expr(given) if given is not None else UNKNOWN if bound.open else PYTHON
        for extra in (a.vararg, a.kwarg):
            if extra is not None:
                kinds[extra.arg] = LIST
        return self.tracer.function(owner, function, kinds)

    def of_class(self, value: Value, methods: Sequence[str]) -> bool:
        cls = value.cls
        assert cls is not None
        if cls.script is None or not isinstance(cls.node, ast.ClassDef):
            return False
        done = False
        for name in methods:
            if found := cls.script.method(cls.node, name):
                done = True
                self.run_method(*found)
        return done

    def run_method(self, script: Script, function: ast.FunctionDef) -> Kind:
        names = [p.arg for p in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]]
        kinds = {n: TENSOR for n in names[1:]}
        kinds |= {n: PYTHON for n in names if n in ("training", "is_training", "train", "return_state", "mask")}
        if names:
            kinds[names[0]] = OBJECT
        for extra in (function.args.vararg, function.args.kwarg):
            if extra is not None:
                kinds[extra.arg] = LIST
        return self.tracer.function(script, function, kinds)

    def constructed(self, value: Value, node: ast.Call) -> Kind:
        shown = f"`{self.script.text(node.func)}` ({self.script.at(node)})"
        kind = value.script.kind_of_class(value.node) if value.script and isinstance(value.node, ast.ClassDef) else ""
        if kind in ("layer", "model", "optimizer"):
            self.hazard(node, f"it makes a new {kind} on every call: {shown}")
        else:
            self.hazard(node, f"it makes an object on every call, which a graph does only once: {shown}")
        return OBJECT

    def layer(self, value: Value, node: ast.AST) -> None:
        """Calling a layer or a model: its own code is walked once."""
        key = value.node or (value.cls.node if value.cls else None) or node
        if key in self.tracer._layers:
            return
        self.tracer._layers.add(key)
        built = structure(value)
        if value.kind == "layer" and value.cls is None:
            self.library_layer(value)
            return
        for layer in built.layers:
            if layer.cls is None:
                self.library_layer(layer)
        for code in built.code:
            if getattr(code.node, "name", "call") in ("__init__", "build", "get_config", "from_config"):
                continue
            if code.role == "method":
                if getattr(code.node, "name", "") == "call":
                    self.run_method(code.script, code.node)  # type: ignore[arg-type]
            else:
                self.handed_function(code.script, code.node)
        if value.cls is not None:
            self.of_class(value, ("call", "__call__"))
        if built.unseen:
            self.hazard(node, f"a model that the step calls is not seen as a whole: {built.unseen[0].reason}")

    def library_layer(self, layer: Value) -> None:
        made = layer.node
        if layer.keras == "layers.Lambda" and layer.script and isinstance(made, ast.Call):
            function = layer.script.bind(made, "layers.Lambda").get("function")
            if function is not None:
                _Frame(self.tracer, layer.script, {}, None).handed(function)

    def handed(self, function: ast.expr) -> Kind:
        """A function that something else calls with tensors."""
        kind = TENSOR
        for value in self.script.values(function):
            if value.kind in ("function", "method") and isinstance(value.node, FUNCTIONS) and value.script:
                kind = self.handed_function(value.script, value.node, skip=value.kind == "method")
        return kind

    def handed_function(self, script: Script, function: ast.AST, skip: bool = False) -> Kind:
        if not isinstance(function, FUNCTIONS):
            return UNKNOWN
        names = [p.arg for p in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]]
        kinds = {n: TENSOR for n in names}
        if (skip or names[:1] == ["self"]) and names:
            kinds[names[0]] = OBJECT
        for extra in (function.args.vararg, function.args.kwarg):
            if extra is not None:
                kinds[extra.arg] = LIST
        if script is self.script:  # a lambda reads the names around it
            kinds = {**{k: v for k, v in self.env.items() if k in self.bound | self.given}, **kinds}
        return self.tracer.function(script, function, kinds)

    # -- libraries ------------------------------------------------------------------------------------------

    def library_method(self, value: Value, node: ast.Call, kinds: list[Kind]) -> Kind:
        script, name, base = self.script, value.name, value.base
        shown = f"`{script.text(node.func)}` ({script.at(node)})"
        kind = base.kind if base is not None else "unknown"
        if name in _ENDS_OF_TENSORS:
            self.hazard(node, f"`.{name}()` needs the value of a tensor ({script.at(node)})")
            return UNKNOWN
        if kind == "optimizer":
            if base is not None:
                self.optimizer(base, node)
            if name not in _OPTIMIZER_METHODS:
                self.hazard(node, f"what {shown} does in a graph is not known")
            if name == "minimize":
                for argument in node.args[:1]:
                    self.handed(argument)
            return TENSOR
        if kind == "metric":
            if name not in _METRIC_METHODS:
                self.hazard(node, f"what {shown} does in a graph is not known")
            return TENSOR
        if kind in ("model", "layer"):
            if name not in _MODEL_METHODS:
                self.hazard(node, f"{shown} is not for graphs")
            elif name in ("call", "__call__") and base is not None:
                self.layer(base, node)
            return OBJECT if name == "get_layer" else TENSOR
        if base is not None and base.name.startswith("tensorflow.distribute."):
            return self.strategy(name, node)
        if kind == "tensor":
            made = base.name.removeprefix("tensorflow.") if base is not None else ""
            if _NOT_IN_GRAPH.match(made) and not made.startswith(_TRACED) and not made.endswith("Optimizer"):
                self.hazard(node, f"{shown} is not for graphs, or does more than compute")
                return UNKNOWN
            if _VARIABLE_METHODS.fullmatch(name) or name not in CHANGES:
                return TENSOR
            self.once(node, f"changes `{script.text(node.func)}`")
            return TENSOR
        if kind == "loss":
            return TENSOR
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if name == "format":
            self.written(node, kinds)
        if name in CHANGES:
            self.once(node, f"changes `{script.text(receiver)}`")
            return PYTHON
        if base is not None and base.name.split(".")[0] in _TENSOR_LIBRARIES:
            return TENSOR
        if name in _LISTS:
            return LIST
        if kind == "constant" or (kind == "object" and base is not None and base.name == "str"):
            return PYTHON if all(k == PYTHON for k in kinds) else LIST
        if kind in ("sequence", "mapping"):
            if name not in _READS | _TEXT_METHODS:
                self.hazard(node, f"what {shown} does is not seen")
            return LIST
        if base is not None and is_drawing(base):
            self.hazard(node, f"{shown} would draw once, while the step is traced")
            return ARRAY
        if kind == "array":
            if any(k in _TENSORS for k in kinds):
                self.hazard(node, f"a NumPy method gets a tensor: {shown}")
            return ARRAY
        if _VARIABLE_METHODS.fullmatch(name) and name.startswith(("assign", "scatter")):
            return TENSOR
        self.hazard(node, f"what {shown} does is not seen")
        return UNKNOWN

    def optimizer(self, value: Value, node: ast.AST) -> None:
        """Code of the script's own that an optimizer runs: its methods, and what computes its rate."""
        if value.cls is not None:
            self.of_class(value, _OPTIMIZER_CODE)
        script, made = value.script, value.node
        for given in [*made.args, *(k.value for k in made.keywords)] if script and isinstance(made, ast.Call) else ():
            assert script is not None
            for v in script.values(given):
                if v.kind == "schedule" and v.cls is not None:
                    self.of_class(v, ("__call__",))
                elif v.kind in ("function", "method") and isinstance(v.node, FUNCTIONS) and v.script:
                    frame = _Frame(self.tracer, script, {}, None)
                    if frame.handed(given) != TENSOR:
                        self.hazard(
                            node,
                            f"its optimizer asks `{script.text(given)}` ({script.at(given)}) for a number every time",
                        )

    def strategy(self, name: str, node: ast.Call) -> Kind:
        """A method of a distribution strategy."""
        if name in ("run", "experimental_run_v2") and node.args:
            self.handed(node.args[0])
            return TENSOR
        if name not in ("reduce", "experimental_local_results"):
            self.hazard(node, f"`{self.script.text(node.func)}` ({self.script.at(node)}) is not for graphs")
        return TENSOR if name == "reduce" else LIST

    def symbol(self, name: str, node: ast.Call, kinds: list[Kind]) -> Kind:
        root, _, rest = name.partition(".")
        if path := catalog.keras_path(name):
            return self.keras(path, node, kinds)
        if root == "tensorflow":
            return self.tensorflow(rest, node, kinds)
        if root == "builtins":
            return self.builtin(rest, node, kinds)
        shown = f"`{self.script.text(node.func)}` ({self.script.at(node)})"
        tensors = any(k in (*_TENSORS, LIST) for k in kinds)
        if root == "numpy":
            if rest.startswith("random."):
                self.hazard(node, f"{shown} would draw once, while the step is traced")
            elif tensors:
                self.hazard(node, f"{shown} needs the value of a tensor")
            elif UNKNOWN in kinds:
                self.hazard(node, f"{shown} may get a tensor, which has no value in a graph")
            return ARRAY
        if root in ("math", "operator", "cmath"):
            if root != "operator" and (tensors or UNKNOWN in kinds):
                self.hazard(node, f"{shown} needs the value of a tensor")
            return TENSOR if tensors else PYTHON
        if root in _TENSOR_LIBRARIES:
            return TENSOR
        if root in ("functools", "itertools", "typing", "collections", "copy"):
            if name == "functools.reduce" and node.args:
                return self.handed(node.args[0])
            return worst([LIST, *kinds]) if rest != "partial" else OBJECT
        if root in ("random", "time", "datetime", "secrets", "uuid"):
            self.hazard(node, f"{shown} would be asked once, while the step is traced")
        elif root in (
            "logging",
            "os",
            "sys",
            "json",
            "pickle",
            "warnings",
            "tqdm",
            "wandb",
            "absl",
            "mlflow",
            "shutil",
        ):
            self.once(node, f"calls {shown.partition(' (')[0]}")
        else:
            self.hazard(node, f"what {shown} does is not seen")
        return UNKNOWN

    def builtin(self, name: str, node: ast.Call, kinds: list[Kind]) -> Kind:
        at = self.script.at(node)
        tensors = any(k in _TENSORS for k in kinds)
        if name == "print":
            self.hazard(
                node,
                f"it prints ({at}): in a graph that happens once, while it is traced; `tf.print` prints every time",
            )
            return PYTHON
        if name not in _PURE_BUILTINS:
            self.once(node, f"calls `{name}`")
            return UNKNOWN
        if name in _NUMBERS and tensors:
            self.hazard(node, f"`{name}()` needs the value of a tensor ({at})")
            return UNKNOWN
        if name in ("any", "all", "max", "min", "sorted") and LIST in kinds:
            self.hazard(node, f"`{name}()` needs the values of tensors ({at})")
            return UNKNOWN
        if name in ("str", "repr", "format"):
            self.written(node, kinds)
        if name in ("float", "int", "bool") and UNKNOWN in kinds:
            self.hazard(node, f"`{name}()` may need the value of a tensor ({at})")
        if name == "len":
            if tensors:
                self.static(node, node.args[0])
            return PYTHON
        if name == "isinstance" and tensors and len(node.args) > 1:
            asked = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            if any(self.script.symbol(a) not in _SAME_TYPE for a in asked):
                self.hazard(node, f"what type it is, is another thing in a graph ({at})")
            return PYTHON
        if name in (
            "isinstance",
            "issubclass",
            "hasattr",
            "callable",
            "type",
            "str",
            "repr",
            "format",
            "range",
            "slice",
        ):
            return PYTHON
        if name == "sum":
            if tensors:
                self.hazard(node, f"`sum()` iterates over a tensor ({at})")
            return TENSOR if LIST in kinds else worst(kinds)
        if name == "super":
            return OBJECT
        if name in _CONTAINERS:
            if name in ("map", "filter") and node.args:
                self.handed(node.args[0])
            if tensors and name in ("list", "tuple", "set", "sorted", "reversed", "enumerate"):
                self.hazard(node, f"`{name}()` iterates over a tensor ({at})")
            return PYTHON if kinds and all(k == PYTHON for k in kinds) else LIST
        return worst(kinds)

    def tensorflow(self, name: str, node: ast.Call, kinds: list[Kind]) -> Kind:
        script, at = self.script, self.script.at(node)
        shown = f"`{script.text(node.func)}` ({at})"
        if name.startswith("summary.") or name.startswith("compat.v1.summary"):
            self.hazard(node, f"{shown} would write with the step number of the first call")
            return PYTHON
        if name in ("print", "debugging.print"):
            return PYTHON
        if _CREATES.search(name):
            self.hazard(node, f"it makes a new variable on every call: {shown}")
            return TENSOR
        if name in ("random.set_seed", "set_random_seed", "executing_eagerly", "function", "Module", "init_scope"):
            self.hazard(node, f"{shown} means another thing in a graph")
            return PYTHON
        if name in ("py_function", "numpy_function", "py_func"):
            self.hazard(node, f"it runs Python code through {shown}")
            return TENSOR
        if _NOT_IN_GRAPH.match(name) and not name.startswith(_TRACED[:2]):
            self.hazard(node, f"{shown} is not for graphs, or does more than compute")
            return UNKNOWN
        if name == "GradientTape":
            return TAPE
        if name in ("is_tensor", "TensorShape", "as_dtype", "TensorSpec", "get_static_value", "no_gradient"):
            return PYTHON
        sized = _SIZED.match(name) and {TENSOR, LIST} & set(kinds[int(name in _FIRST_IS_DATA) :])
        if sized or (_DYNAMIC.match(name) and not (name == "where" and len(kinds) > 1)):
            self.tracer.dynamic.append((script, node))
        if RAW in kinds and not _TAKES_ARRAYS.match(name):
            self.hazard(node, f"{_RAW} ({at})")
        if _TAKES_FUNCTIONS.search(name):
            for argument in [*node.args, *(k.value for k in node.keywords)]:
                self.handed(argument)
        if _GIVES_LISTS.match(name):
            return LIST
        return TENSOR

    def keras(self, path: str, node: ast.Call, kinds: list[Kind]) -> Kind:
        script, at = self.script, self.script.at(node)
        shown = f"`{script.text(node.func)}` ({at})"
        family, _, last = path.partition(".")
        if family == "backend":
            if last in (
                "get_value",
                "batch_get_value",
                "eval",
                "set_value",
                "batch_set_value",
                "clear_session",
                "function",
            ):
                self.hazard(node, f"{shown} is not for graphs")
            return PYTHON if last in ("int_shape", "epsilon", "floatx", "ndim", "image_data_format") else TENSOR
        if family in ("ops", "activations", "random", "regularizers", "initializers", "constraints"):
            if last == "convert_to_numpy" or last == "SeedGenerator":
                self.hazard(node, f"{shown} is not for graphs")
            return TENSOR
        if family == "losses":
            return OBJECT if last[:1].isupper() and last not in ("MSE", "MAE", "MAPE", "MSLE", "KLD") else TENSOR
        if family == "metrics" and (not last[:1].isupper() or last in ("MSE", "MAE", "MAPE", "MSLE", "KLD")):
            return TENSOR
        if family in ("layers", "models", "optimizers", "metrics", "applications", "mixed_precision"):
            if family == "applications" and last.endswith("preprocess_input"):
                return TENSOR
            what = (
                "metric"
                if family == "metrics"
                else "optimizer"
                if family in ("optimizers", "mixed_precision")
                else ("layer" if family == "layers" else "model")
            )
            self.hazard(node, f"it makes a new {what} on every call: {shown}")
            return OBJECT
        self.hazard(node, f"{shown} is not for graphs")
        return UNKNOWN


#: Operations whose result has a shape that depends on values.
_DYNAMIC = re.compile(
    r"(boolean_mask|where|unique\w*|dynamic_partition|ragged\.\w+|RaggedTensor\.\w+|sparse\.\w+|strings\.\w*split\w*"
    r"|image\.(non_max_suppression\w*|decode\w*)|io\.decode_\w+|nn\.ctc\w*|(math\.)?bincount|compat\.v1\.where"
    r"|(compat\.v1\.)?setdiff1d|sets\.\w+|sequence_mask)$"
)
#: Operations that get the size of their result, which may be a tensor.
_SIZED = re.compile(
    r"(range|repeat|tile|slice|pad|fill|zeros|ones|reshape|broadcast_to|one_hot|eye|linspace|random\.\w+"
    r"|image\.(resize\w*|crop\w*|pad\w*)|(nn|math)\.top_k)$"
)
_FIRST_IS_DATA = frozenset("repeat tile slice pad reshape broadcast_to one_hot nn.top_k math.top_k".split())
_BEGINS = frozenset("model layer optimizer".split())
_GOES_ON = frozenset("metric loss schedule".split())
_RAW = "it computes with a NumPy array of another type than float32, or one that is not known"
_SAME_TYPE = frozenset(
    "tensorflow.Tensor tensorflow.Variable tensorflow.RaggedTensor tensorflow.IndexedSlices tensorflow.SparseTensor "
    "builtins.list builtins.tuple builtins.dict builtins.str builtins.int builtins.float builtins.bool".split()
)
_GIVES_LISTS = re.compile(
    r"(split|unstack|meshgrid|gradients|clip_by_global_norm|unique\w*|dynamic_partition|shape_n|nest\.\w+)$"
)


def anew(values: Iterable[Value]) -> str:
    """What it means that values are made anew (`Hazard.anew`)."""
    begins = {v.kind in _BEGINS or _is_variable(v) for v in values if v.kind not in _GOES_ON}
    return "" if False in begins else "begins" if begins else "goes on"


def kind_of(values: Values) -> Kind:
    """The kind of a value from outside of what is traced."""
    return worst(_kind(v) for v in values) if values else UNKNOWN


def _kind(value: Value) -> Kind:
    match value.kind:
        case "constant":
            return PYTHON
        case "tensor":
            return TENSOR
        case "array":
            return ARRAY
        case "sequence":
            kinds = [kind_of(item) for item in value.items]
            return PYTHON if kinds and all(k == PYTHON for k in kinds) else LIST
        case "mapping":
            return LIST
        case "object" if value.name in ("list", "constant", "bool", "str", "operator") or value.name.startswith(
            "builtins."
        ):
            return LIST if value.name == "list" else PYTHON
        case "method" if value.base is not None and value.base.kind in ("unknown", "parameter"):
            return UNKNOWN
        case "method" if value.base is not None and value.base.kind == "tensor":
            return PYTHON if value.name in _STATIC else TENSOR
        case "parameter" | "unknown":
            return UNKNOWN
    return OBJECT


def _is_read(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def _is_code(values: Values) -> bool:
    return all(
        v.kind in ("symbol", "function", "class", "module", "model", "optimizer", "layer", "metric") for v in values
    )


def _is_variable(value: Value) -> bool:
    return value.kind == "tensor" and value.name.endswith("Variable")


def _element(kind: Kind) -> Kind:
    return {LIST: TENSOR, OBJECT: OBJECT}.get(kind, kind)


def _flat(kinds: object) -> list[Kind]:
    return [k for part in kinds for k in _flat(part)] if isinstance(kinds, list) else [str(kinds)]


def _is_static(function: ast.AST) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in getattr(function, "decorator_list", []))


def _bound_in(script: Script, statements: Sequence[ast.stmt]) -> set[str]:
    """The names that statements give a value."""
    found = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.FunctionDef):
                found.add(node.name)
    return found
