"""`jit_compile=True` on the `tf.function` of hand-written training steps."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rewriter import catalog
from rewriter.codemod import Finding, Fix, Refusal
from rewriter.compilable import obstacles, of_class, of_model, of_settings
from rewriter.edits import Edit, SetKeyword, Wrap
from rewriter.loops.batches import varies
from rewriter.loops.steps import CallSite, Function, Step, call_sites, is_tf_function, is_update, steps
from rewriter.models import Structure, structure
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script
from rewriter.training import checks_numerics, distribution, graph_mode, other_backend, project_calls
from rewriter.values import Value

_FLAGS = ("jit_compile", "experimental_compile")
_RELAXED = ("reduce_retracing", "experimental_relax_shapes")
_LOSSES = ("call", "__call__", "update_state", "result", "reset_state", "reset_states")


@dataclass(frozen=True)
class Rules:
    """What `xla` asks of models and data, wherever they are trained."""

    layer: Callable[[Value], str]  # why a layer is not compiled
    inputs: Callable[[Structure], tuple[str, bool]]  # why a model's inputs vary in shape; are their shapes declared?
    dataset: Callable[[Value, bool], str]  # why the elements of a dataset vary in shape


@dataclass(frozen=True, eq=False)
class _Compiled:
    """A function that runs as a graph: `place` is its decorator, or the call of `tf.function` that it is given to."""

    script: Script
    function: Function
    place: ast.expr
    sites: list[CallSite]


def compiled_steps(script: Script, rules: Rules, *, on_cpu: str, hint: str) -> Iterator[Finding]:
    """on_cpu: why nothing is done where the target is a CPU, "" where it is asked for or is none."""
    seen: set[ast.AST] = set()
    for step in steps(script):
        if step.role != "train" or step.override:
            continue
        found = _compiled(step)
        if found is None:
            if on_cpu:
                yield Refusal(step.node, on_cpu, hint)
                return
            if reason := _program(script) or _eager(script, step, rules):
                yield Refusal(step.node, reason)
            continue
        if found.place in seen or _is_decided(found):
            continue
        seen.add(found.place)
        if on_cpu:
            yield Refusal(step.node, on_cpu, hint)
            return
        reason = _program(script) or _options(found) or _reason(found, step, rules)
        if reason:
            yield Refusal(step.node, reason)
            continue
        keyword = "jit_compile" if script.target.since(2, 5) else "experimental_compile"
        edit: Edit
        if isinstance(found.place, ast.Call):
            edit = SetKeyword(found.place, keyword, "True")
        else:
            edit = Wrap(found.place, f"...({keyword}=True)")
        message = "the training step is compiled with XLA"
        if any(s.loops for s in found.sites):
            message += "; a smaller last batch, where there is one, is compiled once more"
        yield Fix(step.node, message, [edit])


# -- what is compiled ----------------------------------------------------------------------------------------


def _compiled(step: Step) -> _Compiled | None:
    """The innermost function around a step that runs as a graph."""
    function, script = step.function, step.script
    seen: set[ast.AST] = set()
    while function is not None and function not in seen:
        seen.add(function)
        sites, uses = call_sites(script, function)
        for decorator in function.decorator_list:
            if is_tf_function(script, decorator):
                return _Compiled(script, function, decorator, sites)
        for other, use in uses:
            parent = other.parents.get(use)
            if isinstance(parent, ast.Call) and is_tf_function(other, parent) and use in parent.args:
                calls = [
                    CallSite(s, call, 0)
                    for s, expr in other.flow(parent)
                    if isinstance(call := s.parents.get(expr), ast.Call) and call.func is expr
                ]
                return _Compiled(script, function, parent, calls)
        callers = {caller: s.script for s in sites if isinstance(caller := s.script.function_of(s.call), Function)}
        if len(callers) != 1:
            return None
        ((function, script),) = callers.items()
    return None


def _is_decided(found: _Compiled) -> bool:
    return isinstance(found.place, ast.Call) and any(k.arg in _FLAGS for k in found.place.keywords)


def _eager(script: Script, step: Step, rules: Rules) -> str:
    """Why a step that `tf-function` makes a graph of would not be compiled then."""
    if all(c.name != "tf-function" for c in script.options.codemods()):
        return "the step runs eagerly: XLA compiles graphs (`tf-function` makes one of it)"
    function: ast.AST = step.function if step.function is not None and not step.inline else _body(step)
    return _code(script, function, step, rules) or _given(step, step.sites, rules)


def _body(step: Step) -> ast.AST:
    return ast.Module(body=list(step.statements), type_ignores=[])


def _program(script: Script) -> str:
    """Why nothing in the program is compiled."""
    target = script.target
    if not target.since(2, 1):
        return f"`tf.function` compiles from TensorFlow 2.1 on ({target})"
    if not target.since(2, 5) and not target.before(2, 5):
        return f"what asks `tf.function` to compile depends on the version of TensorFlow ({target})"
    if reason := graph_mode(script) or checks_numerics(script):
        return reason
    for other, call in project_calls(
        script,
        ("tensorflow.config.run_functions_eagerly", "tensorflow.config.experimental_run_functions_eagerly"),
    ):
        if not call.args or other.constant(call.args[0]) is not False:
            return f"`{other.text(call.func)}` ({other.at(call)}) may switch graphs off"
    if backend := other_backend(script):
        return f"the script computes with {backend} as well"
    name, shown = distribution(script)
    return f"training is distributed with {shown}, which does not mix with a compiled step" if name else ""


def _options(found: _Compiled) -> str:
    """Why the arguments of `tf.function` speak against it."""
    if not isinstance(found.place, ast.Call):
        return ""
    owner = found.script if found.place in found.script.parents else found.script.project.owner(found.place)
    assert isinstance(owner, Script)
    arguments = owner.bind(found.place, ("func", "input_signature"))
    if arguments.open:
        return f"the arguments of `{owner.text(found.place)}` cannot all be seen"
    for name in _RELAXED:
        given = arguments.get(name)
        if given is not None and owner.constant(given) is not False:
            return f"`{name}` says that shapes vary: each would be compiled anew"
    signature = arguments.get("input_signature")
    for value in owner.values(signature) if signature is not None else ():
        node = value.node if isinstance(value.node, ast.expr) else signature
        for call in ast.walk(node):  # type: ignore[arg-type]
            if isinstance(call, ast.Call):
                shape = owner.bind(call, ("shape", "dtype")).get("shape")
                dims = shape.elts[1:] if isinstance(shape, ast.Tuple | ast.List) else []
                if any(owner.values(d) and all(_is_none(v) for v in owner.values(d)) for d in dims):
                    return f"`input_signature` leaves a dimension open ({owner.at(call)}): each length is compiled anew"
    return ""


def _is_none(value: Value) -> bool:
    return value.kind == "constant" and value.literal is None


# -- whether it compiles -------------------------------------------------------------------------------------


def _reason(found: _Compiled, step: Step, rules: Rules) -> str:
    if not found.sites:
        return f"the calls of `{found.function.name}` are not seen"
    return _code(found.script, found.function, step, rules) or _given(step, found.sites, rules)


def _code(script: Script, function: ast.AST, step: Step, rules: Rules) -> str:
    """What in the step, its models, losses and metrics does not compile."""
    for obstacle in obstacles(script, function):
        return obstacle.reason
    if reason := _counter(script, function):
        return reason
    for model in step.models:
        built = structure(model)
        if built.unseen:
            return built.unseen[0].reason
        if reason := next((r for layer in built.layers if (r := rules.layer(layer))), ""):
            return reason
        for obstacle in of_model(built):
            return obstacle.reason
        for layer in built.layers:
            for obstacle in of_settings(layer):
                return obstacle.reason
    seen: set[ast.AST] = set()
    for owner, call in step.calls:
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        for value in [*owner.values(call.func), *owner.values(receiver)]:
            if value.kind == "layer" and (reason := rules.layer(value)):
                return reason
            if value.kind in ("loss", "metric") and value.cls is not None:
                for obstacle in of_class(value.cls, _LOSSES, seen):
                    return obstacle.reason
            known = value.kind == "optimizer" and value.cls is None and value.keras
            if not known and (
                value.kind == "optimizer" or (is_update(owner, call) and value in owner.values(receiver))
            ):
                return f"whether the optimizer `{owner.text(receiver)}` compiles is not known"
            for obstacle in of_settings(value) if value.kind == "optimizer" else ():
                return obstacle.reason
    return ""


def _counter(script: Script, function: ast.AST) -> str:
    """Variables that hold integers: TensorFlow keeps them on the CPU, where a step compiled for a GPU has none."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        for value in script.values(node):
            call, owner = value.node, value.script
            if owner is None or not isinstance(call, ast.Call) or owner.called(call) != "tensorflow.Variable":
                continue
            given = owner.bind(call, ("initial_value", "trainable"))
            dtype = given.get("dtype")
            name = str(owner.constant(dtype) or owner.symbol(dtype).rpartition(".")[2]) if dtype is not None else ""
            start = given.get("initial_value")
            if name.startswith(("int", "uint")) or (dtype is None and owner.integer(start) is not None):
                return f"`{script.text(node)}` holds integers ({owner.at(call)}), out of reach of a GPU's XLA"
    return ""


# -- whether shapes are fixed --------------------------------------------------------------------------------

_OBJECTS = frozenset("model layer optimizer loss metric function class symbol schedule method constant object".split())
#: Functions of NumPy, TensorFlow and Keras whose result may vary in shape where their arguments do not.
_FINDS = frozenset(
    "unique where nonzero argwhere flatnonzero boolean_mask compress extract setdiff1d intersect1d repeat "
    "sequence_mask pad_sequences from_row_splits ragged constant_ragged range arange".split()
)
_INDICES = frozenset("randint choice integers permutation arange".split())
_SAME = frozenset("astype reshape flatten ravel copy numpy transpose squeeze round clip".split())
_AROUND = frozenset({"builtins.enumerate", "builtins.zip", "builtins.iter", "builtins.list"})


def _given(step: Step, sites: list[CallSite], rules: Rules) -> str:
    """Why a step may be given batches of varying shape."""
    declared = True
    for model in step.models:
        reason, known = rules.inputs(structure(model))
        if reason:
            return reason
        declared = declared and known
    shapes = _Shapes(rules, declared and bool(step.models))
    if step.inline:  # what it is going to be given as a function is not known yet, but its data may be
        for loop in step.loops:
            if isinstance(loop, ast.For) and any(
                isinstance(n, ast.expr) and step.script.is_dataset(n) for n in ast.walk(loop.iter)
            ):
                return shapes.of_loop(step.script, loop.iter)
        return ""
    for site in sites:
        for argument in [*site.call.args, *(k.value for k in site.call.keywords)]:
            if reason := varies(site.script, argument):
                return f"{reason} makes batches of varying shape"
            if reason := shapes.of(site.script, argument):
                return reason
    return ""


class _Shapes:
    def __init__(self, rules: Rules, declared: bool) -> None:
        self.rules, self.declared = rules, declared
        self.seen: set[ast.AST] = set()

    def of(self, script: Script, node: ast.expr) -> str:
        """Why an expression may have another shape at every step; "" where it has not."""
        if node in self.seen:
            return ""
        self.seen.add(node)
        values = script.values(node)
        if values and all(v.kind in _OBJECTS and not (v.kind == "object" and v.cls is None) for v in values):
            return ""
        match node:
            case ast.Constant():
                return ""
            case ast.Name():
                return self._name(script, node)
            case ast.Tuple() | ast.List() if node.elts:  # (an empty list is filled later)
                return next((r for e in node.elts if (r := self.of(script, e))), "")
            case ast.Dict():
                return next((r for e in node.values if (r := self.of(script, e))), "")
            case ast.Starred() | ast.Attribute() if isinstance(node, ast.Starred) or node.attr == "T":
                return self.of(script, node.value)
            case ast.BinOp():
                return self.of(script, node.left) or self.of(script, node.right)
            case ast.UnaryOp():
                return self.of(script, node.operand)
            case ast.Subscript():
                return self._part(script, node)
            case ast.Call():
                return self._call(script, node)
        if values and all(v.kind in ("array", "tensor") for v in values):
            return ""
        return self._not_seen(script, node)

    def _not_seen(self, script: Script, node: ast.expr) -> str:
        return f"whether `{script.text(node)}` ({script.at(node)}) always has one shape is not seen"

    def _name(self, script: Script, node: ast.Name) -> str:
        bindings = script.names.reaching(node)
        for binding in bindings:
            reason = ""
            if binding.kind == "loop" and binding.value is not None:
                reason = self.of_loop(script, binding.value)
            elif binding.kind == "parameter" and isinstance(function := script.function_of(binding.node), FUNCTIONS):
                calls = script.project.calls_of(function, script) if isinstance(function, ast.FunctionDef) else []
                if not calls:
                    return self._not_seen(script, node)
                names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
                for other, call, offset in calls:
                    given = other.bind(call, tuple(names[offset:])).get(node.id)
                    reason = reason or (self.of(other, given) if given is not None else "")
            elif binding.kind in ("assign", "augment") and binding.value is not None:
                reason = self.of(script, binding.part if binding.part is not None else binding.value)
            elif binding.kind not in ("def", "class", "import"):
                reason = self._not_seen(script, node)
            if reason:
                return reason
        return "" if bindings else self._not_seen(script, node)

    def of_loop(self, script: Script, iterated: ast.expr) -> str:
        """Why what a loop gives may vary: it must come from a dataset whose elements do not, or from slices."""
        datasets = [v for v in script.values(iterated) if v.kind in ("dataset", "tfds")]
        if datasets:
            return next(
                (r for v in datasets if v.kind == "dataset" and (r := self.rules.dataset(v, self.declared))), ""
            )
        if isinstance(iterated, ast.Call):
            name = script.called(iterated)
            if name == "builtins.range":
                return f"a Python number that changes (`{script.text(iterated)}`) is given to it: each is compiled anew"
            if name in _AROUND or name.rpartition(".")[2] in ("tqdm", "trange", "Progbar"):
                wrapped = iterated.args if name == "builtins.zip" else iterated.args[:1]
                return next((r for a in wrapped if (r := self._iterated(script, a))), "")
            if isinstance(iterated.func, ast.Attribute) and iterated.func.attr in ("as_numpy_iterator", "take"):
                return self.of_loop(script, iterated.func.value)
        if isinstance(iterated, ast.Name):
            found = []
            for binding in script.names.reaching(iterated):
                if binding.kind in ("assign", "with") and binding.value is not None and not binding.path:
                    found.append(self.of_loop(script, binding.value))
                elif binding.kind == "parameter":
                    found.append(self._name(script, iterated) if iterated not in self.seen else "")
                else:
                    found.append(self._not_seen(script, iterated))
            if found:
                return next((r for r in found if r), "")
        if catalog.keras_path(script.called(iterated) if isinstance(iterated, ast.Call) else ""):
            return ""
        return f"the shapes of the data `{script.text(iterated)}` ({script.at(iterated)}) are not seen"

    def _iterated(self, script: Script, node: ast.expr) -> str:
        if isinstance(node, ast.Call) and script.called(node) == "builtins.range":
            return ""  # its numbers are the loop's, not the step's, unless they are named in the call
        return self.of_loop(script, node)

    def _part(self, script: Script, node: ast.Subscript) -> str:
        """A part of an array: a slice, or some of its rows."""
        index = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if not isinstance(index, ast.Slice | ast.Constant):
            drawn = self._is_index(script, index)
            if not drawn:
                return self._not_seen(script, node)
        return self.of(script, node.value)

    def _is_index(self, script: Script, index: ast.expr) -> bool:
        """Random rows, or a part of a permutation: as many at every step."""
        if isinstance(index, ast.Subscript):
            return self._is_index(script, index.value)
        if isinstance(index, ast.Call):
            return isinstance(index.func, ast.Attribute) and index.func.attr in _INDICES
        if isinstance(index, ast.Name):
            values = [b.value for b in script.names.reaching(index)]
            return bool(values) and all(v is not None and self._is_index(script, v) for v in values)
        return False

    def _call(self, script: Script, node: ast.Call) -> str:
        func = node.func
        last = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if script.called(node) == "builtins.next" or last in ("get_next", "next"):
            return self._drawn(script, node)
        for callee in script.values(func):
            if callee.kind in ("function", "method") and callee.script and isinstance(callee.node, ast.FunctionDef):
                returned = callee.script.returns(callee.node)
                if not returned or callee.script.is_generator(callee.node):
                    return self._not_seen(script, node)
                return next((r for e in returned if (r := self.of(callee.script, e))), "")
        name = script.called(node)
        if name.split(".")[0] in ("numpy", "tensorflow", "keras", "tf_keras", "sklearn") and last not in _FINDS:
            return next((r for a in node.args if not _is_shape(script, a) and (r := self.of(script, a))), "")
        if isinstance(func, ast.Attribute) and not name and last in _SAME:
            return self.of(script, func.value)
        return self._not_seen(script, node)

    def _drawn(self, script: Script, node: ast.Call) -> str:
        source = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
        return self.of_loop(script, source) if source is not None else self._not_seen(script, node)


def _is_shape(script: Script, node: ast.expr) -> bool:
    """A number, or a list of numbers, that stay what they are."""
    items = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    return all(script.number(e) is not None or all(v.kind == "constant" for v in script.values(e)) for e in items)
