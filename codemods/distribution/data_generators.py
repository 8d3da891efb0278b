"""Python generators of batches: every rank takes its own of the batches that they give, in turn."""

from __future__ import annotations

import ast

from rewriter.distribution.draws import Draw, decided, draws_of, is_fixed, shuffled_source, uses_up
from rewriter.distribution.sources import Problem, seeded
from rewriter.edits import Replace, Wrap
from rewriter.loops.steps import call_sites, loops_around
from rewriter.script import Script, own_nodes
from rewriter.training import Run
from rewriter.values import Value

from . import keras3
from .conversion import Conversion
from .data_names import imported, name_of_symbol, own_draws


def take_turns(conversion: Conversion, run: Run) -> bool:
    """`itertools.islice(batches(), rank, None, size)`; whether the steps of an epoch are those of all ranks then."""
    site, script = run.site, run.site.script
    assert run.source is not None
    steps = site.arguments.get("steps_per_epoch")
    if steps is None or script.is_none(steps):
        reason = "a generator does not tell how many batches it gives: the ranks would make different numbers of steps"
        hint = "let it go on for ever and give `fit` its `steps_per_epoch`"
        conversion.refuse(script, site.call, reason, hint)
        return False
    processes = site.arguments.get("use_multiprocessing")
    if processes is not None and script.constant(processes) is not False:
        reason = "several processes would each go through the generator, on every rank"
        conversion.refuse(script, site.call, reason, "leave out `use_multiprocessing`")
        return False
    chance = True
    generators: list[Value] = []
    for value in script.values(run.source):
        if value.kind == "constant" and value.literal is None:
            continue
        function = value.base.node if value.base is not None else None
        owner = value.base.script if value.base is not None else None
        if owner is None or not isinstance(function, ast.FunctionDef):
            conversion.refuse(script, site.call, f"what `{script.text(run.source)}` yields is not seen")
            return False
        if not _goes_on(function):
            reason = f"`{script.text(run.source)}` may end, after other numbers of batches on some ranks"
            hint = "let it go on for ever (`while True:`), and give `fit` its `steps_per_epoch`"
            conversion.refuse(script, site.call, reason, hint)
            return False
        draws = draws_of(owner, function)
        if _by_chance(owner, function, draws) and not (seeded(conversion.program) or conversion.seeds):
            continue
        chance = False
        generators.append(value)
        if (read := shuffled_source(owner, function)) is not None:
            reason = f"`{owner.text(read[1])}`, which it reads ({read[0].at(read[1])}), has another order on every rank"
            conversion.refuse(script, site.call, reason, "give it a `seed`, or `shuffle=False`")
            return False
        if (problem := _settle(conversion, owner, function, draws, value)) is not None:
            conversion.refuse_problem(problem)
            return False
    if chance:
        conversion.note("every rank draws its own samples at random")
        return True
    for where, node in _places(conversion, run, generators):
        hvd = conversion.hvd(where, node)
        turns = f"{_islice(conversion, where, node)}(..., {hvd}.rank(), None, {hvd}.size())"
        if keras3.is_target(conversion):  # Keras 3 takes nothing but generators
            turns = f"(batch for batch in {turns})"
        conversion.add(Wrap(node, turns))
    return True


def _places(conversion: Conversion, run: Run, generators: list[Value]) -> list[tuple[Script, ast.expr]]:
    """Where batches are dealt out: for this `fit`, or where a generator is made which several go on reading.

    Whoever takes a batch from it beforehand has to do so on every rank: all later ones would change their ranks.
    """
    fits = [r.source for training in conversion.program.trainings for r in training.fits]
    made: list[tuple[Script, ast.expr]] = []
    shared = False
    for generator in generators:
        owner, call = generator.script, generator.node
        if owner is None or not isinstance(call, ast.expr):
            continue
        made.append((owner, call))
        shared |= runs_again(run, owner, call)
        for where, use in owner.flow(call):
            reader = _reader(where, use)
            if reader is None or use is run.source or _is_first_look(where, reader, owner, call):
                continue
            if use in fits:
                shared = True
                continue
            reason = f"`{where.text(use)}` gives batches to something else than training too ({where.at(reader)})"
            conversion.refuse(run.site.script, run.site.call, reason, "make a generator of its own for each")
    return made if shared else [(run.site.script, run.source)]  # type: ignore[list-item]


def _reader(script: Script, use: ast.expr) -> ast.AST | None:
    """What takes batches from a generator: a call, or a loop; not a function of the project that it is given to."""
    parent = script.parents.get(use)
    if isinstance(parent, ast.keyword):
        parent = script.parents.get(parent)
    if isinstance(parent, ast.For | ast.comprehension | ast.YieldFrom | ast.Starred):
        return parent
    if not isinstance(parent, ast.Call) or use is parent.func:
        return None
    followed = any(isinstance(v.node, ast.FunctionDef | ast.ClassDef) and v.script for v in script.values(parent.func))
    return None if followed else parent


def _is_first_look(script: Script, reader: ast.AST, owner: Script, generator: ast.expr) -> bool:
    """`x, y = next(batches)` where it is made, which every rank runs."""
    if not isinstance(reader, ast.Call) or script.called(reader) != "builtins.next":
        return False
    statement = script.statement(reader)
    plain = isinstance(statement, ast.Assign) and statement.value is reader
    here = script is owner and script.function_of(reader) is owner.function_of(generator)
    return plain and here and next(script.enclosing(reader, ast.If, ast.For, ast.While), None) is None


def runs_again(run: Run, owner: Script, made: ast.AST) -> bool:
    """Whether a `fit` may run several times with data made once: in a loop, or in a function that is called twice."""
    script: Script = run.site.script
    node: ast.AST = run.site.call
    seen: set[ast.AST] = set()
    while True:
        if any(made not in ast.walk(loop) for loop in loops_around(script, node)):
            return True
        function = script.function_of(node)
        if script is owner and function is owner.function_of(made):
            return False
        if not isinstance(function, ast.FunctionDef) or function in seen:
            return False
        seen.add(function)
        sites, _ = call_sites(script, function)
        if len(sites) != 1:
            return len(sites) > 1
        script, node = sites[0].script, sites[0].call


def _goes_on(function: ast.FunctionDef) -> bool:
    """Whether it never ends: all that it yields stands in a `while True:` that nothing leaves."""
    loops = [s for s in function.body if isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and s.test.value]
    inside = {n for loop in loops for n in ast.walk(loop)}
    leaves = any(isinstance(n, ast.Return | ast.Raise) for n in inside) or any(_breaks(loop) for loop in loops)
    yields = [n for n in own_nodes(function) if isinstance(n, ast.Yield | ast.YieldFrom)]
    return bool(loops) and not leaves and all(n in inside for n in yields)


def _breaks(loop: ast.While) -> bool:
    """Whether a `break` leaves this loop, not one inside of it."""
    todo: list[ast.AST] = list(loop.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Break):
            return True
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            todo += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)
    return False


def _by_chance(script: Script, function: ast.FunctionDef, draws: list[Draw]) -> bool:
    """Whether every batch is picked at random, without regard to those before."""
    picks = any(d.kind in ("pick", "order") for d in draws)
    if not picks or any(d.kind == "seed" or d.library not in ("numpy", "random") for d in draws):
        return False
    (loop, *more) = [s for s in function.body if isinstance(s, ast.While)]
    inside = list(ast.walk(loop))
    if more or any(isinstance(n, ast.For | ast.While) and n is not loop and _yields(n) for n in inside):
        return False
    stored = {n.id for n in inside if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    before = {b.name for s in function.body[: function.body.index(loop)] for b in _bound(script, s)}
    before |= {a.arg for a in [*function.args.args, *function.args.kwonlyargs]}
    kept = any(isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load) for n in inside)
    takes = any(isinstance(n, ast.Call) and script.called(n) == "builtins.next" for n in inside)
    grown = any(
        isinstance(n, ast.Attribute)
        and n.attr in ("append", "extend", "pop", "insert", "remove", "clear")
        and isinstance(n.value, ast.Name)
        and n.value.id in before
        for n in inside
    )
    return not (stored & before or kept or takes or grown)


def _yields(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(node))


def _bound(script: Script, statement: ast.stmt):  # type: ignore[no-untyped-def]
    inside = set(ast.walk(statement))
    for bindings in script.names.scope_of(statement).bindings.values():
        yield from (b for b in bindings if b.node in inside)


def _settle(
    conversion: Conversion, script: Script, function: ast.FunctionDef, draws: list[Draw], generator: Value
) -> Problem | None:
    """Let a generator give the same batches, in the same order, on every rank; or why it may not."""
    inside = [d for d in draws if d.inside and d.library in ("numpy", "random", "state")]
    others = [d for d in draws if d not in inside]
    for draw in draws:
        seeds = draw.kind == "seed"
        if seeds or (draw.kind == "order" and draw not in inside):
            if not seeds and _has_own(conversion, draw, function):
                continue
            reason = f"every rank may go through the data in another order: {draw.what}"
            hint = "draw from a `np.random.RandomState(0)` that the generator makes"
            return Problem(draw.script, draw.call, reason, hint)
    if (test := decided(script, function, others) or uses_up(function, others)) is not None:
        reason = f"what is drawn decides which samples come, and may differ from rank to rank ({script.at(test)})"
        return Problem(script, test, reason, "draw from a `np.random.RandomState(0)` that the generator makes")
    orders = any(d.kind == "order" for d in inside) or uses_up(function, inside) is not None
    if not orders and decided(script, function, inside) is None:
        return None
    call, owner = generator.node, generator.script
    if owner is not None and call is not None and next(owner.enclosing(call, ast.For, ast.While), None) is not None:
        reason = f"`{function.name}` is started anew in a loop, with the same order on every rank only once"
        return Problem(owner, call, reason, "start it before the loop")
    own_draws(conversion, script, function, inside)
    return None


def _has_own(conversion: Conversion, draw: Draw, function: ast.FunctionDef) -> bool:
    """Whether it draws from a generator of random numbers that the function itself makes, which gets a seed."""
    if draw.maker is None or draw.maker[0].function_of(draw.maker[1]) is not function:
        return False
    script, maker = draw.maker
    if not maker.args and not maker.keywords:
        conversion.add(Replace(maker, f"{ast.unparse(maker.func)}(0)"))
        return True
    return is_fixed(script, maker)


def _islice(conversion: Conversion, script: Script, node: ast.expr) -> str:
    """The name of `itertools.islice` in a file, imported where it is not."""
    return name_of_symbol(script, "itertools.islice") or f"{imported(conversion, script, node, 'itertools')}.islice"
