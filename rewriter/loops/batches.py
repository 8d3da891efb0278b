"""What a loop hands to a step for every batch: tensors, NumPy arrays and of which type, Python numbers, objects.

given(script, expr)       # every alternative of what an argument is
varies(script, expr)      # "" or why a tensor's shape differs from batch to batch by more than a last, smaller one
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..data.pipelines import stages
from ..scopes import FUNCTIONS, Binding
from ..script import Script, own_nodes
from ..values import Value, default_of, is_drawing

#: "tensor": also a nest of tensors. "array": see `dtype`. "constant": a Python value, see `literal`.
#: "int", "float": Python numbers that differ from call to call. "list": of tensors. "object": a model, a function.
GivenKind: TypeAlias = Literal["tensor", "array", "constant", "int", "float", "list", "object", "unknown"]


#: What was followed to get somewhere: `rate = rate * 0.9` leads back to itself.
Way: TypeAlias = tuple[object, ...]


@dataclass(frozen=True)
class Given:
    kind: GivenKind
    dtype: str = ""  # of an array: "float32", "float64", "int", "bool"; "" where it is not known
    literal: object = None
    value: Value | None = None  # of an object
    origin: object = None  # of an object: the call that makes it, or how an attribute that holds it is written


_TENSOR, _UNKNOWN = Given("tensor"), Given("unknown")
_UNSEEN_ARRAY = Given("array")
_DEEP = 30
#: Of so many whole numbers each may have a trace of its own.
_FEW = 4
_TRACKERS = ("tqdm", "trange", "Progbar", "track", "progress_bar", "prefetch")


def given(script: Script, node: ast.expr | None, way: Way = ()) -> list[Given]:
    """Every alternative of what an expression hands to a function."""
    found = list(dict.fromkeys(_given(script, node, way)))
    return found if found or way else [_UNKNOWN]


def _given(script: Script, node: ast.expr | None, way: Way) -> Iterator[Given]:
    if len(way) > _DEEP or node is None:
        yield _UNKNOWN
        return
    match node:
        case ast.Constant():
            yield Given("constant", literal=node.value)
        case ast.Name():
            bindings = script.names.reaching(node)
            for binding in bindings:
                yield from _bound(script, binding, (*way, None))
            if not bindings:
                yield from _valued(script, node, way)
        case ast.Tuple() | ast.List():
            kinds = {g.kind for e in node.elts for g in given(script, e, (*way, None))}
            if kinds <= {"tensor", "array", "list"}:
                yield Given("list")
            elif kinds <= {"constant"}:
                yield Given("constant", literal=ast.unparse(node))
            else:
                yield _UNKNOWN
        case ast.Subscript():
            for base in given(script, node.value, (*way, None)):
                if base.kind in ("tensor", "array"):
                    yield base
                else:
                    yield from _valued(script, node, way)
        case ast.Attribute(attr="T", value=base):
            yield from given(script, base, (*way, None))
        case ast.Call():
            yield from _called(script, node, way)
        case ast.BinOp():
            yield from _computed(script, node, way)
        case ast.UnaryOp():
            yield from given(script, node.operand, (*way, None))
        case ast.IfExp():
            yield from given(script, node.body, (*way, None))
            yield from given(script, node.orelse, (*way, None))
        case _:
            yield from _valued(script, node, way)


def _valued(script: Script, node: ast.expr, way: Way) -> Iterator[Given]:
    for v in script.values(node):
        yield from _of_value(script, v, node, way)


def _of_value(script: Script, v: Value, node: ast.expr, way: Way) -> Iterator[Given]:
    match v.kind:
        case "constant":
            yield Given("constant", literal=v.literal)
        case "tensor":
            yield _TENSOR
        case "array" if not is_drawing(v):
            yield Given("array", array_dtype(script, node, (*way, None)))
        case "sequence":
            kinds = {g.kind for item in v.items for x in item for g in _of_value(script, x, node, (*way, None))}
            yield Given("list") if kinds and kinds <= {"tensor", "array"} else _UNKNOWN
        case "model" | "layer" | "optimizer" | "metric" | "loss" | "function" | "class" | "symbol" | "schedule":
            yield Given("object", value=v, origin=ast.dump(node) if isinstance(node, ast.Attribute) else v.node)
        case "method" if isinstance(v.node, FUNCTIONS):
            yield Given("object", value=v)
        case "method" if v.base is not None and v.base.kind == "tensor":
            yield _TENSOR
        case "object" if v.cls is not None:
            yield Given("object", value=v)
        case _:
            yield _UNKNOWN


def _bound(script: Script, binding: Binding, way: Way) -> Iterator[Given]:
    if binding in way:
        return
    way = (*way, binding)
    if len(way) > _DEEP:
        yield _UNKNOWN
    elif binding.kind == "loop" and binding.value is not None:
        yield from element(script, binding.value, binding.path, way)
    elif binding.kind == "parameter":
        yield from _parameter(script, binding, way)
    elif binding.kind == "augment" and binding.value is not None:
        for g in given(script, binding.value, (*way, None)):
            yield _number(g)
    elif binding.kind == "assign" and binding.value is not None:
        if (part := binding.part) is not None:
            yield from given(script, part, (*way, None))
        elif isinstance(binding.value, ast.Call) and (source := _drawn_from(script, binding.value)) is not None:
            yield from element(script, source, binding.path, way)
        elif (
            binding.path
            and isinstance(binding.value, ast.Call)
            and (parts := list(_returned(script, binding.value, binding.path)))
        ):
            for owner, returned in parts:
                for g in given(owner, returned, (*way, None)):
                    yield replace(g, origin=binding.node) if g.kind == "object" else g
        else:
            for g in given(script, binding.value, (*way, None)):
                if g.kind in ("tensor", "array"):
                    yield g
                else:
                    yield from (
                        _valued(script, binding.node, way[:-1]) if isinstance(binding.node, ast.expr) else [_UNKNOWN]
                    )
    elif binding.kind in ("def", "class", "import"):
        yield Given("object")
    else:
        yield _UNKNOWN


def _returned(script: Script, call: ast.Call, path: tuple[int, ...]) -> Iterator[tuple[Script, ast.expr]]:
    """The parts that functions of the project return at a position: `x, y = batches.take(8)`."""
    for v in script.values(call.func):
        if v.kind in ("function", "method") and isinstance(v.node, ast.FunctionDef) and v.script is not None:
            for returned in v.script.returns(v.node):
                node: ast.expr = returned
                for index in path:
                    if not isinstance(node, ast.Tuple | ast.List) or index >= len(node.elts):
                        return
                    node = node.elts[index]
                yield v.script, node


def _number(g: Given) -> Given:
    """What a name is that is counted up by this."""
    if g.kind == "constant" and isinstance(g.literal, int | float):
        return Given("float" if isinstance(g.literal, float) else "int")
    return g


def _parameter(script: Script, binding: Binding, way: Way) -> Iterator[Given]:
    from .steps import call_sites

    function = script.parents[script.parents[binding.node]]
    if not isinstance(function, ast.FunctionDef):
        yield _UNKNOWN
        return
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    if isinstance(script.parents.get(function), ast.ClassDef) and names[:1] == [binding.name]:
        yield Given("object")
        return
    sites, uses = call_sites(script, function)
    if not sites or uses:
        yield _UNKNOWN
    for site in sites:
        argument = site.script.bind(site.call, tuple(names[site.offset :])).get(binding.name)
        yield from given(
            site.script, argument if argument is not None else default_of(function, binding.name), (*way, None)
        )


def _called(script: Script, node: ast.Call, way: Way) -> Iterator[Given]:
    name = script.called(node)
    if (source := _drawn_from(script, node)) is not None:
        yield from element(script, source, (), way)
        return
    if name in ("builtins.float", "builtins.len", "builtins.int", "builtins.round") or name.startswith("math."):
        constant = script.constant(node)
        kind: GivenKind = "float" if name in ("builtins.float",) or name.startswith("math.") else "int"
        yield Given("constant", literal=constant) if constant is not None else Given(kind)
        return
    if (number := _drawn_number(script, node)) is not None:
        yield number
        return
    if name in ("builtins.min", "builtins.max", "builtins.abs", "builtins.sum"):
        kinds = [_number(g).kind for a in node.args for g in given(script, a, (*way, None))]
        if kinds and all(k in ("int", "float") for k in kinds):
            yield Given("float" if "float" in kinds else "int")
            return
    for v in script.values(node.func):
        if v.kind in ("function", "method") and isinstance(v.node, ast.FunctionDef) and v.script is not None:
            returned = v.script.returns(v.node)
            if v.script.is_generator(v.node) or not returned:
                yield _UNKNOWN
            for expr in returned:
                for g in given(v.script, expr, (*way, None)):
                    yield replace(g, origin=node) if g.kind == "object" else g
        else:
            yield from _valued(script, node, way)
            return


def _computed(script: Script, node: ast.BinOp, way: Way) -> Iterator[Given]:
    for a in given(script, node.left, (*way, None)):
        for b in given(script, node.right, (*way, None)):
            kinds = {a.kind, b.kind}
            if "tensor" in kinds:
                yield _TENSOR
            elif "array" in kinds:
                yield Given("array", array_dtype(script, node, (*way, None)))
            elif a.kind == b.kind == "constant":
                literal = script.constant(node)
                if literal is not None:
                    yield Given("constant", literal=literal)
                else:
                    yield from _numbers(node, a, b)
            else:
                yield from _numbers(node, a, b)


def _numbers(node: ast.BinOp, a: Given, b: Given) -> Iterator[Given]:
    kinds = {_number(a).kind, _number(b).kind}
    if kinds <= {"int", "float"}:
        yield Given("float" if "float" in kinds or isinstance(node.op, ast.Div) else "int")
    else:
        yield _UNKNOWN


#: Functions and methods of NumPy that draw one Python number unless they get a size: what they take before that.
_DRAWS = {
    "rand": 0, "randn": 0, "random": 0, "random_sample": 0, "standard_normal": 0, "uniform": 2, "normal": 2, "beta": 2,
    "exponential": 1, "poisson": 1, "binomial": 2, "randint": 2, "integers": 2,
}  # fmt: skip


def _drawn_number(script: Script, node: ast.Call) -> Given | None:
    """`np.random.rand()`, `rng.uniform(0, 1)`: a Python number that is another one in every round."""
    name = script.called(node)
    if not name.startswith("numpy.random."):
        owners = script.values(node.func.value) if isinstance(node.func, ast.Attribute) else ()
        if not owners or not all(is_drawing(v) for v in owners):
            return None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    last = name.rpartition(".")[2]
    if last not in _DRAWS or len(node.args) > _DRAWS[last] or any(k.arg in (None, "size") for k in node.keywords):
        return None
    if any(given(script, a)[0].kind in ("array", "list", "unknown") for a in node.args):
        return None
    return Given("int" if last in ("randint", "integers", "poisson", "binomial") else "float")


# -- what is iterated over ----------------------------------------------------------------------------------


def _drawn_from(script: Script, call: ast.Call) -> ast.expr | None:
    """What `next(iterator)`, `next(iter(ds))` and `iterator.get_next()` take an element of."""
    source: ast.expr | None = None
    if script.called(call) == "builtins.next" and call.args:
        source = call.args[0]
    elif isinstance(call.func, ast.Attribute) and call.func.attr in ("get_next", "next", "__next__") and not call.args:
        if any(isinstance(v.node, FUNCTIONS) for v in script.values(call.func)):
            return None
        source = call.func.value
    while source is not None:
        if isinstance(source, ast.Call) and script.called(source) == "builtins.iter" and source.args:
            return source.args[0]
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and "iterator" in source.func.attr:
            return source.func.value
        bindings = script.names.reaching(source) if isinstance(source, ast.Name) else ()
        if len(bindings) == 1 and bindings[0].kind == "assign" and not bindings[0].path:
            source = bindings[0].value
        else:
            return source
    return None


def element(script: Script, node: ast.expr, path: tuple[int, ...], way: Way = ()) -> Iterator[Given]:
    """What a loop over an expression gives, or a part of it: `for i, (x, y) in enumerate(ds)`."""
    if len(way) > _DEEP:
        yield _UNKNOWN
        return
    if isinstance(node, ast.Call):
        name = script.called(node)
        shown = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "builtins.range":
            yield Given("int")
            return
        if name == "builtins.enumerate" and node.args:
            if path[:1] == (0,):
                yield Given("int")
            elif path:
                yield from element(script, node.args[0], path[1:], (*way, None))
            else:
                yield _UNKNOWN
            return
        if name == "builtins.zip":
            if path and path[0] < len(node.args):
                yield from element(script, node.args[path[0]], path[1:], (*way, None))
            else:
                yield _UNKNOWN
            return
        if shown == "trange":
            yield Given("int")
            return
        if node.args and (
            shown in _TRACKERS or name in ("builtins.list", "builtins.iter", "builtins.reversed", "builtins.tuple")
        ):
            yield from element(script, node.args[0], path, (*way, None))
            return
        if shown == "as_numpy_iterator" or name.endswith("as_numpy"):
            yield _UNSEEN_ARRAY
            return
        if shown == "enumerate" and isinstance(node.func, ast.Attribute) and script.is_dataset(node.func.value):
            yield _TENSOR
            return
    if script.is_dataset(node):
        yield _TENSOR
        return
    if isinstance(node, ast.Name):
        for binding in script.names.reaching(node):
            if binding.kind == "assign" and binding.value is not None and binding.part is not None:
                yield from element(script, binding.part, path, (*way, None))
            elif binding.kind == "parameter":
                yield from _element_of_parameter(script, binding, path, way)
            else:
                yield from _element_of_values(script, node, path, way)
        return
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from element(script, node.left, path, (*way, None))
        return
    if isinstance(node, ast.List | ast.Tuple):
        found = [g for part in node.elts for g in _part(script, part, path, way)]
        numbers = {g.kind for g in map(_number, found)}
        changes = "float" in numbers or len(found) > _FEW
        yield from map(_number, found) if changes and len(found) > 1 and numbers <= {"int", "float"} else found
        return
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        yield from _part(script, node.elt, path, way)
        return
    yield from _element_of_values(script, node, path, way)


def _part(script: Script, node: ast.expr, path: tuple[int, ...], way: Way) -> Iterator[Given]:
    for index in path:
        if isinstance(node, ast.Tuple | ast.List) and index < len(node.elts):
            node = node.elts[index]
    yield from given(script, node, (*way, None))


def _element_of_parameter(script: Script, binding: Binding, path: tuple[int, ...], way: Way) -> Iterator[Given]:
    from .steps import call_sites

    function = script.parents[script.parents[binding.node]]
    if not isinstance(function, ast.FunctionDef):
        yield _UNSEEN_ARRAY
        return
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    sites, uses = call_sites(script, function)
    if not sites or uses:
        yield _UNSEEN_ARRAY
    for site in sites:
        argument = site.script.bind(site.call, tuple(names[site.offset :])).get(binding.name)
        if argument is None:
            yield _UNSEEN_ARRAY
        else:
            yield from element(site.script, argument, path, (*way, None))


def _element_of_values(script: Script, node: ast.expr, path: tuple[int, ...], way: Way) -> Iterator[Given]:
    """What is not seen gives arrays, as far as it goes into a model: of which type is not known."""
    for v in script.values(node):
        if v.kind in ("dataset", "tfds"):
            yield _TENSOR
        elif v.kind == "array":
            yield Given("array", array_dtype(script, node, (*way, None)))
        elif v.kind == "tensor":
            yield _TENSOR
        elif (
            v.kind == "generator" and v.base is not None and v.base.script and isinstance(v.base.node, ast.FunctionDef)
        ):
            for inner in own_nodes(v.base.node):
                if isinstance(inner, ast.Yield) and inner.value is not None:
                    yield from _part(v.base.script, inner.value, path, way)
        else:
            yield _UNSEEN_ARRAY


# -- types of arrays ----------------------------------------------------------------------------------------

_FLOAT64 = frozenset(
    "zeros ones empty linspace random.rand random.randn random.random random.normal random.uniform "
    "random.random_sample "
    "random.standard_normal eye identity random.beta random.exponential".split()
)
_KEEP = frozenset(
    "reshape copy flatten ravel transpose squeeze swapaxes repeat clip T expand_dims concatenate stack vstack hstack "
    "tile "
    "asarray array ascontiguousarray roll flip take round abs maximum minimum where pad split rollaxis moveaxis".split()
)
_INTEGERS = frozenset("random.randint random.permutation arange argmax argmin argsort bincount random.choice".split())
_FLOATS = frozenset("sin cos exp log sqrt mean std tanh cumsum power square".split())


def array_dtype(script: Script, node: ast.expr | None, way: Way = ()) -> str:
    """The type of a NumPy array as far as the way that it is made tells; "" where it does not."""
    if node is None or len(way) > _DEEP:
        return ""
    match node:
        case ast.Name():
            found = {_dtype_of_binding(script, b, (*way, b)) for b in script.names.reaching(node) if b not in way}
            return found.pop() if len(found) == 1 else ""
        case ast.Subscript() | ast.UnaryOp() | ast.Starred():
            return array_dtype(script, node.value if not isinstance(node, ast.UnaryOp) else node.operand, (*way, None))
        case ast.Attribute(attr="T", value=base):
            return array_dtype(script, base, (*way, None))
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            owner = next(script.enclosing(node, ast.ClassDef), None)
            assigned = script.assigned_attributes(owner).get(attr, []) if isinstance(owner, ast.ClassDef) else []
            return _joined([array_dtype(s, e, (*way, None)) for s, e in assigned])
        case ast.Constant(value=bool()):
            return "bool"
        case ast.Constant(value=int()):
            return "int"
        case ast.Constant(value=float()):
            return "float64"
        case ast.List() | ast.Tuple():
            return _joined([array_dtype(script, e, (*way, None)) for e in node.elts])
        case ast.BinOp():
            return _combined(script, node, way)
        case ast.Compare():
            return "bool"
        case ast.Call():
            return _dtype_of_call(script, node, way)
    return ""


def _dtype_of_binding(script: Script, binding: Binding, way: Way) -> str:
    if binding.kind == "assign" and binding.value is not None:
        if binding.part is not None:
            return array_dtype(script, binding.part, way)
        call = binding.value
        if isinstance(call, ast.Call) and script.called(call).endswith("load_data"):
            return "int"  # images and labels of `keras.datasets`
        if isinstance(call, ast.Call) and script.called(call).endswith("train_test_split"):
            at = binding.path[0] // 2 if binding.path else 0
            return array_dtype(script, call.args[at], way) if at < len(call.args) else ""
    if binding.kind == "augment" and binding.value is not None:
        others = [b for b in binding.scope.bindings.get(binding.name, ()) if b is not binding]
        return _joined([_dtype_of_binding(script, b, (*way, None)) for b in others]) if len(way) < _DEEP else ""
    if binding.kind == "parameter":
        function = script.parents[script.parents[binding.node]]
        if isinstance(function, ast.FunctionDef):
            found = {array_dtype(s, a, (*way, None)) for s, a in _arguments(script, function, binding.name)}
            return found.pop() if len(found) == 1 else ""
    if binding.kind == "loop" and binding.value is not None and not binding.path:
        return array_dtype(script, binding.value, (*way, None))
    return ""


def _arguments(script: Script, function: ast.FunctionDef, name: str) -> Iterator[tuple[Script, ast.expr | None]]:
    from .steps import call_sites

    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    if function.name == "__init__":
        for other, call, offset in script.project.calls_of(function, script):
            yield other, other.bind(call, tuple(names[offset:])).get(name)
    for site in call_sites(script, function)[0]:
        yield site.script, site.script.bind(site.call, tuple(names[site.offset :])).get(name)


def _named(script: Script, node: ast.expr | None) -> str:
    """The type that a `dtype` argument names."""
    if node is None:
        return ""
    value = script.constant(node)
    name = value if isinstance(value, str) else script.symbol(node).rpartition(".")[2]
    name = name.removesuffix("_")
    if name in ("float32", "single"):
        return "float32"
    if name in ("float64", "double", "float"):
        return "float64"
    if name.startswith(("int", "uint")):
        return "int"
    return "bool" if name == "bool" else ""


def _dtype_of_call(script: Script, node: ast.Call, way: Way) -> str:
    name = script.called(node).removeprefix("numpy.")
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    dtype = script.argument(node, "dtype")
    if method == "astype" and (node.args or dtype is not None):
        return _named(script, dtype if dtype is not None else node.args[0])
    if dtype is not None:
        return _named(script, dtype)
    if script.called(node).startswith("numpy."):
        if name in ("array", "asarray", "ones", "zeros", "empty") and len(node.args) > 1:
            return _named(script, node.args[1])
        if _named(script, node.func):
            return _named(script, node.func)
        if name in _FLOAT64:
            return "float64"
        if name in _INTEGERS:
            return "int" if name != "arange" or all(isinstance(script.constant(a), int) for a in node.args) else ""
        if name in _KEEP and node.args:
            return array_dtype(script, node.args[0], (*way, None))
        if name in _FLOATS and node.args:
            inner = array_dtype(script, node.args[0], (*way, None))
            return "float64" if inner in ("int", "float64") else inner
        return ""
    if method in _KEEP and isinstance(node.func, ast.Attribute):
        return array_dtype(script, node.func.value, (*way, None))
    if script.called(node).endswith("to_categorical"):
        return "" if script.target.keras != 2 else "float32"
    found = {
        array_dtype(v.script, r, (*way, None))
        for v in script.values(node.func)
        if v.kind in ("function", "method") and v.script is not None and isinstance(v.node, ast.FunctionDef)
        for r in v.script.returns(v.node)
    }
    return found.pop() if len(found) == 1 else ""


def _combined(script: Script, node: ast.BinOp, way: Way) -> str:
    sides = []
    for side in (node.left, node.right):
        number = script.constant(side)
        if isinstance(number, int | float) and not isinstance(number, bool):
            sides.append("number" if isinstance(number, float) else "whole")
        else:
            sides.append(array_dtype(script, side, (*way, None)))
    arrays = [s for s in sides if s not in ("number", "whole")]
    if "" in arrays or not arrays:
        return ""
    if "float64" in arrays:
        return "float64"
    if "float32" in arrays:
        return "float32" if "int" not in arrays else ""
    return "float64" if "number" in sides or isinstance(node.op, ast.Div) else "int"


def _joined(found: Iterable[str]) -> str:
    kinds = set(found)
    if kinds == {"int", "float64"}:
        return "float64"
    return kinds.pop() if len(kinds) == 1 else ""


# -- shapes -------------------------------------------------------------------------------------------------

_OF_ANY_LENGTH = frozenset("padded_batch bucket_by_sequence_length ragged_batch dense_to_ragged_batch".split())


def varies(script: Script, node: ast.expr | None, way: Way = ()) -> str:
    """Why the shapes of what a loop gives differ by more than a smaller last batch: the stage that makes them so."""
    if node is None or len(way) > _DEEP:
        return ""
    if reason := _sized_by_loop(script, node):
        return reason
    if isinstance(node, ast.Name):
        for binding in script.names.reaching(node):
            if binding.part is not None and (reason := varies(script, binding.part, (*way, None))):
                return reason
            if binding.kind == "loop" or (binding.kind == "assign" and binding.path):
                source = binding.value
                if isinstance(source, ast.Call) and (drawn := _drawn_from(script, source)) is not None:
                    source = drawn
                if reason := _source_varies(script, source, way):
                    return reason
            elif binding.kind == "assign" and binding.value is not None:
                if reason := varies(script, binding.value, (*way, None)):
                    return reason
            elif binding.kind == "parameter":
                function = script.parents[script.parents[binding.node]]
                if isinstance(function, ast.FunctionDef):
                    for other, argument in _arguments(script, function, binding.name):
                        if reason := varies(other, argument, (*way, None)):
                            return reason
        return ""
    if isinstance(node, ast.Subscript):
        return varies(script, node.value, (*way, None))
    if isinstance(node, ast.Call) and (drawn := _drawn_from(script, node)) is not None:
        return _source_varies(script, drawn, way)
    return ""


def _source_varies(script: Script, node: ast.expr | None, way: Way) -> str:
    while isinstance(node, ast.Call) and not script.is_dataset(node) and node.args:
        node = node.args[0]
    if node is None:
        return ""
    if reason := _elements_vary(script, node, way):
        return reason
    if isinstance(node, ast.Name) and not script.is_dataset(node):
        for binding in script.names.reaching(node):
            if binding.kind == "parameter":
                function = script.parents[script.parents[binding.node]]
                if isinstance(function, ast.FunctionDef) and len(way) < _DEEP:
                    for other, argument in _arguments(script, function, binding.name):
                        if reason := _source_varies(other, argument, (*way, None)):
                            return reason
    for v in script.values(node):
        for stage in stages(v) if v.kind == "dataset" else ():
            if stage.name.rpartition(".")[2] in _OF_ANY_LENGTH and not _is_padded_to(stage):
                return f"`{stage.name}`"
        made = stages(v) if v.kind == "dataset" else []
        generated = bool(made) and made[0].name.endswith("from_generator") and not any("batch" in s.name for s in made)
        if generated and _has_open_shape(made[0]):
            return "`from_generator`"
    return ""


_MAKES_ARRAYS = re.compile(
    r"(numpy|tensorflow)\.(zeros|ones|full|empty|fill|arange|range|linspace"
    r"|random\.(rand|randn|random|normal|uniform|randint|standard_normal|choice|permutation))$"
)


def _sized_by_loop(script: Script, node: ast.expr) -> str:
    """`x[:n]` and `np.ones((n, 8))` where a loop counts `n`: another shape in every round."""
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if isinstance(part, ast.Slice) and not _is_window(part):
                bounds = [b for b in (part.lower, part.upper) if b is not None]
                if any(_is_counted(script, n) for b in bounds for n in ast.walk(b)):
                    return f"`{script.text(node)}`"
        return _sized_by_loop(script, node.value)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("astype", "reshape", "copy"):
            return _sized_by_loop(script, node.func.value)
        if _MAKES_ARRAYS.match(script.called(node)):
            sizes = [*node.args[:1], *(k.value for k in node.keywords if k.arg in ("shape", "size"))]
            if any(_is_counted(script, n) for s in sizes for n in ast.walk(s)):
                return f"`{script.text(node)}`"
    return ""


def _is_window(part: ast.Slice) -> bool:
    """`i:i + 16`, `i * 16:(i + 1) * 16` and `start:end`: as long in every round, but for the last."""
    if part.lower is None or part.upper is None:
        return False
    used = [{n.id for n in ast.walk(b) if isinstance(n, ast.Name)} for b in (part.lower, part.upper)]
    return bool(used[0] & used[1]) or all(isinstance(b, ast.Name) for b in (part.lower, part.upper))


def _is_counted(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and any(b.kind in ("loop", "augment") for b in script.names.reaching(node))


def _elements_vary(script: Script, node: ast.expr, way: Way) -> str:
    """Arrays in a list, or those that a generator of the script yields, of which each has a length of its own."""
    if len(way) > _DEEP:
        return ""
    made: list[tuple[Script, ast.expr]] = []
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        made.append((script, node.elt))
    elif isinstance(node, ast.List | ast.Tuple):
        made += [(script, e) for e in node.elts]
    elif isinstance(node, ast.Name):
        for b in script.names.reaching(node):
            if b.kind == "assign" and isinstance(b.part, ast.ListComp | ast.GeneratorExp):
                made.append((script, b.part.elt))
    for v in script.values(node):
        function = v.base.node if v.kind == "generator" and v.base is not None else None
        if isinstance(function, ast.FunctionDef) and v.base is not None and v.base.script is not None:
            made += [(v.base.script, n.value) for n in own_nodes(function) if isinstance(n, ast.Yield) and n.value]
    for owner, element in made:
        for part in element.elts if isinstance(element, ast.Tuple | ast.List) else [element]:
            if reason := _sized_by_loop(owner, part):
                return reason
            if isinstance(part, ast.Name) and (reason := varies(owner, part, (*way, None))):
                return reason
    return ""


def _has_open_shape(stage: Value) -> bool:
    """`tf.TensorSpec([None], tf.float32)` in what a generator gives."""
    if stage.script is None or not isinstance(stage.node, ast.Call):
        return False
    given = stage.script.bind(stage.node, "Dataset.from_generator")
    shapes = [given.get("output_signature"), given.get("output_shapes")]
    return any(isinstance(n, ast.Constant) and n.value is None for s in shapes if s is not None for n in ast.walk(s))


def _is_padded_to(stage: Value) -> bool:
    """`padded_batch(32, padded_shapes=([100], []))`: every length is written out."""
    if stage.script is None or not isinstance(stage.node, ast.Call):
        return False
    shapes = stage.script.bind(stage.node, "Dataset.padded_batch").get("padded_shapes")
    if shapes is None:
        return False
    inner = list(ast.walk(shapes))
    return not any(
        (isinstance(n, ast.Constant) and n.value in (None, -1)) or isinstance(n, ast.Name | ast.Attribute | ast.UnaryOp)
        for n in inner
        if not isinstance(n, ast.expr_context)
    )
