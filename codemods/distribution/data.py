"""Training data split over the ranks: every sample on one of them, and as many steps on each."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from rewriter.data.pipelines import stages
from rewriter.distribution.draws import is_fixed
from rewriter.distribution.sources import Place, Split, seeds_of, split_of, unlike_on_ranks
from rewriter.edits import Chain, Insert, Replace, SetKeyword, Wrap
from rewriter.script import Script, Site
from rewriter.spelling import outermost
from rewriter.training import Run
from rewriter.values import Value, Values

from . import data_generators, data_loaders, data_order
from .conversion import Conversion, operand
from .data_names import imported, own_draws
from .data_names import name_of_module as name_of_module
from .data_names import same_data as same_data


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
    _no_state(conversion)
    data_order.settle(conversion)
    for script, call in seeds_of(conversion.program):
        if not is_fixed(script, call):
            reason = f"`{script.text(call)}` gives every rank another order of the data"
            conversion.refuse(script, call, reason, "give it a number")
    own = _orders_of_their_own(conversion)
    for script, call, kind in unlike_on_ranks(conversion.program):
        if any(node in apart for node in script.enclosing(call, ast.For, ast.While)):
            continue
        if kind != "generator" and any(node in own for node in script.enclosing(call, ast.FunctionDef, ast.ClassDef)):
            continue
        if kind == "random_state":
            conversion.add(SetKeyword(call, "random_state", "0"))
        elif kind == "generator":
            conversion.add(Replace(call, f"{ast.unparse(call.func)}(0)"))
        else:
            top = conversion.script.tree.body[0]
            module = imported(conversion, conversion.script, top, "numpy" if kind == "numpy" else "random")
            conversion.seeds.add(f"{module}.random.seed(0)" if kind == "numpy" else f"{module}.seed(0)")
            conversion.note("a seed is set, for the data to have the same order on every rank")


def _no_state(conversion: Conversion) -> None:
    """A layer that goes on with the state of the batch before needs all batches, one after another."""
    for script, call in conversion.program.calls():
        stateful = script.argument(call, "stateful")
        if (
            stateful is not None
            and script.constant(stateful) is not False
            and any(v.kind == "layer" for v in script.values(call))
        ):
            reason = f"`{script.text(call.func)}` goes on with the state of the batch before, which another rank has"
            conversion.refuse(script, call, reason, "train it in one process")


def _orders_of_their_own(conversion: Conversion) -> set[ast.AST]:
    """Loaders and generators that a `fit` trains on: their draws are dealt with where they are split."""
    found: set[ast.AST] = set()
    for training in conversion.program.trainings:
        for run in training.fits:
            for value in run.site.script.values(run.source) if run.source is not None else ():
                if value.kind == "loader" and value.cls is not None and value.cls.script is not None:
                    assert isinstance(value.cls.node, ast.ClassDef)
                    found |= {cls for _, cls in value.cls.script.ancestry(value.cls.node)}
                elif value.kind == "generator" and value.base is not None and value.base.node is not None:
                    found.add(value.base.node)
    return found


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
            same_data(conversion, site.script, [expr], eager=True)
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
                if not _is_settled(script, binding.part or binding.value):
                    return node
    return None


def _is_settled(script: Script, expr: ast.expr | None) -> bool:
    """A part of arrays, or some parts put together: `np.concatenate([x[:a], x[b:]], axis=0)`."""
    match expr:
        case ast.Subscript() | ast.Constant() | ast.Name():
            return True
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return all(_is_settled(script, p) for p in parts)
        case ast.Call(args=args, keywords=keywords) if script.called(expr).startswith("numpy."):
            drawn = script.called(expr).startswith("numpy.random.")
            return not drawn and all(_is_settled(script, a) for a in [*args, *(k.value for k in keywords)])
    return False


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
    found = split_of(conversion.program, run, own=True)
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
    places = {p.stage.node for p in found.places}
    made = {s.node for v in script.values(run.source) for s in stages(v)} - places
    if not conversion.parts.isdisjoint(made):
        reason = "the data is split for another training already, at another place"
        conversion.refuse(script, site.call, reason, "make a dataset of its own for each")
        return
    if given and found.endless and (found.own or _shuffles(found)) and _is_read_again(conversion, run, found):
        reason = "each rank may have begun other passes of the data when the next `fit` starts, in other orders then"
        conversion.refuse(
            script, site.call, reason, "split it before it is shuffled: `ds.shard(hvd.size(), hvd.rank())`"
        )
        return
    for _, call in found.seeds:
        conversion.add(SetKeyword(call, "seed", "0"))
    for own in found.own or ():
        own_draws(conversion, own.script, own.function, [*own.draws], once=True)
    for place in found.places:
        shard(conversion, place, endless=given and found.endless)
    if steps is not None and given:
        fewer_steps(conversion, script, steps)


def _shuffles(split: Split) -> bool:
    """Whether the data is shuffled before it is split, in another order for every pass."""
    shuffles = [s for p in split.places for s in stages(p.stage) if s.name == "shuffle" and s.script is not None]
    for stage in shuffles:
        assert stage.script is not None and isinstance(stage.node, ast.Call)
        anew = stage.script.bind(stage.node, "Dataset.shuffle").get("reshuffle_each_iteration")
        if anew is None or stage.script.constant(anew) is not False:
            return True
    return False


def _is_read_again(conversion: Conversion, run: Run, split: Split) -> bool:
    """Whether a `fit` follows that goes through the same shuffled data, or this one runs again."""
    made = {s.node: s.script for p in split.places for s in stages(p.stage)}
    for training in conversion.program.trainings:
        for other in training.fits:
            values = other.site.script.values(other.source) if other.source is not None else ()
            if other.site.call is not run.site.call and any(s.node in made for v in values for s in stages(v)):
                return True
    return any(
        owner is not None and node is not None and data_generators.runs_again(run, owner, node)
        for node, owner in made.items()
    )


def shard(conversion: Conversion, place: Place, *, endless: bool, noise: bool = False) -> None:
    """Leave a dataset the part of one rank, as long as the others'; one without end need not be counted."""
    for stage in stages(place.stage):
        if stage.name.endswith(("from_tensor_slices", "from_tensors")) and isinstance(stage.node, ast.Call):
            arrays = [*stage.node.args, *(k.value for k in stage.node.keywords)]
            same_data(conversion, stage.script or place.script, arrays, noise=noise, eager=True)
    hvd = conversion.hvd(place.script, place.node)
    part = f"shard({hvd}.size(), {hvd}.rank())"
    conversion.parts.add(place.stage.node if place.stage.node is not None else place.node)
    uncounted = Chain(place.node, part)
    if not place.sized and endless:
        if not any(isinstance(e, Chain) and e.node is place.node for e in conversion.edits):
            conversion.add(uncounted)
    elif not place.sized:
        conversion.edits = [e for e in conversion.edits if e != uncounted]  # another `fit` repeats it without end
        conversion.add(Chain(place.node, f"apply({_counted(conversion, place)})"))
    elif place.length:
        conversion.add(Chain(place.node, f"{part}.take({place.length} // {hvd}.size())"))
    else:
        ds = conversion.free_name(place.script, "part", "ds")
        equal = f"apply(lambda {ds}: {ds}.{part}.take({ds}.cardinality() // {hvd}.size()))"
        conversion.add(Chain(place.node, equal))


def _counted(conversion: Conversion, place: Place) -> str:
    """The name of a function, put above its use, that counts records and gives each rank as many."""
    script, node = place.script, place.node
    hvd = conversion.hvd(script, node)
    name = conversion.free_name(script, "part_of_rank")
    count = "records.reduce({tensorflow.constant}(0, {tensorflow.int64}), lambda n, *_: n + 1)"
    if place.tells:
        counted = f"    count = records.cardinality()\n    if count < 0:  # it is not known\n        count = {count}\n"
        counted += f"    count //= {hvd}.size()\n"
    else:
        counted = f"    count = {count} // {hvd}.size()\n"
    text = (
        f"def {name}(records):\n"
        '    """The records of this rank: each one is on one rank, and every rank has as many."""\n'
        f"{counted}"
        f"    part = records.shard({hvd}.size(), {hvd}.rank()).take(count)\n"
        "    return part.apply({tensorflow.data.experimental.assert_cardinality}(count))"
    )
    if all(not isinstance(e, Insert) or e.text != text for e in conversion.edits):
        conversion.note("records are counted once, when every rank starts, where their number is not known otherwise")
    data_loaders.above(conversion, script, outermost(script, node, script.tree), text)
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
    """Parts of the arrays of an `ImageDataGenerator.flow`, and every `hvd.size()`-th batch of other loaders."""
    site, script = run.site, run.site.script
    assert run.source is not None
    loaders = [v for v in script.values(run.source) if v.kind != "constant"]
    flows = [v for v in loaders if _is_split_flow(site, v)]
    if loaders and len(flows) == len(loaders):
        for value in flows:
            _flow(conversion, value)
    else:
        data_loaders.take_turns(conversion, run, loaders)
    _fewer_steps_of(conversion, run)


def _is_split_flow(site: Site, value: Value) -> bool:
    """An `ImageDataGenerator.flow` of which only this `fit` knows how many samples it has."""
    owner, call = value.script, value.node
    if not value.name.endswith(".flow") or owner is None or not isinstance(call, ast.Call):
        return False
    for other, use in owner.flow(call):
        parent = other.parents.get(use)
        if isinstance(parent, ast.Attribute) and parent.attr in ("n", "samples", "batch_size"):
            return False
        if isinstance(parent, ast.keyword):
            parent = other.parents.get(parent)
        is_given = isinstance(parent, ast.Call) and use is not parent.func and parent is not site.call
        if is_given and isinstance(parent, ast.Call) and other.called(parent) != "builtins.len":
            return False
    return not owner.bind(call, "ImageDataGenerator.flow").may_have("subset")


def _flow(conversion: Conversion, value: Value) -> None:
    owner, call = value.script, value.node
    assert owner is not None and isinstance(call, ast.Call)
    conversion.parts.add(call)
    arguments = owner.bind(call, "ImageDataGenerator.flow")
    for name in _NAMES:
        expr = arguments.get(name)
        if expr is not None and not owner.is_none(expr):
            same_data(conversion, owner, [expr], eager=True)
            _slice(conversion, owner, expr, name)


def _generator(conversion: Conversion, run: Run) -> None:
    """Every rank takes its own of the batches that a Python generator gives, in turn."""
    if data_generators.take_turns(conversion, run):
        _fewer_steps_of(conversion, run)


def _fewer_steps_of(conversion: Conversion, run: Run) -> None:
    steps = run.site.arguments.get("steps_per_epoch")
    if steps is not None and not run.site.script.is_none(steps):
        fewer_steps(conversion, run.site.script, steps)
