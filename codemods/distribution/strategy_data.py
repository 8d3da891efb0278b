"""What a loop hands to a step: every replica gets a part of each batch.

A dataset whose elements are only handed to the step is distributed as a whole. Otherwise, and for slices of arrays,
every batch is divided where the step is called.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from rewriter.data.pipelines import stages
from rewriter.distribution.portions import EACH, FREE, Frame, Portion, Reading
from rewriter.distribution.sources import Split, unsteady
from rewriter.edits import Insert, Replace, SetKeyword
from rewriter.loops.batches import given
from rewriter.loops.steps import CallSite, loops_around
from rewriter.script import Script
from rewriter.values import Value, apart_from_loops, default_of

from . import loops, strategy_hosts
from .strategies import ByStrategy

_BATCHES = frozenset("batch padded_batch ragged_batch bucket_by_sequence_length map_and_batch".split())
_KEEPS = frozenset("map prefetch cache repeat take skip shuffle with_options enumerate filter apply take_while".split())


#: What a call hands to all replicas as it is.
_SAME = frozenset({"object", "constant", "int", "float"})


@dataclass(eq=False)
class Handed:
    """One call of a step. loop: the one that goes through batches. dataset: what it iterates over, if that is one."""

    site: CallSite
    loop: ast.For
    dataset: ast.expr | None
    given: dict[str, tuple[ast.expr, Portion]]

    @property
    def whole(self) -> bool:
        """Whether the elements of the dataset are only handed to steps, as they are."""
        return self.dataset is not None and _only_handed(self.site.script, self.loop)


def arguments(
    conversion: ByStrategy, sites: Sequence[CallSite], function: ast.FunctionDef
) -> dict[str, Portion] | None:
    """What a step is given for its parameters, by all of its calls; None where that is refused."""
    found: dict[str, Portion] = {}
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    for site in sites:
        if not conversion.program.reach.contains(site.script, site.call):
            continue
        handed = _handed(conversion, site, function)
        if handed is None:
            return None
        for name in names[: site.offset]:
            found[name] = FREE
        for name, (expr, portion) in handed.given.items():
            kinds = {portion.kind, found.get(name, portion).kind}
            if len(kinds) > 1 or portion.kind not in ("each", "free"):
                why = f": {portion.why}" if portion.why else ""
                shown = site.script.text(expr)
                conversion.refuse(site.script, site.call, f"what `{shown}` is on a part of a batch is not known{why}")
                return None
            if portion.kind == "free" and any(g.kind not in _SAME for g in given(site.script, expr)):
                shown = site.script.text(expr)
                reason = f"whether `{shown}` has a row for every sample of a batch is not seen"
                conversion.refuse(site.script, site.call, reason, "make it in the step, from the size of its batch")
                return None
            found[name] = portion
    for name in names:
        if name not in found:
            found[name] = FREE if default_of(function, name) is not None else Portion("other", why="it is not given")
    return found


def _handed(conversion: ByStrategy, site: CallSite, function: ast.FunctionDef) -> Handed | None:
    script, call = site.script, site.call
    around = loops_around(script, call)
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        conversion.refuse(script, call, "what the step is given through `*` or `**` is not seen")
        return None
    for loop in around:
        if not isinstance(loop, ast.For):
            continue
        dataset = loops._dataset_in(script, loop)
        slices = loops._slices(script, loop) if dataset is None else {}
        if dataset is None and not slices:
            continue
        if dataset is not None and (why := _unbatched(script, dataset)):
            conversion.refuse(script, loop, why)
            return None
        env = _targets(script, loop) if dataset is not None else {}
        reading = Reading(watched={call: []})
        frame = Frame(reading, script, script.function_of(loop), env)
        frame.overrides = {script.parents[n]: EACH for found in slices.values() for n in found}
        frame.block(loop.body)
        names = tuple(a.arg for a in [*function.args.posonlyargs, *function.args.args][site.offset :])
        bound = script.bind(call, names)
        portions = dict(zip([*call.args, *(k.value for k in call.keywords)], reading.watched[call], strict=False))
        handed = {name: (expr, portions[expr]) for name, expr in bound.given.items() if expr in portions}
        if len(portions) != len(call.args) + len(call.keywords):
            conversion.refuse(script, call, "what the step is called with is not seen")
            return None
        return Handed(site, loop, dataset, handed)
    conversion.refuse(
        script,
        call,
        "which loop goes through the batches that this step is given is not seen",
        "loop over a `tf.data.Dataset`, or over slices of arrays",
    )
    return None


def element(site: CallSite, function: ast.FunctionDef) -> dict[str, str]:
    """For parameters that are elements of a dataset, or parts of one: what tells their shape and type."""
    script = site.script
    found: dict[str, str] = {}
    for loop in site.loops:
        dataset = loops._dataset_in(script, loop) if isinstance(loop, ast.For) else None
        if dataset is None or not isinstance(loop, ast.For):
            continue
        spec = f"{script.source.snippet(dataset)}.element_spec"
        target: ast.expr = loop.target
        inner = loops._bare(script, loop.iter)
        if isinstance(inner, ast.Call) and script.called(inner) == "builtins.enumerate":
            target = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
        specs = {target.id: spec} if isinstance(target, ast.Name) else {}
        for index, part in enumerate(target.elts if isinstance(target, ast.Tuple) else ()):
            if isinstance(part, ast.Name):
                specs[part.id] = f"{spec}[{index}]"
        names = tuple(a.arg for a in [*function.args.posonlyargs, *function.args.args][site.offset :])
        for name, expr in script.bind(site.call, names).given.items():
            named = isinstance(expr, ast.Name) and all(b.kind == "loop" for b in script.names.reaching(expr))
            if named and isinstance(expr, ast.Name) and expr.id in specs:
                found[name] = specs[expr.id]
        break
    return found


def sizes(sites: Sequence[CallSite]) -> set[str]:
    """How the size of the batches is written that the calls of a step get."""
    found: set[str] = set()
    for site in sites:
        for loop in site.loops:
            dataset = loops._dataset_in(site.script, loop) if isinstance(loop, ast.For) else None
            for value in site.script.values(dataset) if dataset is not None else ():
                for stage in stages(value) if value.kind == "dataset" else ():
                    if stage.name in _BATCHES and stage.script is not None and isinstance(stage.node, ast.Call):
                        size = stage.script.bind(stage.node, ("batch_size",)).get("batch_size")
                        found |= {ast.unparse(size)} if isinstance(size, ast.Name | ast.Attribute) else set()
    return found


def _targets(script: Script, loop: ast.For) -> dict[str, Portion]:
    target: ast.expr = loop.target
    inner = loops._bare(script, loop.iter)
    counted = isinstance(inner, ast.Call) and script.called(inner) == "builtins.enumerate"
    found: dict[str, Portion] = {}
    if counted and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        found |= {n.id: FREE for n in ast.walk(target.elts[0]) if isinstance(n, ast.Name)}
        target = target.elts[1]
    return found | {n.id: EACH for n in ast.walk(target) if isinstance(n, ast.Name)}


def _unbatched(script: Script, dataset: ast.expr) -> str:
    """Why elements of a dataset may not be batches that can be divided."""
    for value in apart_from_loops(script.values(dataset)):
        if value.kind == "constant" and value.literal is None:
            continue
        if value.kind != "dataset":
            return f"what `{script.text(dataset)}` is is not known"
        chain = stages(value)
        batches = [i for i, s in enumerate(chain) if s.name in _BATCHES]
        made = chain[0].keras.startswith("utils.") and not _is_off(chain[0])
        if not batches and not made:
            return f"whether `{script.text(dataset)}` gives batches is not seen"
        for stage in chain[(batches[-1] if batches else 0) + 1 :]:
            if stage.name not in _KEEPS:
                return f"whether `{stage.name}` keeps batches together is not known"
        if batches and _size(chain[batches[-1]]) == 1:
            return "a batch of one sample cannot be divided"
    return ""


def _is_off(stage: Value) -> bool:
    """`image_dataset_from_directory(batch_size=None)`."""
    if stage.script is None or not isinstance(stage.node, ast.Call):
        return True
    size = stage.script.argument(stage.node, "batch_size")
    return size is not None and stage.script.is_none(size)


def _size(stage: Value) -> int | None:
    if stage.script is None or not isinstance(stage.node, ast.Call):
        return None
    return stage.script.integer(stage.script.bind(stage.node, ("batch_size",)).get("batch_size"))


def _only_handed(script: Script, loop: ast.For) -> bool:
    names = {n for n, p in _targets(script, loop).items() if p.kind == "each"}
    for statement in loop.body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Name) or node.id not in names:
                continue
            parent = script.parents.get(node)
            if isinstance(parent, ast.keyword):
                parent = script.parents.get(parent)
            if not isinstance(parent, ast.Call) or parent.func is node or not _is_step(script, parent):
                return False
    return True


def _is_step(script: Script, call: ast.Call) -> bool:
    from rewriter.loops.steps import steps

    functions = {s.function for o in script.project.scripts.values() for s in steps(o) if not s.inline}
    return any(v.node in functions for v in script.values(call.func))


# -- edits -----------------------------------------------------------------------------------------------------


def distribute(conversion: ByStrategy, sites: Sequence[CallSite], function: ast.FunctionDef) -> None:
    """Give every replica a part of what the calls of a step hand to it."""
    for site in sites:
        if not conversion.program.reach.contains(site.script, site.call):
            continue
        handed = _handed(conversion, site, function)
        if handed is None:
            return
        if handed.whole:
            _dataset(conversion, handed)
        else:
            _batches(conversion, handed)


def _dataset(conversion: ByStrategy, handed: Handed) -> None:
    script, loop, expr = handed.site.script, handed.loop, handed.dataset
    assert expr is not None
    source = script.source.snippet(expr)
    if conversion.several_hosts:
        same_on_workers(conversion, script, expr)
        if not all(in_memory(v) for v in apart_from_loops(script.values(expr))):
            source = f"{source}.with_options({by_sample(conversion)})"
    text = f"{conversion.strategy}.experimental_distribute_dataset"
    outer = _outermost(script, loop, expr)
    if outer is None or outer is loop:
        if conversion.several_hosts:
            strategy_hosts.in_place(conversion, script, loop, expr)
        conversion.add(Replace(expr, f"{text}({source})"))
        return
    wanted = f"distributed_{expr.id}" if isinstance(expr, ast.Name) else "distributed_dataset"
    name = conversion.free_name(script, wanted)
    conversion.add(Insert(outer, f"{name} = {text}({source})", after=False))
    conversion.add(Replace(expr, name))


def in_memory(value: Value) -> bool:
    """Whether the source of a dataset holds all elements in memory, or makes them in Python."""
    chain = stages(value) if value.kind == "dataset" else []
    made = chain[0].name.rpartition(".")[2] if chain else ""
    return made in ("from_tensor_slices", "from_tensors", "range", "from_generator")


def by_sample(conversion: ByStrategy) -> str:
    """Files are not divided over the workers, which may have other numbers of them: samples are."""
    if not conversion.options:
        conversion.options = conversion.free_name(conversion.script, "options", "by_sample")
        conversion.note("every worker reads all files, and takes its part of each batch")
    return conversion.options


def _outermost(script: Script, loop: ast.For, expr: ast.expr) -> ast.stmt | None:
    """The outermost loop in front of which the dataset has the value that it has in this one."""
    found: ast.stmt | None = None
    for around in [loop, *loops_around(script, loop)]:
        nodes = set(ast.walk(around))
        names = [n for n in ast.walk(expr) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        if any(b.node in nodes for n in names for b in script.names.reaching(n)):
            break
        found = around
    return found


def _batches(conversion: ByStrategy, handed: Handed) -> None:
    """`part_for_each(x)`: every replica takes its turn's samples of the batch."""
    script = handed.site.script
    if conversion.several_hosts and handed.dataset is None:
        reason = "slices of arrays are handed to the step: whether all workers have the same arrays is not proven"
        conversion.refuse(script, handed.loop, reason, "loop over a `tf.data.Dataset`")
        return
    if conversion.several_hosts and handed.dataset is not None:
        same_on_workers(conversion, script, handed.dataset)
    name = _divides(conversion, script, handed.site.call)
    for expr, portion in handed.given.values():
        if portion.kind == "each":
            conversion.wrap(expr, f"{name}(...)")


def _divides(conversion: ByStrategy, script: Script, node: ast.AST) -> str:
    name = conversion.free_name(script, "divide_batch")
    text = (
        f"def {name}(batch):\n"
        '    """Every replica gets a part of the batch."""\n'
        f"    return {conversion.strategy}.experimental_distribute_values_from_function(\n"
        "        lambda context: {tensorflow.nest.map_structure}(\n"
        "            lambda t: t[context.replica_id_in_sync_group :: context.num_replicas_in_sync], batch\n"
        "        )\n"
        "    )"
    )
    conversion.define(script, node, text)
    return name


def same_on_workers(conversion: ByStrategy, script: Script, expr: ast.expr) -> None:
    """Every worker goes through the same data in the same order, and takes its part of each batch."""
    for value in script.values(expr):
        for stage in stages(value) if value.kind == "dataset" else ():
            if stage.name == "shuffle" and stage.script is not None and isinstance(stage.node, ast.Call):
                bound = stage.script.bind(stage.node, "Dataset.shuffle")
                if bound.get("seed") is None:
                    conversion.add(SetKeyword(stage.node, "seed", "0"))
                    conversion.note("shuffles get a seed: every worker has to have the data in the same order")
                    continue
            split = Split()
            if (problem := unsteady(stage, split)) is not None:
                conversion.refuse_problem(problem)
            for _, call in split.seeds:
                conversion.add(SetKeyword(call, "seed", "0"))
