"""What the input functions of Estimators give: a part for every rank, as long as the others'."""

from __future__ import annotations

import ast
import re

from rewriter.data.pipelines import READERS, stages
from rewriter.distribution.estimators import purposes, taken_by, told_apart
from rewriter.distribution.sources import (
    _BEFORE,
    _RAGGED,
    Place,
    Problem,
    Split,
    _candidates,
    _length,
    _steady,
)
from rewriter.edits import Chain, Insert, Replace, SetKeyword
from rewriter.script import Script
from rewriter.training import elements_of
from rewriter.values import Value

from . import data
from .conversion import Conversion

_ARRAYS = {
    "numpy_input_fn": ("x", "y", "batch_size", "num_epochs", "shuffle", "queue_capacity", "num_threads"),
    "pandas_input_fn": ("x", "y", "batch_size", "num_epochs", "shuffle", "queue_capacity", "num_threads"),
}


def split(conversion: Conversion, script: Script, given: ast.expr) -> None:
    """Split what an input function gives."""
    for value in script.values(given):
        owner, node = value.script, value.node
        last = value.name.rpartition(".")[2]
        if owner is None or node is None:
            conversion.refuse(script, given, f"what `{script.text(given)}` gives is not seen")
        elif last in _ARRAYS and value.name.startswith("tensorflow.estimator.inputs.") and isinstance(node, ast.Call):
            _arrays(conversion, owner, node, _ARRAYS[last])
        elif isinstance(node, ast.FunctionDef | ast.Lambda) and value.kind in ("function", "method"):
            results = [node.body] if isinstance(node, ast.Lambda) else owner.returns(node)
            if not results:
                conversion.refuse(owner, node, "the input function returns nothing that is seen")
            for result in results:
                _result(conversion, owner, result)
        else:
            conversion.refuse(script, given, f"what `{script.text(given)}` gives is not seen")


def _arrays(conversion: Conversion, script: Script, call: ast.Call, names: tuple[str, ...]) -> None:
    arguments = script.bind(call, names)
    if arguments.open:
        conversion.refuse(script, call, "not all arguments of the input function are seen", "give them by name")
        return
    arrays = {n: e for n in ("x", "y") if (e := arguments.get(n)) is not None and not script.is_none(e)}
    roles = purposes(script, call)
    if "train" in roles and len(roles) > 1 and (side := _side(script, call, told_apart(script, call))):
        if side == "other":
            return
        roles = {"train"}
    here = [(script, expr, name) for name, expr in arrays.items()]
    given = here if roles == {"train"} else _by_callers(script, arrays)
    if not given:
        others = ", ".join(sorted(f"`{r}`" for r in roles - {"train"}))
        reason = f"the training data is read by something else too: {others}" if others else "its use is not seen"
        conversion.refuse(script, call, reason, "make an input function for training alone")
        return
    for owner, expr, name in given:
        data._slice(conversion, owner, expr, name)
        data.same_data(conversion, owner, [expr])


def _by_callers(script: Script, arrays: dict[str, ast.expr]) -> list[tuple[Script, ast.expr, str]]:
    """What the calls for training give a function whose arrays are its parameters; empty where that is not certain."""
    parts = [(n, p) for n, e in arrays.items() for p in (e.values if isinstance(e, ast.Dict) else [e])]
    function = script.function_of(parts[0][1]) if parts else None
    if not isinstance(function, ast.FunctionDef) or isinstance(script.parents[function], ast.ClassDef):
        return []
    names = tuple(a.arg for a in [*function.args.posonlyargs, *function.args.args])
    labels: dict[str, str] = {}
    for label, part in parts:
        if not isinstance(part, ast.Name) or any(b.kind != "parameter" for b in script.names.reaching(part)):
            return []
        labels[part.id] = label
        loads = [load for b in script.names.reaching(part) for load in script.names.loads(b)]
        if any(load not in [p for _, p in parts] for load in loads):
            return []  # the function asks it for something else, too
    found: list[tuple[Script, ast.expr, str]] = []
    for owner, call, place in taken_by(script, function):
        roles = purposes(owner, call)
        if call.func is not place or not roles or ("train" in roles and len(roles) > 1):
            return []
        bound = owner.bind(call, names)
        for name in labels if roles == {"train"} else ():
            argument = bound.get(name)
            if argument is None:
                return []
            found.append((owner, argument, labels[name]))
    return found


def _result(conversion: Conversion, script: Script, result: ast.expr, depth: int = 0) -> None:
    """What an input function returns: a dataset, or what its iterator gives."""
    values = [v for v in script.values(result) if not (v.kind == "constant" and v.literal is None)]
    if values and all(v.kind in ("dataset", "tfds") for v in values):
        _dataset(conversion, script, result)
        return
    call = _unpacked(script, result)
    if isinstance(call, ast.Call) and depth < 6:
        for value in script.values(call.func):
            if value.kind in ("function", "method") and isinstance(value.node, ast.FunctionDef | ast.Lambda):
                owner = value.script
                assert owner is not None
                results = [value.node.body] if isinstance(value.node, ast.Lambda) else owner.returns(value.node)
                for inner in results:
                    _result(conversion, owner, inner, depth + 1)
                return
    function = script.function_of(result)
    iterators = [
        c
        for c in script.calls
        if isinstance(c.func, ast.Attribute)
        and c.func.attr in ("make_one_shot_iterator", "make_initializable_iterator")
        and script.function_of(c) is function
    ]
    if len(iterators) != 1:
        conversion.refuse(
            script, result, f"what data `{script.text(result)}` is is not seen", "return a `tf.data.Dataset`"
        )
        return
    call = iterators[0]
    assert isinstance(call.func, ast.Attribute)
    named = script.called(call).startswith("tensorflow.") and call.args
    _dataset(conversion, script, call.args[0] if named else call.func.value)


def _unpacked(script: Script, result: ast.expr) -> ast.expr:
    """The call whose results `features, labels` were assigned from."""
    first = result.elts[0] if isinstance(result, ast.Tuple) and result.elts else result
    if isinstance(first, ast.Name):
        bindings = script.names.reaching(first)
        if len(bindings) == 1 and isinstance(bindings[0].value, ast.Call):
            return bindings[0].value
    return first


def _dataset(conversion: Conversion, script: Script, source: ast.expr) -> None:
    seeds = Split()
    found: dict[ast.AST, tuple[Place, list[Value]]] = {}
    for value in script.values(source):
        if value.kind == "constant" and value.literal is None:
            continue
        if value.kind not in ("dataset", "tfds"):
            conversion.refuse(script, source, f"what `{script.text(source)}` is is not known")
        elif not _is_for_others(value):
            place = _place(script, source, value, seeds)
            if isinstance(place, Problem):
                conversion.refuse_problem(place)
                return
            found.setdefault(place.node, (place, []))[1].append(value)
    if not found:
        conversion.refuse(script, source, f"what `{script.text(source)}` is in training is not seen")
    for place, values in found.values():
        _shard(conversion, place, values, seeds=bool(seeds.seeds))
    for _, call in seeds.seeds:
        conversion.add(SetKeyword(call, "seed", "0"))


def _is_for_others(dataset: Value) -> bool:
    """Whether training does not come here: the input function had another name's meaning by then."""
    first = stages(dataset)[0]
    if first.script is None or first.node is None:
        return False
    roles = purposes(first.script, first.node)
    return bool(roles) and "train" not in roles


def _place(script: Script, source: ast.expr, dataset: Value, seeds: Split) -> Place | Problem:
    """The first stage of a dataset that only training reads, or the first at all, where the ranks agree so far."""
    chain = stages(dataset)
    first = max((i for i, s in enumerate(chain) if s.name in _BEFORE | {"flat_map", "interleave"}), default=0)
    shared = Problem(
        script,
        source,
        "the training data is made where that of evaluation is, too",
        "give the input function a parameter `mode`, which an Estimator fills in, or one of its own for training",
    )
    for index in range(first, len(chain)):
        if (problem := _steady(chain[: index + 1], seeds)) is not None:
            return problem if index == first else shared
        following = chain[index + 1] if index + 1 < len(chain) else None
        for owner, node, made in _candidates(script, source, chain[index], following):
            roles = purposes(owner, made[1] if made else node)
            if roles == {"train"} or ("train" in roles and told_apart(owner, node)):
                sized = elements_of(chain[index]).sized is True
                return Place(owner, node, chain[index], sized, _length(owner, node, chain[index]))
    return shared


_TRANSFORMATIONS = frozenset("map_and_batch shuffle_and_repeat prefetch_to_device copy_to_device".split())


def _shard(conversion: Conversion, place: Place, datasets: list[Value], *, seeds: bool) -> None:
    """Leave the part of one rank, as long as the others'.

    datasets: what is made of it. seeds: some of what makes it is given a seed.
    """
    script, node = place.script, place.node
    test = "" if purposes(script, node) == {"train"} else told_apart(script, node)
    if side := _side(script, node, test):
        if side == "other":
            return
        test = ""
    part = _part(conversion, place, [stages(d) for d in datasets], test)
    if part is None:
        return
    made = place.stage.node
    data.same_data(conversion, script, [made] if made is not None and script is place.stage.script else [])
    statement, ds = script.statement(node), conversion.free_name(script, "part", "ds")
    if not test:
        conversion.add(Chain(node, part if DS not in part else f"apply(lambda {ds}: {_of(ds, part)})"))
    elif (name := _name_of(script, statement, node)) and statement.value is node:  # type: ignore[attr-defined]
        inside = _next_if(script, statement, test)
        if inside is not None:
            conversion.add(Insert(inside, f"{name} = {_of(name, part)}", after=False))
        else:
            conversion.add(Insert(statement, f"if {test}:\n    {name} = {_of(name, part)}"))
    elif name and not seeds:
        text = f"{name} = {script.source.snippet(node)}\nif {test}:\n    {name} = {_of(name, part)}"
        conversion.add(Insert(statement, text, after=False), Replace(node, name))
    else:
        conversion.add(Chain(node, f"apply(lambda {ds}: {_of(ds, part)} if {test} else {ds})"))


#: Stands for the dataset in what is called on it.
DS = "<dataset>"


def _of(name: str, part: str) -> str:
    return f"{name}.{part.replace(DS, name)}"


def _part(conversion: Conversion, place: Place, chains: list[list[Value]], test: str) -> str | None:
    """What is called on a dataset for the part of one rank; None where it may be shorter than another."""
    script, node = place.script, place.node
    behind = [s for c in chains for s in c[next((i + 1 for i, o in enumerate(c) if o.node is place.stage.node), 0) :]]
    ends = [not any(_repeats(s) for s in chain) for chain in chains]
    endless = not any(ends)
    if test and not all(ends):  # `if is_training: ds = ds.repeat()`: those that end are not those of training
        endless |= all(_under(s, test) for chain in chains for s in chain if _repeats(s))
    uneven = [s for s in behind if s.name in _RAGGED or (s.name == "apply" and _last(s) not in _TRANSFORMATIONS)]
    hvd = conversion.hvd(script, node)
    part = f"shard({hvd}.size(), {hvd}.rank())"
    if endless:
        if any(_applied(s).endswith("parallel_interleave") for s in behind):
            conversion.note("files are split over the ranks: there have to be at least as many as ranks")
        return part
    if _are_records(place.stage) and not uneven:
        record = conversion.free_name(script, "records")
        return f"batch({hvd}.size(), drop_remainder=True).map(lambda {record}: {record}[{hvd}.rank()])"
    if place.length and not uneven:
        return f"{part}.take({place.length} // {hvd}.size())"
    if place.sized and not uneven:
        return f"{part}.take({{tensorflow.data.experimental.cardinality}}({DS}) // {hvd}.size())"
    why = f"`{uneven[0].name}`" if uneven else "its size is not known"
    conversion.refuse(
        script,
        node,
        f"the ranks would make different numbers of steps and wait for each other: {why}",
        "let the dataset `repeat()`, and count the steps",
    )
    return None


def _under(stage: Value, test: str) -> bool:
    """Whether a stage is added in the body of an `if` with this test."""
    assert stage.script is not None and stage.node is not None
    return _side(stage.script, stage.node, test) == "training"


def _side(script: Script, node: ast.AST, test: str) -> str:
    """Where code stands in an `if` with this test: "training", "other" for its `else`, or "" outside of one."""
    function = script.function_of(node)
    for block in script.enclosing(node, ast.If) if test else ():
        assert isinstance(block, ast.If)
        if script.function_of(block) is function and _plain(ast.unparse(block.test)) == _plain(test):
            return "training" if any(node in ast.walk(s) for s in block.body) else "other"
    return ""


def _next_if(script: Script, statement: ast.stmt, test: str) -> ast.stmt | None:
    """The first statement below `if <test>:`, where that follows."""
    block = getattr(script.parents[statement], "body", [])
    index = block.index(statement) + 1 if statement in block else len(block)
    following = block[index] if index < len(block) else None
    if isinstance(following, ast.If) and _plain(ast.unparse(following.test)) == _plain(test):
        return following.body[0]
    return None


def _plain(test: str) -> str:
    """A condition without what stands before the names in it: `mode == TRAIN`."""
    return re.sub(r"\{?[\w.]*\.(\w+)\}?", r"\1", test)


def _are_records(stage: Value) -> bool:
    """Whether the elements are records of files: single strings, which are cheap to read and to leave out."""
    if stage.name.removeprefix("tensorflow.data.") in READERS.values():
        return True
    if stage.name in ("skip", "take") and stage.base is not None:
        return _are_records(stage.base)
    script, call = stage.script, stage.node
    if stage.name not in ("interleave", "flat_map") or script is None or not isinstance(call, ast.Call):
        return False
    results: list[Value] = []
    for function in script.values(script.bind(call, f"Dataset.{stage.name}").get("map_func")):
        if isinstance(function.node, ast.Lambda | ast.FunctionDef) and (owner := function.script) is not None:
            body = [function.node.body] if isinstance(function.node, ast.Lambda) else owner.returns(function.node)
            results += [v for expr in body for v in owner.values(expr)]
        else:
            results.append(function)
    return bool(results) and all(v.name.removeprefix("tensorflow.data.") in READERS.values() for v in results)


def _name_of(script: Script, statement: ast.stmt, node: ast.expr) -> str:
    """The name in `ds = <node>.map(...).batch(...)`, where `<node>` stands on one line; "" elsewhere."""
    if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
        return ""
    inner, target = statement.value, statement.targets[0]
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner is not node:
        inner = inner.func.value
    whole = statement.value is node or node.lineno == node.end_lineno
    return target.id if inner is node and whole and isinstance(target, ast.Name) else ""


def _applied(stage: Value) -> str:
    """What is called in `ds.apply(tf.data.experimental.map_and_batch(...))`."""
    if stage.name != "apply" or stage.script is None or not isinstance(stage.node, ast.Call) or not stage.node.args:
        return ""
    inner = stage.node.args[0]
    return stage.script.called(inner) if isinstance(inner, ast.Call) else ""


def _last(stage: Value) -> str:
    return _applied(stage).rpartition(".")[2]


def _repeats(stage: Value) -> bool:
    """`repeat()`, `apply(tf.data.experimental.shuffle_and_repeat(1000))`: surely without end."""
    script, call = stage.script, stage.node
    if script is None or not isinstance(call, ast.Call):
        return False
    if stage.name == "repeat":
        count = script.bind(call, "Dataset.repeat").get("count")
    elif _last(stage) == "shuffle_and_repeat" and isinstance(call.args[0], ast.Call):
        count = script.bind(call.args[0], ("buffer_size", "count", "seed")).get("count")
    else:
        return False
    return count is None or script.is_none(count) or script.integer(count) == -1
