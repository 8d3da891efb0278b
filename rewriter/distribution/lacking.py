"""What programs lack that use Horovod or a strategy already: each thing by name, and where.

Only what can be seen: a program may hide its parts in functions and libraries, and then nothing is said.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..script import Script, Site
from ..training import FITS
from ..values import Value
from .program import Program, is_program
from .writes import for_rank_0, writes

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Lack:
    """What is missing or wrong, and where that shows, if in one place."""

    what: str
    place: str = ""


def names_in(*nodes: ast.AST) -> set[str]:
    """All names and attributes that are mentioned."""
    found = set()
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name):
                found.add(node.id)
    return found


# -- Horovod -----------------------------------------------------------------------------------------------------

_AVERAGE = frozenset(
    "DistributedGradientTape DistributedOptimizer PartialDistributedGradientTape PartialDistributedOptimizer "
    "DistributedAdasumOptimizer allreduce grouped_allreduce allreduce_ reducescatter grouped_reducescatter".split()
)
#: What a program on Horovod calls, and what is wrong where none of it is there.
_PARTS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"init"}), "`hvd.init()` is not called"),
    (_AVERAGE, "nothing averages the gradients (`hvd.DistributedOptimizer` or `hvd.DistributedGradientTape`)"),
    (
        frozenset(
            "BroadcastGlobalVariablesCallback BroadcastGlobalVariablesHook broadcast_variables broadcast_object "
            "broadcast_global_variables KerasState TensorFlowKerasState TensorFlowState broadcast bcast".split()
        ),
        "nothing gives every rank the same weights at the start (`BroadcastGlobalVariablesCallback`)",
    ),
    (frozenset({"local_rank", "visible_device_list"}), "no rank is pinned to a GPU of its own (`hvd.local_rank()`)"),
    (frozenset({"size"}), "the data is not split over the ranks (`hvd.size()` is never asked for)"),
    (frozenset({"rank"}), "every rank writes the same files (`hvd.rank()` is never asked for)"),
)


def by_horovod(program: Program) -> Iterator[Lack]:
    if any(re.search(r"\bhorovod[. ](spark|ray)\b", script.source.text) for script in program.scripts):
        return  # which train what they are given
    mentioned = names_in(*(script.tree for script in program.scripts))
    trains = program.ways and is_program(program.script) and mentioned & (_AVERAGE | {"init"})
    if any(re.search(r"local_rank\(\) *== *0", script.source.text) for script in program.scripts):
        mentioned.add("rank")  # one rank of each host writes
    for names, what in _PARTS if trains else ():
        if not names & mentioned:
            yield Lack(what)
    if mentioned & _AVERAGE:
        yield from _optimizers(program)
        yield from _own_steps(program)
        yield from _tapes(program)
    yield from _compiled(program)
    yield from _decisions(program)
    if "rank" in mentioned:
        yield from _writes(program)
    if "size" in mentioned:
        yield from _split(program)
        yield from _rates(program)


def _is_averaging(script: Script, node: ast.expr) -> bool:
    """Whether an optimizer averages, or what it is cannot be told."""
    values = script.values(node)
    return not values or any(_averages(value) for value in values)


def _averages(value: Value, depth: int = 3) -> bool:
    if value.kind == "constant":
        return not isinstance(value.literal, str)
    if value.kind != "optimizer" or "Distributed" in value.name:
        return True
    node, script = value.node, value.script
    if not isinstance(node, ast.Call) or script is None:
        return True
    inside = [*node.args, *(k.value for k in node.keywords)]
    nested = [v for e in inside for v in script.values(e) if v.kind == "optimizer" or "Distributed" in v.name]
    return depth > 0 and any(_averages(v, depth - 1) for v in nested)


def _optimizers(program: Program) -> Iterator[Lack]:
    """A `compile` that is given an optimizer as it is."""
    keras3 = program.script.target.keras == 3
    for site in program.sites("compile"):
        optimizer = site.arguments.get("optimizer")
        if optimizer is None or not any(m.kind == "model" for m in site.models) or not _is_trained(program, site):
            continue
        if any(map(_has_own_step, site.models)):
            continue
        place = site.script.at(optimizer)
        if not _is_averaging(site.script, optimizer):
            yield Lack("this `compile` is given an optimizer that averages nothing", place)
        elif keras3 and any("horovod" in v.name for v in site.script.values(optimizer)):
            yield Lack("`hvd.DistributedOptimizer` averages nothing under Keras 3, without an error", place)


def _is_trained(program: Program, compiled: Site) -> bool:
    """Whether a `fit` of the program may train what is compiled here."""
    models = {m.node for m in compiled.models}
    return any(models & {m.node for m in fit.models} for fit in program.sites(*FITS, "train_on_batch"))


def _has_own_step(model: Value) -> bool:
    cls = model.cls
    if cls is None or cls.script is None or not isinstance(cls.node, ast.ClassDef):
        return False
    return cls.script.method(cls.node, "train_step") is not None


def _own_steps(program: Program) -> Iterator[Lack]:
    for way in program.ways:
        if way.kind != "train_step":
            continue
        cls = next(way.script.enclosing(way.node, ast.ClassDef), way.node)
        names = names_in(cls)
        by_hand = {"gradient"} < names & {"gradient", "apply_gradients", "apply"}
        if by_hand and not names & (_AVERAGE - {"DistributedOptimizer"}):
            what = "this `train_step` applies gradients that nothing averages, whatever `compile` is given"
            yield Lack(f"{what} (`hvd.DistributedGradientTape`)", way.script.at(way.node))


def _tapes(program: Program) -> Iterator[Lack]:
    """A tape whose gradients an optimizer applies, with nothing in between."""
    for way in program.ways:
        call, script = way.node, way.script
        if way.kind != "tape" or not isinstance(call, ast.Call) or script.called(call) != "tensorflow.GradientTape":
            continue
        around: ast.AST = next(script.enclosing(call, *_FUNCTIONS), script.tree)
        item = script.parents.get(call)
        name = item.optional_vars if isinstance(item, ast.withitem) else None
        if not isinstance(name, ast.Name) or names_in(around) & (_AVERAGE - {"DistributedOptimizer"}):
            continue
        taken = [
            node
            for node in ast.walk(around)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "gradient"
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == name.id
        ]
        given = {n for gradient in taken for n in _names_given(script, gradient)}
        for node in (n for n in ast.walk(around) if isinstance(n, ast.Call)):
            if not (isinstance(node.func, ast.Attribute) and node.func.attr == "apply_gradients" and node.args):
                continue
            if any(gradient in set(ast.walk(node)) for gradient in taken) or given & names_in(*node.args):
                what = "the gradients of this tape are applied as each rank has them (`hvd.DistributedGradientTape`)"
                yield Lack(what, script.at(call))
                break


def _names_given(script: Script, node: ast.AST) -> set[str]:
    statement = script.statement(node)
    return names_in(*statement.targets) if isinstance(statement, ast.Assign) else set()


def _compiled(program: Program) -> Iterator[Lack]:
    """XLA cannot compile Horovod's operations, unless it is told that it can."""
    if any("HOROVOD_ENABLE_XLA_OPS" in script.source.text for script in program.scripts):
        return
    for script, call in program.calls():
        jit = next((k.value for k in call.keywords if k.arg in ("jit_compile", "experimental_compile")), None)
        if jit is None or script.constant(jit) is not True:
            continue
        around = next(script.enclosing(call, ast.FunctionDef), None)
        decorated = around if isinstance(around, ast.FunctionDef) and _decorates(call, around) else None
        is_compile = isinstance(call.func, ast.Attribute) and call.func.attr == "compile"
        if is_compile or (decorated and names_in(decorated) & (_AVERAGE | {"apply_gradients"})):
            yield Lack("`jit_compile=True` does not go with Horovod's operations", script.at(jit))


def _decorates(call: ast.Call, function: ast.FunctionDef) -> bool:
    return any(call in set(ast.walk(decorator)) for decorator in function.decorator_list)


_DECIDES = ("EarlyStopping", "ReduceLROnPlateau")


def _decisions(program: Program) -> Iterator[Lack]:
    for site in program.sites(*FITS):
        expr = site.arguments.get("callbacks")
        found = list(_callbacks(site.script, expr)) if expr is not None else []
        names = [name for _, _, name in found]
        average = names.index("MetricAverageCallback") if "MetricAverageCallback" in names else len(names)
        for script, node, name in found[:average] if "" not in names else ():
            if name in _DECIDES:
                how = "stands before `MetricAverageCallback`" if average < len(names) else "sees metrics of one rank"
                what = f"`{name}` {how}: the ranks may decide differently, and wait for each other"
                yield Lack(what, script.at(node))


def _callbacks(script: Script, expr: ast.expr) -> Iterator[tuple[Script, ast.AST, str]]:
    """The callbacks in a list, in order, by the names of their classes; "" for what is not seen."""
    if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.Add):
        yield from _callbacks(script, expr.left)
        yield from _callbacks(script, expr.right)
        return
    for value in script.values(expr):
        node, owner = value.node, value.script
        if owner is None or not isinstance(node, ast.List | ast.Tuple):
            yield script, expr, ""
            continue
        for element in node.elts:
            yield from _callback(owner, element)
        for other, use in owner.flow(node):
            method = other.parents.get(use)
            if isinstance(method, ast.Attribute) and method.value is use:
                call = other.parents.get(method)
                if method.attr == "append" and isinstance(call, ast.Call) and call.args:
                    yield from _callback(other, call.args[0])
                else:
                    yield other, use, ""
            elif isinstance(method, ast.AugAssign):
                yield other, use, ""


def _callback(script: Script, element: ast.expr) -> Iterator[tuple[Script, ast.AST, str]]:
    for value in script.values(element):
        if value.script is not None and isinstance(value.node, ast.Call):
            yield value.script, value.node, value.name.rpartition(".")[2]
        else:
            yield script, element, ""


# -- what rank 0 alone should do

#: A condition about which rank this is, or a name for one.
_RANK = re.compile(r"rank|master|chief|is_main|is_root|primary|worker|leader|hvd|horovod", re.IGNORECASE)
_WRITERS = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "BackupAndRestore")
#: How many of the writes are named.
_MOST = 3


def _writes(program: Program) -> Iterator[Lack]:
    found: list[tuple[Script, ast.Call]] = []
    guarded = for_rank_0(program)
    for statement, script in guarded.statements.items():
        calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and writes(script, n) == "file"]
        found += [(script, call) for call in calls[:1] if not re.search(r"mkdir|remove|rmtree", script.text(call.func))]
    for script, call in program.calls():
        if script.called(call).rpartition(".")[2] in _WRITERS and any(
            v.kind == "callback" for v in script.values(call)
        ):
            found.append((script, call))
    open_ones = [(script, call) for script, call in found if not _is_for_one(script, call, 3)]
    for script, call in open_ones[:_MOST]:
        yield Lack(f"`{script.text(call.func)}` writes on every rank", script.at(call))


def _is_for_one(script: Script, node: ast.AST, depth: int) -> bool:
    """Whether only one rank comes here, or each writes somewhere else."""
    statement = script.statement(node)
    if _RANK.search(ast.unparse(statement)) or _path_is_told_by_rank(script, node):
        return True
    inner: ast.AST = node
    for around in script.enclosing(node, ast.If, ast.IfExp, ast.BoolOp, *_FUNCTIONS):
        if isinstance(around, _FUNCTIONS):
            if _leaves_early(around, inner):
                return True
            if not depth or not isinstance(around, ast.FunctionDef):
                return False
            callers = script.project.calls_of(around, script)
            return not callers or all(_is_for_one(other, call, depth - 1) for other, call, _ in callers)
        test = around.test if isinstance(around, ast.If | ast.IfExp) else around
        if _RANK.search(ast.unparse(test)) or _told_by_rank(script, test):
            return True
        inner = around
    return _leaves_early(script.tree, node)


def _told_by_rank(script: Script, test: ast.AST) -> bool:
    """Whether a condition comes from the rank: `save = hvd.rank() == 0`; one that is not seen may."""
    for name in [n for n in ast.walk(test) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]:
        bindings = script.names.reaching(name)
        if not bindings or any(b.value is None or _RANK.search(ast.unparse(b.value)) for b in bindings):
            return True
    return False


def _path_is_told_by_rank(script: Script, node: ast.AST) -> bool:
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return any(
        b.value is not None and _RANK.search(ast.unparse(b.value))
        for name in names
        for b in script.names.reaching(name)
    )


def _leaves_early(around: ast.AST, node: ast.AST) -> bool:
    """`if hvd.rank() != 0: return` above it."""
    line = getattr(node, "lineno", 0)
    return any(
        isinstance(n, ast.If)
        and n.lineno < line
        and _RANK.search(ast.unparse(n.test))
        and any(isinstance(s, ast.Return | ast.Continue | ast.Raise) or "exit" in ast.unparse(s) for s in n.body)
        for n in ast.walk(around)
    )


# -- what the number of ranks is used for

Use = Literal["scales", "splits", "tells", "unseen"]
_LOADS_DATA = re.compile(
    r".*\.(load_data|TFRecordDataset|TextLineDataset|list_files|\w+_dataset_from_directory|flow_from_directory"
    r"|make_csv_dataset|read_csv)$|tensorflow_datasets\.load$|numpy\.load$"
)


def _uses(program: Program, *asked: str) -> Iterator[Use]:
    for script, call in program.calls():
        name = script.called(call)
        if name.startswith("horovod") and name.rpartition(".")[2] in asked:
            yield _use(script, call)


def _use(script: Script, node: ast.AST) -> Use:
    inner = node
    for around in script.enclosing(node, ast.AST):
        match around:
            case ast.BinOp(op=ast.Mult() | ast.Pow()):
                return "scales"
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
                return "tells"
            case ast.BinOp(op=ast.Div() | ast.FloorDiv() | ast.Mod()) | ast.Subscript() | ast.Slice():
                return "splits"
            case ast.Compare() | ast.JoinedStr() | ast.Assert() | ast.Expr():
                return "tells"
            case ast.Call(func=func) if inner is not func:
                name = script.called(around)
                if name in ("builtins.print", "builtins.str", "builtins.format") or "logg" in script.text(func):
                    return "tells"
                return "splits" if isinstance(func, ast.Attribute) and func.attr == "shard" else "unseen"
            case ast.stmt():
                return "unseen"
        inner = around
    return "unseen"


def _loads_data(program: Program) -> bool:
    return any(_LOADS_DATA.match(script.called(call)) for script, call in program.calls())


def _split(program: Program) -> Iterator[Lack]:
    if not program.ways or not _loads_data(program):
        return
    if not set(_uses(program, "size", "rank")) & {"splits", "unseen"}:
        way = program.ways[0]
        yield Lack("every rank trains on all of the data, for as many steps as one would", way.script.at(way.node))


def _rates(program: Program) -> Iterator[Lack]:
    """A remark, more than a lack: rates that stand in the program as numbers."""
    if not _loads_data(program) or set(_uses(program, "size")) & {"scales", "unseen"}:
        return
    for script, call in program.calls():
        values = script.values(call)
        if not any(v.kind == "optimizer" and v.node is call for v in values) or "horovod" in script.called(call):
            continue
        rate = next((k.value for k in call.keywords if k.arg in ("lr", "learning_rate")), None)
        rate = rate or (call.args[0] if call.args else None)
        if rate is not None and isinstance(script.constant(rate), int | float):
            yield Lack("the learning rate is that of one process (often times `hvd.size()`)", script.at(rate))


# -- strategies ----------------------------------------------------------------------------------------------------

_RUNS = ("run", "experimental_run_v2", "experimental_run")


def by_strategy(program: Program) -> Iterator[Lack]:
    mentioned = names_in(*(script.tree for script in program.scripts))
    keywords = {k.arg for _, call in program.calls() for k in call.keywords}
    if not keywords & {"train_distribute", "eval_distribute", "distribution_strategy", "distribute"}:
        yield from _scopes(program)  # else an Estimator or a library is given the strategy
    for script, call in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in _RUNS and _is_strategy(script, call.func.value):
            yield from _step(program, script, call, mentioned)


def _is_strategy(script: Script, node: ast.expr) -> bool:
    return any(v.name.endswith(("Strategy", "StrategyV1", "get_strategy")) for v in script.values(node))


def _in_scope(script: Script, node: ast.AST, depth: int = 4) -> bool:
    """Whether code runs under `strategy.scope()`, as far as that can be seen."""
    for around in script.enclosing(node, ast.With, *_FUNCTIONS):
        if isinstance(around, ast.With):
            if any("scope" in ast.unparse(item.context_expr) for item in around.items):
                return True
            continue
        if not depth or not isinstance(around, ast.FunctionDef):
            return True
        callers = script.project.calls_of(around, script)
        return not callers or any(_in_scope(other, call, depth - 1) for other, call, _ in callers)
    return False


def _scopes(program: Program) -> Iterator[Lack]:
    """Models of a program that makes none of them under the scope, or compiles them there, and `compile` itself.

    A program may well train other models without the strategy.
    """
    keras3 = program.script.target.keras == 3
    outside: list[Lack] = []
    scoped = False
    for site in program.sites("compile"):
        if not any(m.kind == "model" for m in site.models) or not _is_trained(program, site):
            continue
        compiled = _in_scope(site.script, site.call)
        for model in site.models:
            made, owner = model.node, model.script
            if owner is None or not isinstance(made, ast.Call):
                scoped = True
            elif _in_scope(owner, made):
                scoped = True
                if keras3 and not compiled:
                    what = "this `compile` stands outside of `strategy.scope()`, where Keras 3 fails"
                    yield Lack(what, site.script.at(site.call))
            else:
                lack = Lack("this model is made outside of `strategy.scope()`", owner.at(made))
                if compiled:
                    yield lack
                else:
                    outside.append(lack)
    if not scoped:
        yield from outside


_SCALED = frozenset(
    "compute_average_loss num_replicas_in_sync all_reduce ReduceOp experimental_aggregate_gradients reduction "
    "skip_gradients_aggregation global_batch_size".split()
)
_DISTRIBUTED = frozenset(
    "experimental_distribute_dataset distribute_dataset distribute_datasets_from_function "
    "experimental_distribute_datasets_from_function experimental_make_numpy_iterator make_dataset_iterator "
    "experimental_distribute_values_from_function make_input_fn_iterator "
    "experimental_make_numpy_dataset".split()
)


def _step(program: Program, script: Script, call: ast.Call, mentioned: set[str]) -> Iterator[Lack]:
    """A step that `strategy.run` runs on every replica."""
    if not call.args:
        return
    step = next((v for v in script.values(call.args[0]) if isinstance(v.node, ast.FunctionDef)), None)
    if step is None or step.script is None or not isinstance(step.node, ast.FunctionDef):
        return
    body, owner = step.node, step.script
    names = names_in(body)
    if "apply_gradients" not in names and "minimize" not in names:
        return
    data = next((k.value for k in call.keywords if k.arg == "args"), call.args[1] if len(call.args) > 1 else None)
    if data is not None and not mentioned & _DISTRIBUTED and not _makes_own_data(body):
        what = "every replica trains on the same batch: its data is not distributed"
        yield Lack(f"{what} (`strategy.experimental_distribute_dataset`)", script.at(call))
    if mentioned & _SCALED:
        return
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and owner.called(node) in (
            "tensorflow.reduce_mean",
            "tensorflow.math.reduce_mean",
        ):
            what = "the loss is the mean over a replica's part, and gradients are summed over the replicas"
            yield Lack(f"{what} (`tf.nn.compute_average_loss`)", owner.at(node))
            return


def _makes_own_data(step: ast.FunctionDef) -> bool:
    """`next(iterator)` in the step."""
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "next" for n in ast.walk(step))
