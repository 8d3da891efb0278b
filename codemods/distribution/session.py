"""A program that builds a graph and trains it in TensorFlow 1 sessions, also monitored ones."""

from __future__ import annotations

import ast

from rewriter.distribution.feeds import Feeds, Unsplit
from rewriter.distribution.pipelines_v1 import pipeline_of
from rewriter.distribution.program import Way
from rewriter.distribution.steps import initialises, kind_of_run, only_looks, updates
from rewriter.distribution.writes import writes
from rewriter.edits import Chain, Insert, Prepend, SetKeyword, Wrap
from rewriter.graphs.graph_mode import Optimizer, configs, is_eager, optimizers, starts, v1
from rewriter.script import Script
from rewriter.values import Value

from . import data
from .conversion import Conversion, operand

_SESSIONS = frozenset({"Session", "InteractiveSession", "MonitoredTrainingSession"})
KINDS = ("session", "monitored")
#: What trains, reads or saves in ways that are not followed, and what it is called.
_STRANGE = {
    "tensorflow.train.QueueRunner": "queues",
    "tensorflow.train.start_queue_runners": "queues",
    "tensorflow.train.add_queue_runner": "queues",
    "tensorflow.train.Coordinator": "queues",
    "tensorflow.train.Supervisor": "a `Supervisor`",
    "tensorflow.train.Server": "a cluster of parameter servers",
    "tensorflow.train.replica_device_setter": "a cluster of parameter servers",
    "tensorflow.train.import_meta_graph": "a graph that is read from a file",
    "tensorflow.import_graph_def": "a graph that is read from a file",
    "tensorflow.py_func": "operations that are Python functions",
    "tensorflow.variables_initializer": "variables that are set one by one",
    "tensorflow.initialize_variables": "variables that are set one by one",
    "tensorflow.load_op_library": "operations of a library of its own",
}
#: Schedules: the positional parameters, and those that count steps.
_DECAYS = {
    "exponential_decay": ("learning_rate", "global_step", "decay_steps"),
    "natural_exp_decay": ("learning_rate", "global_step", "decay_steps"),
    "inverse_time_decay": ("learning_rate", "global_step", "decay_steps"),
    "polynomial_decay": ("learning_rate", "global_step", "decay_steps"),
    "cosine_decay": ("learning_rate", "global_step", "decay_steps"),
}
_OTHER_DECAYS = frozenset(
    "piecewise_constant piecewise_constant_decay cosine_decay_restarts linear_cosine_decay "
    "noisy_linear_cosine_decay".split()
)
_DEFAULTS = {"tensorflow.train.AdamOptimizer": "0.001", "tensorflow.train.AdadeltaOptimizer": "0.001"}


def convert(conversion: Conversion, ways: list[Way]) -> None:
    """Convert every optimizer, session and training step of the program."""
    if conversion.module == "horovod.tensorflow" and not conversion.pins:
        return  # its plain and its monitored sessions are seen together
    conversion.module, conversion.pins = "horovod.tensorflow", False
    _strange(conversion)
    if conversion.program.trainings or any(w.kind not in ("session", "monitored") for w in conversion.program.ways):
        conversion.refuse(ways[0].script, ways[0].node, "it trains in a session and in other ways too")
    if conversion.refusals:
        return
    made = [o for s in conversion.program.scripts for o in optimizers(s) if o.uses or o.unseen]
    _optimizers(conversion, made)
    for script in conversion.program.scripts:
        for start in starts(script):
            _pin(conversion, script, start.call)
    steps = _steps(conversion)
    _initial(conversion, steps)
    if conversion.refusals:
        return
    _same_origins(conversion, steps)
    _read_back(conversion)
    data.same_order(conversion, [loop for feeds in steps for loop in feeds.loops])
    whole = all(f.whole for f in steps)
    if not whole and any(f.whole for f in steps):
        conversion.refuse(steps[0].script, steps[0].call, "some of its steps see all samples, and some a batch of them")
    if whole:
        for way in conversion.program.ways:
            if way.kind == "monitored":
                reason = "every step sees all samples, and hooks count its steps"
                conversion.refuse(way.script, way.node, reason)
        _means(conversion, steps)
    else:
        _decays(conversion, steps)
        _rates(conversion, made)
    for feeds in steps:
        _split(conversion, feeds)
    if whole:
        conversion.note("every step sees all samples, a part on each rank: steps and learning rates are as they were")
    else:
        conversion.note("effective batch: that of the script on every rank, times the number of ranks in all")
        conversion.note(
            "learning rates are multiplied by the number of ranks, without a warm-up (--no-lr-scaling leaves them)"
            if conversion.scaling
            else "learning rates are as they were (--no-lr-scaling)"
        )
    conversion.note("what is measured on the training data while it trains is measured on the part of rank 0")


def _means(conversion: Conversion, steps: list[Feeds]) -> None:
    """The mean over the ranks is that over all samples where the loss is a mean, but not where it is a sum."""
    for script, call in conversion.program.calls():
        name = script.called(call)
        if name == "tensorflow.reduce_sum":
            axis = script.bind(call, ("input_tensor", "axis")).get("axis") or script.argument(call, "reduction_indices")
            axes = script.constant(axis) if axis is not None else None
            if isinstance(axes, int) and axes != 0:
                continue
            parent = script.parents.get(call)
            divided = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div) and parent.left is call
            if divided and isinstance(parent, ast.BinOp) and any(f.of_part(parent.right) for f in steps):
                continue
        elif name != "tensorflow.nn.l2_loss" and not any(k.arg == "reduction" for k in call.keywords):
            continue
        reason = f"every step sees all samples, and `{script.text(call)}` may sum over them: a rank has a part"
        conversion.refuse(script, call, reason, "take the mean")


def _strange(conversion: Conversion) -> None:
    for script in conversion.program.scripts:
        if why := is_eager(script):
            conversion.refuse(script, script.tree.body[0], why)
        for call in script.calls:
            name = script.called(call)
            what = _STRANGE.get(name)
            if what is None and name.startswith("tensorflow.") and name.endswith(("_batch", "string_input_producer")):
                what = "queues" if ".train." in name else None
            if what is None and name.startswith("tensorflow.contrib.") and "train" in name.rpartition(".")[2]:
                what = f"`{script.text(call.func)}`"
            if (
                what is None
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("finalize", "make_callable")
            ):
                what = f"`{script.text(call.func)}`"
            if isinstance(call.func, ast.Attribute) and call.func.attr == "load" and len(call.args) == 2 and not name:
                what = "variables that are set one by one"
            if what is not None:
                conversion.refuse(script, call, f"the program uses {what}, which is not converted")
        for node in script.all(ast.Attribute):
            if node.attr in ("visible_device_list", "partial_run", "run_step_fn"):
                conversion.refuse(script, node, f"`{script.text(node)}` is set by the program itself")


# -- optimizers ------------------------------------------------------------------------------------------------


def _optimizers(conversion: Conversion, made: list[Optimizer]) -> None:
    known: set[ast.AST] = set()
    for one in made:
        known |= {call for _, call in one.uses}
        if one.unseen:
            conversion.refuse(one.script, one.call, f"not all that is done with this optimizer is seen: {one.unseen}")
        elif not one.name.startswith("tensorflow."):
            conversion.refuse(one.script, one.call, "the optimizer is one of several, or of a class of its own")
        else:
            _average(conversion, one)
    if not made:
        way = conversion.program.ways[0]
        conversion.refuse(way.script, way.node, "no optimizer of TensorFlow is seen: what trains is not known")
    for script, call in conversion.program.calls():
        func = call.func
        updates = isinstance(func, ast.Attribute) and func.attr in ("minimize", "apply_gradients", "compute_gradients")
        if updates and call not in known:
            conversion.refuse(script, call, f"which optimizer `{script.text(func)}` belongs to is not seen")
        elif updates and isinstance(func, ast.Attribute) and (strange := _other_optimizer(script, func.value, made)):
            conversion.refuse(script, call, f"`{script.text(func.value)}` may also be `{strange}`, which is not known")
    gradients = [(s, c) for s, c in conversion.program.calls() if s.called(c) == "tensorflow.gradients"]
    if gradients:
        for script, call in conversion.program.calls():
            assigns = isinstance(call.func, ast.Attribute) and call.func.attr in ("assign_sub", "scatter_sub")
            if assigns or script.called(call) in (
                "tensorflow.assign",
                "tensorflow.assign_sub",
                "tensorflow.assign_add",
            ):
                conversion.refuse(script, call, "variables are assigned beside gradients that are computed by hand")


def _other_optimizer(script: Script, expr: ast.expr, made: list[Optimizer]) -> str:
    """What else may be asked to train here than the optimizers that are seen: those of another library."""
    known = {one.call for one in made} | {one.place for one in made}
    for value in script.values(expr):
        rewrites = value.name.endswith(".enable_mixed_precision_graph_rewrite")
        if value.node not in known and not rewrites and value.kind != "parameter" and isinstance(value.node, ast.Call):
            return (value.script or script).text(value.node.func)
    return ""


def _average(conversion: Conversion, one: Optimizer) -> None:
    """Let the optimizer average its gradients, or the gradients themselves where it is only given them."""
    methods = {c.func.attr for _, c in one.uses if isinstance(c.func, ast.Attribute)}
    if not methods <= {"minimize", "compute_gradients", "apply_gradients", "enable_mixed_precision_graph_rewrite"}:
        conversion.refuse(one.script, one.call, "what trains with this optimizer is not known")
        return
    by_hand: list[tuple[Script, ast.Call]] = []
    for script, call in one.uses:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "apply_gradients":
            origins = _origins(script, call)
            kinds = {kind for kind, _ in origins}
            if len(kinds) != 1:
                conversion.refuse(script, call, "where the gradients that are applied here come from is not seen")
                return
            by_hand += [(script, c) for kind, c in origins if kind == "gradients"]
    if by_hand and methods & {"minimize", "compute_gradients"}:
        conversion.refuse(one.script, one.call, "the optimizer computes some gradients, and is given others")
        return
    if "enable_mixed_precision_graph_rewrite" in methods and by_hand:
        conversion.refuse(one.script, one.call, "the loss is scaled for gradients that it is only given")
        return
    for script, call in by_hand:
        hvd = conversion.hvd(script, call)
        g = conversion.free_name(script, "g", "gradient")
        conversion.add(Wrap(call, f"[{g} if {g} is None else {hvd}.allreduce({g}) for {g} in ...]"))
    if not by_hand:
        conversion.add(Wrap(one.call, f"{conversion.hvd(one.script, one.call)}.DistributedOptimizer(...)"))


def _origins(script: Script, call: ast.Call) -> set[tuple[str, ast.Call]]:
    """The calls that compute what `apply_gradients` is given."""
    found: set[tuple[str, ast.Call]] = set()
    todo: list[ast.AST] = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "grads_and_vars")]
    seen: set[ast.AST] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                if script.called(inner) == "tensorflow.gradients":
                    found.add(("gradients", inner))
                elif isinstance(inner.func, ast.Attribute) and inner.func.attr == "compute_gradients":
                    found.add(("compute", inner))
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                todo += [b.part or b.value for b in script.names.reaching(inner) if b.value is not None]
            elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Load):
                todo += [v.node for v in script.values(inner) if v.script is script and isinstance(v.node, ast.Call)]
    return found


# -- learning rates --------------------------------------------------------------------------------------------


def _rates(conversion: Conversion, made: list[Optimizer]) -> None:
    if not conversion.scaling:
        return
    for one in made:
        script, call = one.script, one.call
        size = f"{conversion.hvd(script, call)}.size()"
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            conversion.refuse(script, call, "the learning rate may be given through `*` or `**`")
            continue
        rate = call.args[0] if call.args else script.argument(call, "learning_rate")
        if rate is not None:
            conversion.add(Wrap(rate, f"{operand(rate)} * {size}"))
        elif one.name in _DEFAULTS:
            conversion.add(SetKeyword(call, "learning_rate", f"{_DEFAULTS[one.name]} * {size}"))
        else:
            conversion.refuse(script, call, "which learning rate the optimizer has is not seen")


def _decays(conversion: Conversion, steps: list[Feeds]) -> None:
    """Schedules count the steps of one rank, of which there are fewer."""
    for script, call in conversion.program.calls():
        name = script.called(call)
        last = name.rpartition(".")[2]
        if not name.startswith("tensorflow."):
            continue
        if last in _OTHER_DECAYS:
            conversion.refuse(script, call, f"the numbers of steps in `{script.text(call.func)}` are not converted")
        elif last in _DECAYS:
            number = script.bind(call, _DECAYS[last]).get("decay_steps")
            if number is None:
                conversion.refuse(script, call, f"after how many steps `{last}` is is not seen")
            elif not any(f.script is script and f.of_part(number) for f in steps):
                conversion.add(Wrap(number, f"{operand(number)} // {conversion.hvd(script, number)}.size()"))
        elif last in ("get_global_step", "get_or_create_global_step", "create_global_step"):
            for owner, use in script.flow(call):
                parent = owner.parents.get(use)
                if isinstance(parent, ast.Compare | ast.BinOp):
                    conversion.refuse(owner, parent, f"`{owner.text(parent)}` counts the steps of one rank")


# -- sessions --------------------------------------------------------------------------------------------------


def _pin(conversion: Conversion, script: Script, call: ast.Call) -> None:
    """A GPU of its own for every process."""
    start = next(s for s in starts(script) if s.call is call)
    if start.kind not in _SESSIONS:
        conversion.refuse(script, call, f"`{script.text(call.func)}` is not converted")
        return
    hvd = conversion.hvd(script, call)
    options = f"{v1(script, call)}.GPUOptions(visible_device_list=str({hvd}.local_rank()))"
    found = configs(start)
    if isinstance(found, str):
        conversion.refuse(script, call, found)
        return
    if not found:
        conversion.add(SetKeyword(call, "config", f"{v1(script, call)}.ConfigProto(gpu_options={options})"))
    for value in found:
        _choose(conversion, value, hvd)
    if start.kind == "MonitoredTrainingSession":
        _monitored(conversion, script, call)


def _choose(conversion: Conversion, value: Value, hvd: str) -> None:
    owner, config = value.script, value.node
    assert owner is not None and isinstance(config, ast.Call)
    hvd = conversion.hvd(owner, config)
    if config.args or any(k.arg is None for k in config.keywords):
        conversion.refuse(owner, config, "what the configuration says of GPUs is not seen")
        return
    given = owner.argument(config, "gpu_options")
    if given is None:
        text = f"{v1(owner, config)}.GPUOptions(visible_device_list=str({hvd}.local_rank()))"
        conversion.add(SetKeyword(config, "gpu_options", text))
        return
    for found in owner.values(given):
        if found.name != "tensorflow.GPUOptions" or not isinstance(found.node, ast.Call) or found.script is None:
            conversion.refuse(owner, given, f"`{owner.text(given)}` is made where it is not seen")
            return
        if any(k.arg in ("visible_device_list", None) for k in found.node.keywords) or found.node.args:
            conversion.refuse(found.script, found.node, "it chooses GPUs itself, the same in every process")
            return
        conversion.add(SetKeyword(found.node, "visible_device_list", f"str({hvd}.local_rank())"))


_HOOKS = frozenset({"StopAtStepHook", "LoggingTensorHook", "NanTensorHook", "StepCounterHook"})


def _monitored(conversion: Conversion, script: Script, call: ast.Call) -> None:
    """Hooks for the first weights and the number of steps; checkpoints by rank 0."""
    hvd = conversion.hvd(script, call)
    own = f"{hvd}.BroadcastGlobalVariablesHook(0)"
    if call.args or any(k.arg is None for k in call.keywords):
        conversion.refuse(script, call, "the arguments of the session are not given by name")
        return
    for keyword in call.keywords:
        if keyword.arg in ("checkpoint_dir", "summary_dir"):
            test = f"{hvd}.rank() == 0"
            if not (isinstance(keyword.value, ast.Constant) and keyword.value.value is None):
                conversion.add(Wrap(keyword.value, f"{operand(keyword.value)} if {test} else None"))
        elif keyword.arg not in (
            "config", "hooks", "save_checkpoint_secs", "save_summaries_steps", "save_summaries_secs",
            "save_checkpoint_steps", "log_step_count_steps", "stop_grace_period_secs",
        ):  # fmt: skip
            conversion.refuse(script, keyword.value, f"`{keyword.arg}` of the session is not converted")
    hooks = script.argument(call, "hooks")
    if hooks is None:
        conversion.add(SetKeyword(call, "hooks", f"[{own}]"))
        return
    values = script.values(hooks)
    lists = [v.node for v in values if isinstance(v.node, ast.List) and v.script is script]
    if len(values) != 1 or len(lists) != 1:
        conversion.refuse(script, hooks, "the hooks are not one list that is written out")
        return
    if not isinstance(hooks, ast.List):
        grown = [
            load
            for load in ast.walk(script.tree)
            if isinstance(load, ast.Attribute)
            and load.attr in ("append", "extend", "insert")
            and ast.unparse(load.value) == ast.unparse(hooks)
        ]
        if grown:
            conversion.refuse(script, grown[0], "the hooks are not one list that is written out")
            return
    for element in lists[0].elts:
        _hook(conversion, script, element)
    conversion.add(Prepend(lists[0], own) if lists[0].elts else Wrap(lists[0], f"[{own}]"))


def _hook(conversion: Conversion, script: Script, element: ast.expr) -> None:
    values = script.values(element)
    call = values[0].node if len(values) == 1 else None
    name = values[0].name.rpartition(".")[2] if values else ""
    owner = values[0].script if values else None
    if name not in _HOOKS or not isinstance(call, ast.Call) or owner is None:
        conversion.refuse(script, element, f"what the hook `{script.text(element)}` does on several ranks is not known")
        return
    if name == "NanTensorHook" and owner.argument(call, "fail_on_nan_loss") is not None:
        conversion.refuse(owner, call, "`NanTensorHook` may end the training on one rank before the others")
    if name == "StopAtStepHook":
        arguments = owner.bind(call, ("num_steps", "last_step"))
        for parameter in ("num_steps", "last_step"):
            number = arguments.get(parameter)
            if number is not None and not (isinstance(number, ast.Constant) and number.value is None):
                conversion.add(Wrap(number, f"{operand(number)} // {conversion.hvd(owner, number)}.size()"))


# -- first weights ---------------------------------------------------------------------------------------------


def _initial(conversion: Conversion, steps: list[Feeds]) -> None:
    """After the variables are set or restored, all ranks take those of rank 0."""
    places: dict[ast.stmt, tuple[Script, str]] = {}
    for script, call in conversion.program.calls():
        if kind_of_run(script, call) == "init" and initialises(script, call):
            assert isinstance(call.func, ast.Attribute)
            runs = call.func.attr == "run" and (call.args or call.keywords)
            text = ast.unparse(call.func.value) if runs else ""
            direct = any(
                v.name.startswith("tensorflow.") and "initializ" in v.name for v in script.values(call.func.value)
            )
            _place(conversion, places, script, call, "" if direct else text)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "restore":
            if not any(v.name == "tensorflow.train.Saver" for v in script.values(call.func.value)) or not call.args:
                conversion.refuse(script, call, f"what `{script.text(call.func)}` restores is not seen")
                continue
            if not all(f.script is script and f.function is script.function_of(call) for f in steps):
                reason = "it restores variables in another function than it trains in"
                conversion.refuse(script, call, reason, "share the first weights by hand")
                continue
            if any(f.call.lineno < call.lineno for f in steps):
                reason = "it restores what rank 0 alone has written, on every rank"
                conversion.refuse(script, call, reason, "restore in a program of its own")
                continue
            _place(conversion, places, script, call, ast.unparse(call.args[0]))
    monitored = [w for w in conversion.program.ways if w.kind == "monitored"]
    plain = [s for o in conversion.program.scripts for s in starts(o) if s.kind != "MonitoredTrainingSession"]
    if monitored and plain:
        conversion.refuse(plain[0].script, plain[0].call, "some of its sessions are monitored, and some are not")
    if not places and not monitored:
        way = conversion.program.ways[0]
        reason = "where the variables get their first values is not seen"
        conversion.refuse(way.script, way.node, reason, "run `tf.global_variables_initializer()` in the session")
    for start in plain:
        graph = start.call.args[1] if len(start.call.args) > 1 else start.script.argument(start.call, "graph")
        if graph is not None and not isinstance(start.script.parents.get(start.call), ast.withitem):
            reason = "the session has a graph of its own, and is not opened by `with`"
            conversion.refuse(start.script, start.call, reason)
    for statement, (script, session) in places.items():
        hvd = conversion.hvd(script, statement)
        op = f"{hvd}.broadcast_global_variables(0)"
        conversion.add(Insert(statement, f"{session}.run({op})" if session else f"{op}.run()"))


def _place(
    conversion: Conversion, places: dict[ast.stmt, tuple[Script, str]], script: Script, call: ast.Call, session: str
) -> None:
    statement = script.statement(call)
    function = script.function_of(call)
    for outer in script.enclosing(call, ast.If, ast.Try, ast.For, ast.While):
        if script.function_of(outer) is not function or not isinstance(outer, ast.stmt):
            break
        if isinstance(outer, ast.If) and _is_guard(outer):
            break
        if isinstance(outer, ast.If):
            held = set(ast.walk(outer))
            if any(kind_of_run(script, c) in ("train", "unknown") for c in script.calls if c in held):
                conversion.refuse(script, call, "the variables are set under a condition that also trains")
                return
            statement = outer
        elif isinstance(outer, ast.Try) and outer.handlers:
            conversion.refuse(script, call, "the variables are set where an error is caught")
            return
    if any(isinstance(n, ast.Return) for n in ast.walk(statement)):
        conversion.refuse(script, call, "the variables are set where the function may return")
        return
    places.setdefault(statement, (script, session))


def _is_guard(node: ast.If) -> bool:
    from rewriter.scopes import is_main_guard

    return is_main_guard(node)


# -- steps and their data --------------------------------------------------------------------------------------


def _steps(conversion: Conversion) -> list[Feeds]:
    found: list[Feeds] = []
    seen = updates(conversion.program)
    for script, call in conversion.program.calls():
        kind = kind_of_run(script, call)
        if kind == "unknown" and not only_looks(script, call, seen):
            reason = f"whether `{script.text(call)}` trains is not seen"
            conversion.refuse(script, call, reason)
        if kind != "train":
            continue
        statement = script.statement(call)
        if isinstance(statement, ast.Expr) and statement.value is not call:
            conversion.refuse(script, call, "a training step is made inside of another call")
        try:
            found.append(Feeds(conversion.program, script, call))
        except Unsplit as stays:
            conversion.refuse(script, stays.node, stays.reason, stays.hint)
    if conversion.refusals:
        return found
    for feeds in found:
        try:
            feeds.settle(found)
        except Unsplit as stays:
            conversion.refuse(feeds.script, stays.node, stays.reason, stays.hint)
    _agree(conversion, found)
    if not found:
        way = conversion.program.ways[0]
        conversion.refuse(way.script, way.node, "no training step is seen in its sessions")
    unfed = [f for f in found if not f.fed]
    if unfed and len(unfed) == len(found):
        _pipeline(conversion, unfed[0])
    elif unfed:
        conversion.refuse(unfed[0].script, unfed[0].call, "some training steps are fed, and some are not")
    return found


def _agree(conversion: Conversion, steps: list[Feeds]) -> None:
    """Steps in one loop go through the data together."""
    for one in steps:
        for other in steps:
            if one.loops[:1] == other.loops[:1] and {*one.counted, *one.rows} != {*other.counted, *other.rows}:
                reason = "one step of this loop goes through the data, and another one counts"
                conversion.refuse(other.script, other.call, reason)


def _pipeline(conversion: Conversion, step: Feeds) -> None:
    found = pipeline_of(conversion.program)
    if isinstance(found, tuple):
        node, reason, hint = found
        conversion.refuse(step.script, node or step.call, reason, hint)
        return
    data.same_data(conversion, found.script, [found.node], noise=step.noise)
    hvd = conversion.hvd(found.script, found.node)
    conversion.add(Chain(found.node, f"shard({hvd}.size(), {hvd}.rank())"))


def _same_origins(conversion: Conversion, steps: list[Feeds]) -> None:
    """Every rank makes the same arrays before it takes its part of them."""
    for feeds in steps:
        nodes: list[ast.AST] = [r.binding.value for r in feeds.roots.values() if r.binding.value is not None]
        for r in feeds.roots.values():
            if isinstance(r.binding.node, ast.arg):
                callers = feeds.script.project.calls_of(feeds.function, feeds.script)  # type: ignore[arg-type]
                nodes += [a for _, c, _ in callers for a in [*c.args, *(k.value for k in c.keywords)]]
        data.same_data(conversion, feeds.script, nodes, noise=feeds.noise)


def _read_back(conversion: Conversion) -> None:
    """A file that rank 0 alone writes cannot be read by the others."""
    written: dict[str, tuple[Script, ast.Call]] = {}
    read: set[str] = set()
    for script, call in conversion.program.calls():
        if script.called(call) in ("builtins.open", "io.open", "gzip.open") and call.args:
            if writes(script, call):
                written.setdefault(ast.unparse(call.args[0]), (script, call))
            else:
                read.add(ast.unparse(call.args[0]))
    for path, (script, call) in written.items():
        if path in read:
            conversion.refuse(script, call, f"`{path}` is written and read again: rank 0 alone would have it")


def _split(conversion: Conversion, feeds: Feeds) -> None:
    script = feeds.script
    for root in feeds.roots.values():
        name = root.binding.name
        hvd = conversion.hvd(script, root.binding.node)
        size = f"{hvd}.size()"
        text = f"{name} = {name}[{hvd}.rank():{feeds.length_of(root.binding)} // {size} * {size}:{size}]"
        if root.binding in feeds.places:
            conversion.add(Insert(feeds.places[root.binding], text))
        elif isinstance(root.binding.node, ast.arg):
            function = feeds.function
            assert isinstance(function, ast.FunctionDef)
            first = function.body[0]
            is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            conversion.add(Insert(first, text, after=is_text))
        else:
            conversion.add(Insert(script.statement(root.binding.node), text))
    for stop in feeds.rows:
        conversion.add(Wrap(stop, f"{operand(stop)} // {conversion.hvd(script, stop)}.size()"))
    for stop in feeds.counted:
        size = f"{conversion.hvd(script, stop)}.size()"
        if feeds.from_one is stop:
            if isinstance(stop, ast.BinOp) and isinstance(stop.op, ast.Add) and script.integer(stop.right) == 1:
                conversion.add(Wrap(stop.left, f"{operand(stop.left)} // {size}"))
            else:
                conversion.add(Wrap(stop, f"({operand(stop)} - 1) // {size} + 1"))
        else:
            named = _at_its_name(script, stop)
            conversion.add(Wrap(named, f"{operand(named)} // {size}"))
    for call in feeds.drawn:
        hvd = conversion.hvd(script, call)
        part = conversion.free_name(script, "part", "batch_part")
        conversion.add(Wrap(call.args[0], f"{operand(call.args[0])} * {hvd}.size()"))
        conversion.add(Wrap(call, f"[{part}[{hvd}.rank()::{hvd}.size()] for {part} in ...]"))
    for owner, reader in feeds.readers:
        if owner.argument(reader, "seed") is None:
            conversion.add(SetKeyword(reader, "seed", "0"))
            conversion.note("a seed is set, for the data to have the same order on every rank")


def _at_its_name(script: Script, stop: ast.expr) -> ast.expr:
    """Where a number of steps is also divided by, it is made smaller where it gets its name."""
    if not isinstance(stop, ast.Name):
        return stop
    bindings = script.names.reaching(stop)
    if len(bindings) != 1 or bindings[0].value is None or bindings[0].path:
        return stop
    divides = False
    for load in script.names.loads(bindings[0]):
        parent = script.parents.get(load)
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div) and parent.right is load:
            divides = True
    return bindings[0].value if divides else stop
