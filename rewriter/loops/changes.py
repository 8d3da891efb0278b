"""Where a container, an array or an attribute is changed, also by another name or by way of a function.

changes(script, node)            # every place that changes what `node` names in place
stores(project, "scale")         # every place that sets an attribute of this name
is_new(script, expr)             # does an expression make something new, that nothing else holds?
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

from ..scopes import FUNCTIONS, Binding
from ..script import Project, Script

#: Methods that change their object, of lists, dictionaries, sets, arrays, queues, files and writers.
CHANGES = frozenset(
    "append extend insert add update pop popitem remove clear setdefault write put put_nowait writerow sort reverse "
    "appendleft extendleft rotate move_to_end writelines send push discard fill shuffle subtract itemset partition "
    "difference_update intersection_update symmetric_difference_update resize popleft "
    "__setitem__ __delitem__ __iadd__ __imul__ __setattr__".split()
)
#: Functions that change their first argument.
_CHANGES_FIRST = frozenset(
    "numpy.copyto numpy.put numpy.place numpy.putmask numpy.fill_diagonal numpy.put_along_axis random.shuffle "
    "numpy.random.shuffle heapq.heappush heapq.heappop heapq.heapify heapq.heapreplace heapq.heappushpop "
    "bisect.insort bisect.insort_left bisect.insort_right operator.setitem operator.delitem".split()
)
#: What gives an element of a container or the object itself, not something new.
_GIVES_HELD = frozenset("get setdefault pop popleft values items __getitem__ view ravel reshape".split())
_MOST = 60

#: A name as it is written: the type of its mentions, the name, and the function whose local it is.
_Name: TypeAlias = tuple[type[ast.expr], str, ast.AST | None]
Place: TypeAlias = tuple[Script, ast.AST]


def changes(script: Script, node: ast.expr) -> Iterator[Place]:
    """Every place that changes what a name or an attribute holds in place: `x.append(1)`, `x[0] = 1`, `f(x)`."""
    todo = list(dict.fromkeys(_first_names(script, node)))
    seen = set(todo)
    while todo and len(seen) < _MOST:
        kind, name, within = todo.pop()
        for other in list(script.project.scripts.values()):
            for mention in other.mentions(name):
                if type(mention) is not kind:
                    continue
                if within is not None and within not in other.enclosing(mention, *FUNCTIONS):
                    continue
                if _is_changed(other, mention):
                    yield other, mention
                for second in _second_names(other, mention):
                    if second not in seen:
                        seen.add(second)
                        todo.append(second)


def _first_names(script: Script, node: ast.expr, depth: int = 0) -> Iterator[_Name]:
    """A name, and those that it was given the object from: `second = first`, the argument of a parameter."""
    if isinstance(node, ast.Attribute):
        yield ast.Attribute, node.attr, None
        for other in list(script.project.scripts.values()) if depth < 5 else ():
            for store in other.all(ast.Attribute):
                made = other.parents.get(store)
                if store.attr == node.attr and isinstance(made, ast.Assign) and isinstance(made.value, ast.Name):
                    yield from _first_names(other, made.value, depth + 1)
    if not isinstance(node, ast.Name):
        return
    yield from _named(script, node)
    for binding in script.names.reaching(node) if depth < 5 else ():
        if binding.kind == "assign" and (source := binding.part or binding.value) is not None:
            yield from _first_names(script, source, depth + 1)
        elif binding.kind == "parameter":
            for owner, argument in _arguments(script, binding):
                yield from _first_names(owner, argument, depth + 1)


def _arguments(script: Script, binding: Binding) -> Iterator[tuple[Script, ast.expr]]:
    from .steps import call_sites

    function = script.parents[script.parents[binding.node]]
    if not isinstance(function, ast.FunctionDef):
        return
    names = tuple(p.arg for p in [*function.args.posonlyargs, *function.args.args])
    if function.name == "__init__":
        sites = [(s, c, offset) for s, c, offset in script.project.calls_of(function, script)]
    else:
        sites = [(s.script, s.call, s.offset) for s in call_sites(script, function)[0]]
    for owner, call, offset in sites:
        if (given := owner.bind(call, names[offset:]).get(binding.name)) is not None:
            yield owner, given


def _is_changed(script: Script, mention: ast.expr) -> bool:
    parent = script.parents.get(mention)
    match parent:
        case ast.Attribute(attr=attr) if attr in CHANGES and isinstance(script.parents.get(parent), ast.Call):
            return not any(v.kind in ("model", "layer", "optimizer", "metric") for v in script.values(mention))
        case ast.Subscript(value=value) if value is mention:
            return not isinstance(parent.ctx, ast.Load)
        case ast.Call(func=ast.Attribute(attr="shuffle")):
            return any(a is mention for a in parent.args)
        case ast.Call():
            return parent.args[:1] == [mention] and script.called(parent) in _CHANGES_FIRST
        case ast.keyword(arg="out"):
            return True
        case ast.AugAssign():
            return parent.target is mention
    return False


def _second_names(script: Script, mention: ast.expr) -> Iterator[_Name]:
    """What else the same object is called from here on."""
    parent, inner = script.parents.get(mention), mention
    if isinstance(parent, ast.Tuple | ast.List):
        at, inner = parent.elts.index(mention), parent
        parent = script.parents.get(parent)
        for target in parent.targets if isinstance(parent, ast.Assign) and parent.value is inner else ():
            if isinstance(target, ast.Tuple | ast.List) and at < len(target.elts):
                yield from _named(script, target.elts[at])
        return
    match parent:
        case ast.Assign(value=value) if value is inner:
            for target in parent.targets:
                yield from _named(script, target)
        case ast.AnnAssign(value=value) | ast.NamedExpr(value=value) if value is inner:
            yield from _named(script, parent.target)
        case ast.For(iter=iterated) if iterated is inner:
            yield from _named(script, parent.target)
        case ast.Call() if inner is not parent.func:
            yield from _parameters(script, parent, mention)
        case ast.keyword():
            call = script.parents.get(parent)
            if isinstance(call, ast.Call):
                yield from _parameters(script, call, mention)
        case ast.arguments():
            positional = [*parent.posonlyargs, *parent.args]
            last = positional[len(positional) - len(parent.defaults) :]
            given = zip([*last, *parent.kwonlyargs], [*parent.defaults, *parent.kw_defaults], strict=True)
            for parameter, default in given:
                if default is mention:
                    yield ast.Name, parameter.arg, script.parents.get(parent)


def _named(script: Script, target: ast.expr) -> Iterator[_Name]:
    if isinstance(target, ast.Attribute):
        yield ast.Attribute, target.attr, None
    elif isinstance(target, ast.Name):
        found = script.names.scope_of(target).lookup(target.id)
        owner = found[0].node if found else None
        yield ast.Name, target.id, owner if isinstance(owner, FUNCTIONS) else None


def _parameters(script: Script, call: ast.Call, mention: ast.expr) -> Iterator[_Name]:
    """The parameter of a function of the project that gets it."""
    for v in script.values(call.func):
        function, offset, owner = v.node, int(v.kind == "method"), v.script
        if v.kind == "class" and owner is not None and isinstance(function, ast.ClassDef):
            found = owner.method(function, "__init__")
            function, offset = (found[1], 1) if found else (None, 0)
        if not isinstance(function, FUNCTIONS):
            continue
        names = tuple(p.arg for p in [*function.args.posonlyargs, *function.args.args])
        bound = script.bind(call, names[offset:])
        for name in [*names[offset:], *(p.arg for p in function.args.kwonlyargs)]:
            if bound.get(name) is mention:
                yield ast.Name, name, function


# -- attributes and globals ---------------------------------------------------------------------------------


def stores(project: Project, attr: str) -> Iterator[tuple[Script, ast.AST, ast.expr | None]]:
    """Every place that may set an attribute of this name, and of what: `x.a = 1`, `setattr(x, name, 1)`.

    What sets an attribute that is not written out is said to set every one.
    """
    for script in list(project.scripts.values()):
        for node in script.all(ast.Attribute):
            is_set = node.attr == attr and not isinstance(node.ctx, ast.Load)
            if is_set or (node.attr == "__dict__" and _is_written(script, node)):
                yield script, node, node.value
        for call in script.calls:
            is_vars = script.called(call) == "builtins.vars" and call.args and _is_written(script, call)
            if is_vars or setattr_name(script, call) in ("", attr):
                yield script, call, call.args[0]


def setattr_name(script: Script, call: ast.Call) -> str | None:
    """The attribute that `setattr(x, "a", 1)` sets; "" where it is not known, None for any other call."""
    if script.called(call) not in ("builtins.setattr", "builtins.delattr", "builtins.object.__setattr__"):
        return None
    name = script.constant(call.args[1]) if len(call.args) > 1 else None
    return name if isinstance(name, str) else ""


def global_stores(script: Script, name: str) -> Iterator[Place]:
    """What sets a global of the script otherwise than by an assignment: `globals()["n"] = 1`, `module.n = 1`."""
    for call in script.calls:
        if script.called(call) in ("builtins.globals", "builtins.vars") and not call.args and _is_written(script, call):
            parent = script.parents[call]
            key = script.constant(parent.slice) if isinstance(parent, ast.Subscript) else None
            if key is None or key == name:
                yield script, call
        elif script.called(call) == "builtins.exec":
            yield script, call
    for other in list(script.project.scripts.values()):
        for node in other.all(ast.Attribute):
            is_set = node.attr == name and not isinstance(node.ctx, ast.Load)
            if is_set and any(v.kind == "module" for v in other.values(node.value)):
                yield other, node
        for call in other.calls:
            if setattr_name(other, call) in ("", name) and any(v.kind == "module" for v in other.values(call.args[0])):
                yield other, call


def _is_written(script: Script, node: ast.expr) -> bool:
    """`x[...] = 1` and `x.update(...)`."""
    parent = script.parents.get(node)
    return (isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)) or (
        isinstance(parent, ast.Attribute) and parent.attr in CHANGES
    )


# -- what is new --------------------------------------------------------------------------------------------


def is_new(script: Script, node: ast.expr | None, depth: int = 0) -> bool:
    """Does an expression make something new? A name, an element or an attribute is what something else holds, too."""
    match node:
        case None | ast.Attribute() | ast.Subscript():
            return False
        case ast.Name():
            bindings = script.names.reaching(node)
            return depth < 5 and all(
                b.kind in ("assign", "augment")
                and isinstance(b.scope.node, FUNCTIONS)
                and is_new(script, b.part or b.value, depth + 1)
                for b in bindings
            )
        case ast.IfExp():
            return is_new(script, node.body, depth) and is_new(script, node.orelse, depth)
        case ast.BoolOp():
            return all(is_new(script, v, depth) for v in node.values)
        case ast.Call():
            if isinstance(node.func, ast.Attribute) and node.func.attr in _GIVES_HELD:
                return script.called(node).startswith(("numpy.", "tensorflow."))
            for v in script.values(node.func):
                known = v.kind in ("function", "method") and isinstance(v.node, ast.FunctionDef)
                returned = v.script.returns(v.node) if known and v.script is not None else []  # type: ignore[arg-type]
                if any(depth > 4 or not is_new(v.script, r, depth + 1) for r in returned):  # type: ignore[arg-type]
                    return False
    return True


# -- variables ----------------------------------------------------------------------------------------------

_VARIABLES = frozenset(
    "trainable_variables trainable_weights non_trainable_variables non_trainable_weights variables weights".split()
)
_SAME_ELEMENTS = frozenset(f"builtins.{n}" for n in "list tuple zip enumerate reversed sorted filter".split())


def holds_variables(script: Script, node: ast.expr | None, depth: int = 0) -> bool:
    """May an expression be a variable, or hold some: `model.trainable_variables`, `v` in a loop over them?"""
    if node is None or depth > 6:
        return False
    match node:
        case ast.Attribute(attr=attr) if attr in _VARIABLES:
            return True
        case ast.Call():
            if any(v.kind == "tensor" and v.name.endswith("Variable") for v in script.values(node)):
                return True
            return script.called(node) in _SAME_ELEMENTS and any(
                holds_variables(script, a, depth + 1) for a in node.args
            )
        case ast.Name() if bindings := script.names.reaching(node):
            if any(v.kind == "tensor" and v.name.endswith("Variable") for v in script.values(node)):
                return True
            return any(
                b.kind in ("assign", "loop") and holds_variables(script, b.part or b.value, depth + 1) for b in bindings
            )
        case ast.ListComp() | ast.GeneratorExp():
            return holds_variables(script, node.elt, depth + 1)
        case ast.BinOp(op=ast.Add()):  # of lists: the sum of a variable is a tensor
            sides = (node.left, node.right)
            return any(holds_variables(script, s, depth + 1) for s in sides) and not any(
                v.kind == "tensor" for s in sides for v in script.values(s)
            )
        case ast.BinOp():
            return False
        case ast.Subscript() | ast.IfExp() | ast.Tuple() | ast.List() | ast.Starred():
            parts = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
            parts = [p for p in parts if not (isinstance(node, ast.Subscript) and p is node.slice)]
            return any(holds_variables(script, p, depth + 1) for p in parts)
    return any(v.kind == "tensor" and v.name.endswith("Variable") for v in script.values(node))
