"""Loops that train: their data split over the ranks, and the same number of steps on each."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter.data.pipelines import reached
from rewriter.distribution.draws import below
from rewriter.distribution.rates import set_elsewhere
from rewriter.distribution.sources import Split, split_at
from rewriter.edits import Insert, SetKeyword, Wrap
from rewriter.loops.steps import Loop, Step, call_sites, is_tape, is_update
from rewriter.scopes import Binding
from rewriter.script import Script

from . import data
from .conversion import Conversion, operand
from .names import Place, given

_BARS = ("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.std.tqdm", "tqdm.trange", "tqdm.auto.trange")


# -- the same steps on every rank ------------------------------------------------------------------------------


def check(conversion: Conversion, place: Place, step: Step) -> None:
    """Refuse where a rank may make other steps than the others, because of numbers that are its own."""
    for script, node in _deciding(place, step):
        test = node.test
        if not _steady(script, test):
            conversion.refuse(
                script,
                node,
                f"`{script.text(test)}` may differ from rank to rank, and decides about steps that all have to make",
                "decide by numbers that are averaged over the ranks: `hvd.allreduce(...)`",
            )
    for script, call in _calls_in(place):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("load_weights", "restore"):
            reason = f"`{script.text(call.func)}` reads weights in the loop, which may not be there on every rank"
            conversion.refuse(script, call, reason, "read them on rank 0, and broadcast them")
    for script, attribute in set_elsewhere(conversion.program):
        statement = script.statement(attribute)
        tests = [n.test for n in script.enclosing(attribute, ast.If, ast.While)]  # type: ignore[attr-defined]
        if not all(_steady(script, part) for part in [*_given_in(statement), *tests]):
            reason = f"`{script.text(attribute)}` is set to what may differ from rank to rank"
            conversion.refuse(script, attribute, reason, "average what decides over the ranks: `hvd.allreduce(...)`")


def _given_in(statement: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(statement, ast.Assign | ast.AugAssign):
        yield statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from statement.value.args


def _deciding(place: Place, step: Step) -> Iterator[tuple[Script, ast.If | ast.While]]:
    """Conditions of which a step, an update, or the end of a loop depends."""
    roots, calls = _around(place)
    if step.function is not None and not step.inline:
        roots = [*roots, (step.script, step.function)]
    for script, root in roots:
        for node in ast.walk(root):
            if isinstance(node, ast.If | ast.While) and any(_matters(script, n, calls) for n in below(node)):
                yield script, node
        if root is step.function:
            continue
        for outer in script.enclosing(root, ast.If, ast.While):
            if script.function_of(outer) is script.function_of(root) and not _is_main(outer.test):  # type: ignore[attr-defined]
                yield script, outer  # type: ignore[misc]


def _around(place: Place) -> tuple[list[tuple[Script, ast.AST]], set[ast.AST]]:
    """The outermost loops around a step, in its function and in those that call it, and these calls."""
    roots: list[tuple[Script, ast.AST]] = [(place.script, place.loops[-1])]
    calls: set[ast.AST] = {place.statement}
    seen: set[ast.AST] = set()
    for script, root in roots:
        function = script.function_of(root)
        if not isinstance(function, ast.FunctionDef) or function in seen:
            continue
        seen.add(function)
        for site in call_sites(script, function)[0]:
            calls.add(site.call)
            roots.append((site.script, site.loops[-1] if site.loops else site.call))
    return roots, calls


def _calls_in(place: Place) -> Iterator[tuple[Script, ast.Call]]:
    for script, root in _around(place)[0]:
        if isinstance(root, ast.For | ast.While):
            yield from reached(script, [root])


def _matters(script: Script, node: ast.AST, calls: set[ast.AST]) -> bool:
    if isinstance(node, ast.Break | ast.Continue | ast.Return | ast.Raise):
        return True
    if node in calls:
        return True
    if not isinstance(node, ast.Call):
        return False
    if is_update(script, node) or is_tape(script, node):
        return True
    return isinstance(node.func, ast.Attribute) and node.func.attr in (
        "assign", "assign_add", "assign_sub", "set_weights", "gradient", "load_weights", "restore",
    )  # fmt: skip


def _steady(script: Script, expr: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether an expression is surely the same on every rank: settings and counters."""
    if expr in seen:
        return True
    seen = seen | {expr}
    todo = [expr]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call):
            if _is_parsed(node):
                continue
            pure = _is_setting(node) or script.called(node) in _PURE or _asks_iterations(script, node)
            if not (pure or _asks_rate(node) or _gives_steady(script, node, seen)):
                return False
        elif isinstance(node, ast.Attribute):
            if _root_is_setting(script, node):
                continue
            plain = isinstance(script.parents.get(node), ast.Call) or _is_rate(node)
            if not (plain or _asks_iterations(script, node)):
                return False
            if _is_rate(node):
                continue  # what sets it is looked at, too
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not _steady_name(script, node, seen):
            return False
        todo += ast.iter_child_nodes(node)
    return True


_NUMBERS = "cos sin exp log sqrt pow power minimum maximum floor ceil".split()
_PURE = frozenset(f"builtins.{n}" for n in "len int float min max abs bool isinstance range round str".split()) | {
    "tensorflow.equal", "tensorflow.cast", *(f"{module}.{n}" for module in ("math", "numpy") for n in _NUMBERS),
}  # fmt: skip


def _is_parsed(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "parse_args"


def _is_setting(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "get"


def _is_rate(node: ast.AST) -> bool:
    """`optimizer.learning_rate`, which is the same where everything that it is set to is."""
    return isinstance(node, ast.Attribute) and node.attr in ("learning_rate", "lr")


def _asks_rate(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute) and call.func.attr in ("numpy", "read_value") and _is_rate(call.func.value)
    )


def _gives_steady(script: Script, call: ast.Call, seen: frozenset[ast.AST]) -> bool:
    """A function of the project that computes what it returns from what is the same on every rank: `rate_at(epoch)`."""
    functions = script.values(call.func)
    if not isinstance(call.func, ast.Name) or len(functions) != 1:
        return False
    function, owner = functions[0].node, functions[0].script
    if owner is None or not isinstance(function, ast.FunctionDef):
        return False
    if function in seen:
        return True
    seen = seen | {function}
    results = owner.returns(function)
    tests = [n.test for n in ast.walk(function) if isinstance(n, ast.If | ast.While)]
    return bool(results) and all(_steady(owner, part, seen) for part in [*results, *tests])


def _root_is_setting(script: Script, node: ast.Attribute) -> bool:
    """`args.epochs`, `config.rate`, `tf.float32`: of something that is no instance which computes."""
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    bindings = script.names.reaching(root)
    return bool(bindings) and all(
        b.kind == "import"
        or (
            isinstance(b.value, ast.Call)
            and isinstance(b.value.func, ast.Attribute)
            and b.value.func.attr == "parse_args"
        )
        for b in bindings
    )


def _asks_iterations(script: Script, node: ast.AST) -> bool:
    return "iterations" in ast.unparse(node) and all(
        not isinstance(n, ast.Call) or n is node or isinstance(n.func, ast.Attribute) for n in ast.walk(node)
    )


def _steady_name(script: Script, name: ast.Name, seen: frozenset[ast.AST]) -> bool:
    bindings = script.names.reaching(name)
    if not bindings:
        return True  # a builtin
    for binding in bindings:
        if binding.kind in ("import", "def", "class"):
            continue
        if not _steadily_bound(script, binding.node, seen) or not _steadily_filled(script, binding, seen):
            return False
        if binding.kind == "loop":
            if not _counts(script, binding.node, binding.path):
                return False
        elif binding.kind in ("assign", "augment"):
            value = binding.part if binding.path else binding.value
            if isinstance(binding.node, ast.Name):
                statement = script.statement(binding.node)
                if isinstance(statement, ast.AugAssign):
                    value = statement.value
            if value is None or not _steady(script, value, seen):
                return False
        elif binding.kind == "parameter" and isinstance(binding.scope.node, ast.FunctionDef):
            if not _given_steady(script, name.id, binding.scope.node, seen):
                return False
        else:
            return False
    return True


def _steadily_bound(script: Script, node: ast.AST, seen: frozenset[ast.AST]) -> bool:
    """Whether the conditions under which a name gets a value are the same on every rank: `if loss < best: wait = 0`."""
    if isinstance(node, ast.arg):
        return True
    function = script.function_of(node)
    tests = [n.test for n in script.enclosing(node, ast.If, ast.While) if script.function_of(n) is function]  # type: ignore[attr-defined]
    return all(test in seen or _is_main(test) or _steady(script, test, seen) for test in tests)


_FILLS = frozenset("append appendleft extend insert add update setdefault".split())


def _steadily_filled(script: Script, binding: Binding, seen: frozenset[ast.AST]) -> bool:
    """Whether what is put into a list or dict is the same on every rank: not `losses.append(loss)`."""
    value = binding.value
    made = script.called(value) if isinstance(value, ast.Call) and not value.args else ""
    empty = (
        (isinstance(value, ast.List) and not value.elts)
        or (isinstance(value, ast.Dict) and not value.keys)
        or made.endswith((".list", ".dict", ".deque"))
    )
    filled = False
    for load in script.names.loads(binding):
        node: ast.AST = load
        parent = script.parents.get(node)
        while isinstance(parent, ast.Subscript) and parent.value is node:
            if not isinstance(parent.ctx, ast.Load):
                filled = True
                if not all(_steady(script, part, seen) for part in _given_in(script.statement(parent))):
                    return False
            node, parent = parent, script.parents.get(parent)
        if isinstance(parent, ast.Attribute) and parent.attr in _FILLS:
            filled = True
            call = script.parents.get(parent)
            if not isinstance(call, ast.Call) or not all(_steady(script, a, seen) for a in call.args):
                return False
    return filled or not empty


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _given_steady(script: Script, name: str, function: ast.FunctionDef, seen: frozenset[ast.AST]) -> bool:
    if function in seen:
        return True
    found = given(script, name, function)
    return bool(found) and all(a is not None and _steady(s, a, seen | {function}) for s, a in found)


def _counts(script: Script, target: ast.AST, path: tuple[int, ...]) -> bool:
    """The number of a turn: of `range`, or the first that `enumerate` gives."""
    statement = script.statement(target)
    if not isinstance(statement, ast.For):
        return False
    call = _bare(script, statement.iter)
    if not isinstance(call, ast.Call):
        return False
    name = script.called(call)
    return name in ("builtins.range", "tensorflow.range", "tqdm.trange") or (
        name == "builtins.enumerate" and isinstance(statement.target, ast.Tuple) and statement.target.elts[0] is target
    )


def _bare(script: Script, expr: ast.expr) -> ast.expr:
    """Without the progress bar around it."""
    while (
        isinstance(expr, ast.Call)
        and script.called(expr) in _BARS
        and expr.args
        and "trange" not in script.called(expr)
    ):
        expr = expr.args[0]
    return expr


# -- data ------------------------------------------------------------------------------------------------------


def split(conversion: Conversion, places: list[Place]) -> None:
    """Split what the loops go through."""
    done: set[ast.AST] = set()
    for place in places:
        loop, script = data_loop(conversion, place)
        if loop is None:
            conversion.refuse(
                place.script,
                place.statement,
                "which loop goes through the data that this step trains on is not seen",
                "loop over a `tf.data.Dataset`",
            )
        elif loop not in done:
            done.add(loop)
            _one(conversion, script, loop, noise=_draws(place))


def _draws(place: Place) -> bool:
    """Whether random numbers of Python or NumPy are drawn while it trains."""
    return any(s.called(c).startswith(("numpy.random.", "random.")) for s, c in _calls_in(place))


def data_loop(conversion: Conversion, place: Place) -> tuple[Loop | None, Script]:
    """The innermost loop around a step that goes through data, also in a function that calls that of the step."""
    for loop in place.loops:
        if isinstance(loop, ast.For) and (_dataset_in(place.script, loop) is not None or _slices(place.script, loop)):
            return loop, place.script
    return None, place.script


def _dataset_in(script: Script, loop: ast.For) -> ast.expr | None:
    expr = _bare(script, loop.iter)
    if isinstance(expr, ast.Call) and script.called(expr) == "builtins.enumerate" and expr.args:
        expr = _bare(script, expr.args[0])
    return expr if any(v.kind in ("dataset", "tfds") for v in script.values(expr)) else None


def _one(conversion: Conversion, script: Script, loop: Loop, *, noise: bool) -> None:
    assert isinstance(loop, ast.For)
    source = _dataset_in(script, loop)
    if source is None:
        _arrays(conversion, script, loop, noise=noise)
        return
    steps = _taken(script, source)
    if steps is not None:
        assert isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute)
        endless = split_at(conversion.program, script, source.func.value)
        if isinstance(endless, Split) and endless.endless:
            for _, call in endless.seeds:
                conversion.add(SetKeyword(call, "seed", "0"))
            for place in endless.places:
                data.shard(conversion, place, endless=True, noise=noise)
            data.fewer_steps(conversion, script, steps)
            return
    found = split_at(conversion.program, script, source)
    if not isinstance(found, Split):
        conversion.refuse_problem(found)
        return
    if found.endless or not found.counted:
        why = "it repeats without end" if found.endless else "its size is not known"
        conversion.refuse(
            script,
            loop,
            f"the ranks would make different numbers of steps and wait for each other: {why}",
            "loop over a dataset whose size is known: `ds.take(n)`",
        )
        return
    for _, call in found.seeds:
        conversion.add(SetKeyword(call, "seed", "0"))
    for place in found.places:
        data.shard(conversion, place, endless=False, noise=noise)


def _taken(script: Script, source: ast.expr) -> ast.expr | None:
    """The number of steps of `dataset.take(steps)`."""
    if not (isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "take"):
        return None
    return script.bind(source, ("count",)).get("count")


# -- arrays in slices ------------------------------------------------------------------------------------------


def _slices(script: Script, loop: ast.For) -> dict[str, list[ast.Name]]:
    """The arrays of which a loop over `range` takes the slice of its turn: `x[i:i + size]`."""
    target = loop.target
    call = _bare(script, loop.iter)
    if not isinstance(target, ast.Name) or not (isinstance(call, ast.Call) and script.called(call) == "builtins.range"):
        return {}
    inside = {target.id}
    for statement in loop.body:  # start = i * size
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and any(
                isinstance(n, ast.Name) and n.id in inside for n in ast.walk(node.value)
            ):
                inside |= (
                    {t.id for t in node.targets if isinstance(t, ast.Name)} if not _subscripts(node.value) else set()
                )
    found: dict[str, list[ast.Name]] = {}
    for statement in loop.body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
                continue
            part = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
            if not isinstance(part, ast.Slice) or part.lower is None or part.step is not None:
                continue
            if any(isinstance(n, ast.Name) and n.id in inside for n in ast.walk(part.lower)):
                found.setdefault(node.value.id, []).append(node.value)
    return found


def _subscripts(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Subscript) for n in ast.walk(node))


def _arrays(conversion: Conversion, script: Script, loop: ast.For, *, noise: bool) -> None:
    """Each rank slices its own part of the arrays, which gets the array's name above the loops."""
    arrays = _slices(script, loop)
    outer = [n for n in script.enclosing(loop, ast.For, ast.While) if script.function_of(n) is script.function_of(loop)]
    first: ast.stmt = outer[-1] if outer else loop  # type: ignore[assignment]
    hvd = conversion.hvd(script, first)
    for name, uses in arrays.items():
        for use in uses:
            if (problem := _not_the_part(script, name, use, first)) is not None:
                conversion.refuse(
                    script, problem, f"`{name}` is used for something else than the steps of the loop too"
                )
                return
        data.same_data(conversion, script, uses[:1], noise=noise, eager=True)
        part = f"[{hvd}.rank():len({name}) // {hvd}.size() * {hvd}.size():{hvd}.size()]"
        conversion.add(Insert(first, f"{name} = {name}{part}", after=False))
    call = _bare(script, loop.iter)
    assert isinstance(call, ast.Call)
    if len(call.args) == 2 and script.integer(call.args[0]) != 0:
        conversion.refuse(script, loop, "the loop does not start with the first sample")
        return
    end = call.args[0] if len(call.args) == 1 else call.args[1]
    if _is_length(script, end, set(arrays)):
        return
    conversion.add(Wrap(end, f"{operand(end)} // {hvd}.size()"))


def _is_length(script: Script, end: ast.expr, arrays: set[str]) -> bool:
    """Whether the end of a range is computed in place from the length of an array, which is that of the part."""
    return any(isinstance(n, ast.Name) and n.id in arrays for n in ast.walk(end))


def _not_the_part(script: Script, name: str, use: ast.Name, first: ast.stmt) -> ast.AST | None:
    """A use of an array below the place where it becomes the part of a rank that is neither a slice nor a length."""
    scope = script.names.scope_of(first)
    bindings = script.names.reaching(use)
    if len(bindings) != 1 or bindings[0].scope is not scope:
        return use  # assigned to there, it would be another variable
    if bindings[0].kind == "loop" or first in script.enclosing(bindings[0].node, ast.For, ast.While):
        return bindings[0].node
    values = script.values(use)
    if any(v.kind not in ("array", "object", "unknown", "parameter", "splits", "tensor", "method") for v in values):
        return use
    for load in script.names.loads(bindings[0]):
        if script.names.scope_of(load) is not scope and scope.parent is None:
            return load  # a function may run before or after
        if load.lineno < first.lineno:
            continue
        parent = script.parents.get(load)
        if isinstance(parent, ast.Subscript) and parent.value is load:
            continue
        if isinstance(parent, ast.Call) and script.called(parent) == "builtins.len":
            continue
        if isinstance(parent, ast.Attribute) and parent.attr == "shape":
            continue
        return load
    return None


# -- progress --------------------------------------------------------------------------------------------------


def progress_bars(conversion: Conversion) -> None:
    """`tqdm` shows the progress of rank 0."""
    for script, call in conversion.program.calls():
        if script.called(call) in _BARS and script.argument(call, "disable") is None:
            conversion.add(SetKeyword(call, "disable", f"{conversion.hvd(script, call)}.rank() != 0"))
