"""Training data split over the ranks: every sample on one of them, and as many steps on each."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from rewriter.distribution.sources import Place, Split, draws_in, split_of, unlike_on_ranks
from rewriter.edits import Chain, Insert, Replace, SetKeyword, Wrap
from rewriter.script import Script, Site
from rewriter.spelling import outermost
from rewriter.training import Run
from rewriter.values import Value, Values

from .conversion import Conversion, operand


def split(conversion: Conversion, run: Run) -> None:
    """Split what one `fit` trains on."""
    site = run.site
    if site.arguments.open:
        conversion.refuse(site.script, site.call, f"arguments of `{site.method}` are given through `*` or `**`")
    elif run.source is None:
        conversion.refuse(site.script, site.call, f"what `{site.method}` trains on is not seen")
    elif run.data == "arrays":
        _arrays(conversion, run)
    elif run.data == "dataset":
        _dataset(conversion, run)
    elif run.data == "loader":
        _loader(conversion, run)
    elif run.data == "generator":
        _generator(conversion, run)
    else:
        text = site.script.text(run.source)
        conversion.refuse(site.script, site.call, f"what `{text}`, which it trains on, is is not known")


def same_order(conversion: Conversion, apart: Sequence[ast.AST] = ()) -> None:
    """Draws that order the data get the same seed on every rank; `apart`: loops over what is split already."""
    for script, call, kind in unlike_on_ranks(conversion.program):
        if any(node in apart for node in script.enclosing(call, ast.For, ast.While)):
            continue
        if kind == "random_state":
            conversion.add(SetKeyword(call, "random_state", "0"))
        elif kind == "generator":
            conversion.add(Replace(call, f"{ast.unparse(call.func)}(0)"))
        else:
            name = name_of_module(conversion.script, "numpy" if kind == "numpy" else "random")
            if name:
                conversion.seeds.add(f"{name}.random.seed(0)" if kind == "numpy" else f"{name}.seed(0)")
                conversion.note("a seed is set, for the data to have the same order on every rank")
                continue
            reason = f"`{script.text(call.func)}` gives every rank another order: no seed is set"
            conversion.refuse(script, call, reason, "set a seed first: `np.random.seed(0)`")


def name_of_module(script: Script, module: str) -> str:
    """The name of an imported module of Python or NumPy in a file."""
    for name, bindings in script.names.module.bindings.items():
        if all(b.kind == "import" and b.symbol == module for b in bindings):
            return name
    return ""


#: Arguments that are split, and the names that they get where they have none.
_NAMES = {"x": "inputs", "y": "targets", "sample_weight": "weights"}


def caches(conversion: Conversion) -> None:
    """Every rank has cache files of its own."""
    for script in conversion.program.scripts:
        for call in script.dataset_calls("cache"):
            name = script.bind(call, "Dataset.cache").get("filename")
            if name is not None and script.constant(name) != "" and not script.is_none(name):
                conversion.add(Wrap(name, f"{operand(name)} + str({conversion.hvd(script, name)}.rank())"))


# -- arrays --------------------------------------------------------------------------------------------------


def _arrays(conversion: Conversion, run: Run) -> None:
    site = run.site
    if (made := _made_in_a_loop(site)) is not None:
        conversion.refuse(
            site.script,
            site.call,
            f"`{made.id}` is made anew in the loop around `{site.method}`, and may differ in length from rank to rank",
            "train on data that is there before the loop",
        )
        return
    steps = site.arguments.get("steps_per_epoch")
    for name in _NAMES:
        expr = site.arguments.get(name)
        if expr is not None and not site.script.is_none(expr):
            _slice(conversion, site.script, expr, name)
    if steps is not None and not site.script.is_none(steps):
        fewer_steps(conversion, site.script, steps)


def _made_in_a_loop(site: Site) -> ast.Name | None:
    """Training data that a loop around `fit` makes anew in every turn: by play, or by chance."""
    script = site.script
    loop = next(script.enclosing(site.call, ast.For, ast.While), None)
    if loop is None:
        return None
    for name in _NAMES:
        expr = site.arguments.get(name)
        for node in ast.walk(expr) if expr is not None else ():
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            for binding in script.names.reaching(node):
                if loop not in script.enclosing(binding.node, ast.For, ast.While) or binding.kind == "loop":
                    continue
                if not isinstance(binding.part or binding.value, ast.Subscript | ast.Constant | ast.Name):
                    return node
    return None


def _slice(conversion: Conversion, script: Script, expr: ast.expr, name: str) -> None:
    """`x[hvd.rank():len(x) // hvd.size() * hvd.size():hvd.size()]`."""
    if isinstance(expr, ast.List | ast.Tuple) and not any(
        v.kind == "constant" for e in expr.elts for v in script.values(e)
    ):
        for element in expr.elts:
            _slice(conversion, script, element, name)
        return
    if isinstance(expr, ast.Dict):
        for value in expr.values:
            _slice(conversion, script, value, name)
        return
    hvd = conversion.hvd(script, expr)
    values = script.values(expr)
    several = [v for v in values if v.kind in ("sequence", "mapping") or isinstance(v.node, ast.DictComp)]
    if any(isinstance(v.node, ast.ListComp | ast.GeneratorExp) for v in values):
        reason = f"`{script.text(expr)}` is a list, of samples or of inputs"
        conversion.refuse(script, expr, reason, "make an array of it: `np.array(...)`")
        return
    if several and len(values) > 1:
        conversion.refuse(script, expr, f"`{script.text(expr)}` is one of several things: an array or a list of arrays")
    elif several and several[0].kind != "sequence":
        key, array = conversion.free_name(script, "name"), conversion.free_name(script, "array", "part")
        part = f"{array}{_part(hvd, f'len({array})')}"
        conversion.add(Wrap(expr, f"{{{key}: {part} for {key}, {array} in {operand(expr)}.items()}}"))
    elif several and not all(v.kind == "constant" for item in several[0].items for v in item):
        array = conversion.free_name(script, "array", "part")
        conversion.add(Wrap(expr, f"[{array}{_part(hvd, f'len({array})')} for {array} in ...]"))
    elif isinstance(expr, ast.Name | ast.Attribute):
        conversion.add(Wrap(expr, f"...{_part(hvd, f'len({ast.unparse(expr)})')}"))
    elif isinstance(length := _agreed_length(values), int):
        conversion.add(Wrap(expr, f"{_subject(expr)}{_part(hvd, str(length))}"))
    else:
        _slice_named(conversion, script, expr, name)


def _slice_named(conversion: Conversion, script: Script, expr: ast.expr, name: str) -> None:
    """What is computed where it is handed over gets a name on a line above."""
    statement = script.statement(expr)
    late = next(script.enclosing(expr, ast.Lambda, ast.comprehension, ast.IfExp, ast.BoolOp), None)
    simple = isinstance(statement, ast.Expr | ast.Assign | ast.Return | ast.AnnAssign)
    if late is not None or not simple:
        conversion.refuse(
            script,
            expr,
            f"`{script.text(expr)}` is computed where it is handed over, and cannot be split there",
            "give it a name on a line of its own",
        )
        return
    array = _NAMES.get(name, "part")
    array = conversion.free_name(script, array, f"train_{array}", f"all_{array}")
    text = f"{array} = {ast.unparse(expr)}"
    taken = [e.text for e in conversion.edits if isinstance(e, Insert)]
    while any(t.startswith(f"{array} = ") and t != text for t in taken):
        array = f"{array}_"
        text = f"{array} = {ast.unparse(expr)}"
    conversion.add(Insert(statement, text, after=False))
    hvd = conversion.hvd(script, expr)
    conversion.add(Replace(expr, f"{array}{_part(hvd, f'len({array})')}"))


def _agreed_length(values: Values) -> int | None:
    lengths = {v.length if v.kind == "array" else None for v in values}
    return lengths.pop() if len(lengths) == 1 else None


def _subject(expr: ast.expr) -> str:
    return "..." if isinstance(expr, ast.Call | ast.Subscript | ast.Name | ast.Attribute) else "(...)"


def _part(hvd: str, length: str) -> str:
    return f"[{hvd}.rank():{length} // {hvd}.size() * {hvd}.size():{hvd}.size()]"


# -- datasets ------------------------------------------------------------------------------------------------


def _dataset(conversion: Conversion, run: Run) -> None:
    site, script = run.site, run.site.script
    assert run.source is not None
    found = split_of(conversion.program, run)
    if not isinstance(found, Split):
        conversion.refuse_problem(found)
        return
    steps = site.arguments.get("steps_per_epoch")
    given = steps is not None and not script.is_none(steps)
    if not found.counted and not (given and found.endless):
        why = run.steps.why if run.steps.number is None and run.steps.why else "its size is not known"
        conversion.refuse(
            script,
            site.call,
            f"the ranks would make different numbers of steps and wait for each other: {why}",
            "let the dataset `repeat()` and give `fit` its `steps_per_epoch`",
        )
        return
    for _, call in found.seeds:
        conversion.add(SetKeyword(call, "seed", "0"))
    for place in found.places:
        shard(conversion, place, endless=given and found.endless)
    if steps is not None and given:
        fewer_steps(conversion, script, steps)


def shard(conversion: Conversion, place: Place, *, endless: bool) -> None:
    """Leave a dataset the part of one rank, as long as the others'; one without end need not be counted."""
    hvd = conversion.hvd(place.script, place.node)
    part = f"shard({hvd}.size(), {hvd}.rank())"
    conversion.parts.add(place.stage.node if place.stage.node is not None else place.node)
    if not place.sized and endless:
        conversion.add(Chain(place.node, part))
    elif not place.sized:
        conversion.add(Chain(place.node, f"apply({_counted(conversion, place.script, place.node)})"))
    elif place.length:
        conversion.add(Chain(place.node, f"{part}.take({place.length} // {hvd}.size())"))
    else:
        ds = conversion.free_name(place.script, "part", "ds")
        equal = f"apply(lambda {ds}: {ds}.{part}.take({ds}.cardinality() // {hvd}.size()))"
        conversion.add(Chain(place.node, equal))


def _counted(conversion: Conversion, script: Script, node: ast.expr) -> str:
    """The name of a function, put above its use, that counts records and gives each rank as many."""
    hvd = conversion.hvd(script, node)
    name = conversion.free_name(script, "part_of_rank")
    first = outermost(script, node, script.tree)
    text = (
        f"def {name}(records):\n"
        '    """The records of this rank: each one is on one rank, and every rank has as many."""\n'
        "    count = records.reduce({tensorflow.constant}(0, {tensorflow.int64}), lambda n, *_: n + 1)"
        f" // {hvd}.size()\n"
        f"    part = records.shard({hvd}.size(), {hvd}.rank()).take(count)\n"
        "    return part.apply({tensorflow.data.experimental.assert_cardinality}(count))"
    )
    done = next((e for e in conversion.edits if isinstance(e, Insert) and e.text == text), None)
    if done is None:
        conversion.add(Insert(first, text, after=False, blank_lines=0, below=2))
        conversion.note("records are counted once, when every rank starts: their number is not known otherwise")
    elif first.lineno < getattr(done.node, "lineno", 0):
        conversion.edits.remove(done)
        conversion.add(Insert(first, text, after=False, blank_lines=0, below=2))
    return name


def fewer_steps(conversion: Conversion, script: Script, steps: ast.expr) -> None:
    """`steps_per_epoch` counts the steps of all ranks together, unless it is counted on the part of one."""
    counted = is_of_part(conversion, script, steps)
    if counted is None:
        conversion.refuse(
            script, steps, f"whether `{script.text(steps)}` counts the steps of one rank or of all is not seen"
        )
    elif not counted:
        conversion.add(Wrap(steps, f"{operand(steps)} // {conversion.hvd(script, steps)}.size()"))


def is_of_part(conversion: Conversion, script: Script, expr: ast.expr) -> bool | None:
    """Whether a number is computed from the size of data that is split already; None where it may be."""
    answers: set[bool] = set()
    for node in script.behind(expr):
        if isinstance(node, ast.Call) and (asked := _asked_for_size(script, node)) is not None:
            answers.update(_is_part(conversion, v) for v in script.values(asked))
    if not any(answers):
        return False
    return True if all(answers) else None


def _asked_for_size(script: Script, call: ast.Call) -> ast.expr | None:
    if script.called(call).endswith(("builtins.len", "experimental.cardinality")) and call.args:
        return call.args[0]
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("cardinality", "__len__"):
        return call.func.value
    return None


def _is_part(conversion: Conversion, value: Value) -> bool:
    current: Value | None = value
    while current is not None:
        if current.node in conversion.parts:
            return True
        current = current.base
    return False


# -- loaders and generators ----------------------------------------------------------------------------------


def _loader(conversion: Conversion, run: Run) -> None:
    """The arrays of an `ImageDataGenerator.flow`; other loaders are not split."""
    site, script = run.site, run.site.script
    assert run.source is not None
    for value in script.values(run.source):
        owner, call = value.script, value.node
        if value.kind == "constant":
            continue
        if not value.name.endswith(".flow") or owner is None or not isinstance(call, ast.Call):
            name = value.cls.name if value.cls else value.name.rpartition(".")[2] or script.text(run.source)
            conversion.refuse(
                script,
                site.call,
                f"`{name}` chooses its batches itself, the same on every rank",
                "let it give only every `hvd.size()`-th batch, from `hvd.rank()` on",
            )
            return
        for other, use in owner.flow(call):
            parent = other.parents.get(use)
            if isinstance(parent, ast.Attribute) and parent.attr in ("n", "samples", "batch_size"):
                conversion.refuse(other, parent, f"`{other.text(parent)}` would be that of one rank only")
            if isinstance(parent, ast.keyword):
                parent = other.parents.get(parent)
            is_given = isinstance(parent, ast.Call) and use is not parent.func and parent is not site.call
            if is_given and isinstance(parent, ast.Call) and other.called(parent) != "builtins.len":
                conversion.refuse(other, parent, f"the training data is also given to `{other.text(parent.func)}`")
        conversion.parts.add(call)
        arguments = owner.bind(call, "ImageDataGenerator.flow")
        if arguments.may_have("subset"):
            conversion.refuse(owner, call, "a `subset` is taken of data that would be split")
            return
        for name in _NAMES:
            expr = arguments.get(name)
            if expr is not None and not owner.is_none(expr):
                _slice(conversion, owner, expr, name)
    steps = site.arguments.get("steps_per_epoch")
    if steps is not None and not script.is_none(steps):
        fewer_steps(conversion, script, steps)


def _generator(conversion: Conversion, run: Run) -> None:
    """Every rank takes its own of the batches that a Python generator gives, in turn."""
    site, script = run.site, run.site.script
    assert run.source is not None
    if (problem := draws_in(script, run.source)) is not None:
        conversion.refuse_problem(problem)
        return
    steps = site.arguments.get("steps_per_epoch")
    if steps is None or script.is_none(steps):
        conversion.refuse(
            script,
            site.call,
            "a generator does not tell how many batches it gives: the ranks would make different numbers of steps",
            "let it go on for ever and give `fit` its `steps_per_epoch`",
        )
        return
    if not all(_goes_on(v) for v in script.values(run.source)):
        conversion.refuse(
            script,
            site.call,
            f"`{script.text(run.source)}` may end, after other numbers of batches on some ranks",
            "let it go on for ever (`while True:`), and give `fit` its `steps_per_epoch`",
        )
        return
    hvd = conversion.hvd(script, run.source)
    turns = _islice(conversion, script, run.source)
    conversion.add(Wrap(run.source, f"{turns}(..., {hvd}.rank(), None, {hvd}.size())"))
    fewer_steps(conversion, script, steps)


def _goes_on(generator: Value) -> bool:
    """Whether it never ends: all that it yields stands in a `while True:` that nothing leaves."""
    function = generator.base.node if generator.base is not None else None
    if not isinstance(function, ast.FunctionDef):
        return False
    loops = [s for s in function.body if isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and s.test.value]
    inside = {n for loop in loops for n in ast.walk(loop)}
    leaves = any(isinstance(n, ast.Break | ast.Return | ast.Raise) for n in inside)
    return bool(loops) and not leaves and all(n in inside for n in ast.walk(function) if isinstance(n, ast.Yield))


def _islice(conversion: Conversion, script: Script, node: ast.expr) -> str:
    """The name of `itertools.islice` in a file, imported where it is not."""
    for name, bindings in script.names.module.bindings.items():
        if all(b.kind == "import" and b.symbol in ("itertools", "itertools.islice") for b in bindings):
            return name if bindings[0].symbol == "itertools.islice" else f"{name}.islice"
    first = next((s for s in script.tree.body if isinstance(s, ast.Import | ast.ImportFrom)), None)
    if first is None or (isinstance(first, ast.ImportFrom) and first.module == "__future__"):
        conversion.refuse(
            script, node, "there is no import beside which `itertools` could be imported", "import it first"
        )
        return "islice"
    if "itertools" in {n for s in script.names.scopes.values() for n in s.bindings}:
        conversion.refuse(script, node, "the name `itertools` is something else here")
    conversion.add(Insert(first, "import itertools", after=False))
    return "itertools.islice"
