"""A program that trains with Estimators: their own `model_fn`, canned ones, and Keras models that become one."""

from __future__ import annotations

import ast

from rewriter.distribution.estimators import (
    RUN_CONFIG,
    Alone,
    Both,
    Estimators,
    Made,
    Train,
    alone,
    decides,
    in_loop,
)
from rewriter.distribution.program import Way
from rewriter.edits import Insert, Prepend, Replace, SetKeyword, Wrap
from rewriter.graphs.graph_mode import Start, configs, is_eager, v1
from rewriter.script import Script
from rewriter.values import Value

from . import data, estimator_data, estimator_optimizers, session
from .conversion import Conversion, operand


def convert(conversion: Conversion, ways: list[Way]) -> None:
    """Convert every Estimator of the program, and all that is asked of it."""
    conversion.module, conversion.pins = "horovod.tensorflow", False
    program = conversion.program
    other = [w for w in program.ways if w.kind != "estimator"]
    if other:
        conversion.refuse(other[0].script, other[0].node, "it trains with an Estimator and in other ways too")
    found = Estimators(program)
    for problem in found.problems:
        conversion.refuse_problem(problem)
    _strange(conversion)
    if not found.trains:
        reason = "no training is seen in this program: there is nothing to distribute"
        conversion.refuse(ways[0].script, ways[0].node, reason)
    if conversion.refusals:
        return
    for made in found.made:
        _model(conversion, made)
    estimator_optimizers.average(conversion, found)
    for train in found.trains:
        _train(conversion, train)
    for both in found.both:
        _both(conversion, both)
    _spec_hooks(conversion)
    data.same_order(conversion)
    if conversion.refusals:
        return
    _for_rank_0(conversion, found)
    _tell(conversion, found)


def _strange(conversion: Conversion) -> None:
    for script in conversion.program.scripts:
        if why := is_eager(script):
            conversion.refuse(script, script.tree.body[0], why)
        for node in script.all(ast.Attribute):
            if node.attr == "visible_device_list":
                conversion.refuse(script, node, f"`{script.text(node)}` is set by the program itself")


# -- where it is made ------------------------------------------------------------------------------------------


def _model(conversion: Conversion, made: Made) -> None:
    """Checkpoints of rank 0 only, and a GPU of its own for every process."""
    script = made.script
    _only_rank_0(conversion, script, made.arguments.get("model_dir"))
    config = made.arguments.get("config")
    if config is not None and not script.is_none(config):
        _config(conversion, script, config)
        return
    if any(script.enclosing(made.call, ast.Lambda, ast.comprehension)):
        conversion.refuse(script, made.call, "the Estimator is made in a lambda", "make it in a statement")
        return
    name = _run_config(conversion, made)
    conversion.add(SetKeyword(made.call, "config", name) if config is None else Replace(config, name))


def _run_config(conversion: Conversion, made: Made) -> str:
    """A configuration above the Estimator, which all Estimators of a block share."""
    script, statement = made.script, made.script.statement(made.call)
    hvd, tf = conversion.hvd(script, made.call), v1(script)
    gpu, session_config, name = (
        conversion.free_name(script, name) for name in ("gpu_options", "session_config", "run_config")
    )
    text = (
        f"{gpu} = {tf}.GPUOptions(visible_device_list=str({hvd}.local_rank()))\n"
        f"{session_config} = {tf}.ConfigProto(allow_soft_placement=True, gpu_options={gpu})\n"
        f"{name} = {_estimator(script, made.call)}.RunConfig(session_config={session_config})"
    )
    block = script.parents[statement]
    there = [e.node for e in conversion.edits if isinstance(e, Insert) and e.text == text]
    if not any(script.parents.get(n) is block and getattr(n, "lineno", 0) <= statement.lineno for n in there):
        conversion.add(Insert(statement, text, after=False))
    return name


def _estimator(script: Script, call: ast.Call) -> str:
    """How the file reaches `tf.estimator`."""
    written = ast.unparse(call.func)
    last = script.called(call).rpartition(".")[2]
    if written.endswith(f"estimator.{last}") and ".keras.estimator." not in written:
        return written.removesuffix(f".{last}")
    return "{tensorflow.estimator}"


def _session(conversion: Conversion, script: Script, node: ast.AST) -> str:
    hvd = conversion.hvd(script, node)
    name = v1(script)
    return (
        f"{name}.ConfigProto(allow_soft_placement=True, "
        f"gpu_options={name}.GPUOptions(visible_device_list=str({hvd}.local_rank())))"
    )


def _only_rank_0(conversion: Conversion, script: Script, folder: ast.expr | None) -> None:
    if folder is not None and not (isinstance(folder, ast.Constant) and folder.value is None):
        conversion.add(Wrap(folder, f"{operand(folder)} if {conversion.rank_0(script, folder)} else None"))


def _config(conversion: Conversion, script: Script, config: ast.expr, *, settled: bool = False) -> None:
    """Extend what an Estimator is configured with; `settled`: its sessions are configured behind it."""
    for value in script.values(config):
        owner, call = value.script, value.node
        if value.name == "tensorflow.estimator.RunConfig" and isinstance(call, ast.Call) and owner is not None:
            arguments = owner.bind(call, RUN_CONFIG)
            if arguments.open:
                conversion.refuse(owner, call, "not all arguments of `RunConfig` are seen", "give them by name")
                continue
            _only_rank_0(conversion, owner, arguments.get("model_dir"))
            if not settled:
                _session_config(conversion, owner, call, arguments.get("session_config"))
        elif (
            value.name == "replace"
            and owner is not None
            and isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
        ):
            if any(k.arg is None for k in call.keywords):
                conversion.refuse(owner, call, "not all arguments of `replace` are seen", "give them by name")
            _only_rank_0(conversion, owner, owner.argument(call, "model_dir"))
            if (given := owner.argument(call, "session_config")) is not None:
                _session_config(conversion, owner, call, given)
            _config(conversion, owner, call.func.value, settled=settled or given is not None)
        else:
            conversion.refuse(script, config, f"`{script.text(config)}` is made where it is not seen")


def _session_config(conversion: Conversion, script: Script, call: ast.Call, given: ast.expr | None) -> None:
    for name in ("train_distribute", "eval_distribute", "experimental_distribute", "master", "cluster"):
        if (strange := script.argument(call, name)) is not None and not script.is_none(strange):
            conversion.refuse(script, strange, f"`{name}` distributes the program already")
    if given is None or script.is_none(given):
        text = _session(conversion, script, call)
        conversion.add(SetKeyword(call, "session_config", text) if given is None else Replace(given, text))
        return
    found = configs(Start(script, call, "RunConfig", "session_config", given))
    if isinstance(found, str):
        conversion.refuse(script, call, found)
        return
    for value in found:
        session._choose(conversion, value, conversion.hvd(script, call))


# -- training --------------------------------------------------------------------------------------------------


#: Fewer steps than this at a time are not worth more than one rank, or are none at all on each.
_FEW = 8


def _train(conversion: Conversion, train: Train) -> None:
    """`est.train(...)` or a `TrainSpec(...)`: hooks, fewer steps, and a part of the data."""
    script, call, arguments = train.script, train.call, train.arguments
    if arguments.open:
        conversion.refuse(script, call, "not all arguments of training are seen", "give them by name")
        return
    listeners = arguments.get("saving_listeners")
    if listeners is not None and not script.is_none(listeners):
        conversion.refuse(script, listeners, "what `saving_listeners` do on several ranks is not known")
    if (problem := decides(script, call)) is not None:
        conversion.refuse_problem(problem)
    for name in ("steps", "max_steps"):
        steps = arguments.get(name)
        if steps is not None and not script.is_none(steps):
            number = script.integer(steps)
            if number is not None and number < _FEW:
                if not in_loop(script, call):
                    continue  # a step or two to look at
                reason = f"a training of {number} steps cannot be divided over the ranks"
                conversion.refuse(script, steps, reason, "let one call of `train` make more of them")
            conversion.add(Wrap(steps, f"{operand(steps)} // {conversion.hvd(script, steps)}.size()"))
    _hooks(conversion, script, call, arguments.get("hooks"))
    given = arguments.get("input_fn")
    if given is None:
        conversion.refuse(script, call, "what it trains on is not seen")
        return
    estimator_data.split(conversion, script, given)


def _both(conversion: Conversion, both: Both) -> None:
    """`train_and_evaluate`: the other ranks only train."""
    script, call = both.script, both.call
    if (problem := decides(script, call)) is not None:
        conversion.refuse_problem(problem)
    estimator, spec = both.arguments.get("estimator"), both.arguments.get("train_spec")
    statement = script.statement(call)
    named = all(isinstance(e, ast.Name | ast.Attribute) for e in (estimator, spec))
    if both.arguments.open or estimator is None or spec is None:
        conversion.refuse(script, call, "not all arguments of `train_and_evaluate` are seen", "give them by name")
        return
    specs = script.values(spec)
    if not specs or not all(v.name == "tensorflow.estimator.TrainSpec" for v in specs):
        conversion.refuse(script, spec, f"what `{script.text(spec)}` trains with is not seen")
    if not named or not (isinstance(statement, ast.Expr) and statement.value is call):
        conversion.note("every rank evaluates while it trains, in a folder of its own")
        return
    hvd = conversion.hvd(script, call)
    e, s = ast.unparse(estimator), ast.unparse(spec)
    text = (
        f"if {hvd}.rank() != 0:  # evaluates nothing\n"
        f"    {e}.train({s}.input_fn, hooks={s}.hooks, max_steps={s}.max_steps)"
    )
    conversion.add(Insert(statement, text))
    conversion.alone[statement] = script


# -- hooks -----------------------------------------------------------------------------------------------------

_HOOKS = frozenset("StopAtStepHook LoggingTensorHook NanTensorHook StepCounterHook FeedFnHook FinalOpsHook".split())


def _hooks(conversion: Conversion, script: Script, call: ast.Call, given: ast.expr | None) -> None:
    """The weights of rank 0 for all, before anything else looks at them."""
    own = f"{conversion.hvd(script, call)}.BroadcastGlobalVariablesHook(0)"
    if given is None:
        conversion.add(SetKeyword(call, "hooks", f"[{own}]"))
        return
    if isinstance(given, ast.Constant) and given.value is None:
        conversion.add(Replace(given, f"[{own}]"))
        return
    if not _are_known(conversion, script, given):
        return
    if isinstance(given, ast.List) and given.elts:
        conversion.add(Prepend(given, own))
    elif isinstance(given, ast.List):
        conversion.add(Replace(given, f"[{own}]"))
    elif any(v.kind == "constant" for v in script.values(given)):
        conversion.add(Wrap(given, f"[{own}, *({operand(given)} or [])]"))
    else:
        conversion.add(Wrap(given, f"[{own}, *{operand(given)}]"))


def _are_known(conversion: Conversion, script: Script, hooks: ast.expr) -> bool:
    """Whether every hook of a list does the same on several ranks."""
    before = len(conversion.refusals)
    for value in script.values(hooks):
        if value.kind == "constant" and value.literal is None:
            continue
        if value.script is None or not isinstance(value.node, ast.List | ast.Tuple):
            conversion.refuse(script, hooks, f"which hooks `{script.text(hooks)}` are is not seen")
            return False
        for element in value.node.elts:
            _hook(conversion, value.script, element)
        for owner, use in value.script.flow(value.node):
            method = owner.parents.get(use)
            grown = owner.parents.get(method) if isinstance(method, ast.Attribute) else None
            if isinstance(grown, ast.Call) and isinstance(method, ast.Attribute) and grown.func is method:
                for added in grown.args:
                    if method.attr == "append":
                        _hook(conversion, owner, added)
                    elif not _are_known(conversion, owner, added):
                        return False
            elif isinstance(owner.parents.get(use), ast.AugAssign):
                conversion.refuse(owner, use, f"which hooks `{owner.text(use)}` are is not seen")
    return len(conversion.refusals) == before


def _hook(conversion: Conversion, script: Script, element: ast.expr) -> None:
    for value in script.values(element):
        name, owner, call = value.name.rpartition(".")[2], value.script, value.node
        if value.cls is not None:
            _own_hook(conversion, script, element, value.cls)
            continue
        if name not in _HOOKS or owner is None or not isinstance(call, ast.Call):
            shown = script.text(element)
            conversion.refuse(script, element, f"what the hook `{shown}` does on several ranks is not known")
            continue
        for parameter in ("fail_on_nan_loss", "output_dir", "summary_writer"):
            if (given := owner.argument(call, parameter)) is not None and not owner.is_none(given):
                what = "may end the training on one rank" if parameter == "fail_on_nan_loss" else "writes on every rank"
                conversion.refuse(owner, call, f"`{name}` {what}")
        if name == "StopAtStepHook":
            arguments = owner.bind(call, ("num_steps", "last_step"))
            for parameter in ("num_steps", "last_step"):
                number = arguments.get(parameter)
                if number is not None and not owner.is_none(number):
                    conversion.add(Wrap(number, f"{operand(number)} // {conversion.hvd(owner, number)}.size()"))


def _own_hook(conversion: Conversion, script: Script, element: ast.expr, cls: Value) -> None:
    """A hook of the program's own, which may look and print, but not decide."""
    if cls.script is None or not isinstance(cls.node, ast.ClassDef):
        conversion.refuse(script, element, f"what the hook `{cls.name}` does is not seen")
        return
    bases = cls.script.library_bases(cls.node)
    if not bases <= {"tensorflow.train.SessionRunHook", "builtins.object"}:
        conversion.refuse(script, element, f"what the hook `{cls.name}` does on several ranks is not known")
        return
    for owner, method in cls.script.methods(cls.node).values():
        for node in ast.walk(method):
            stops = isinstance(node, ast.Attribute) and node.attr in ("request_stop", "set_should_stop")
            runs = isinstance(node, ast.Attribute) and node.attr == "run" and method.name in ("before_run", "after_run")
            if stops or runs or isinstance(node, ast.Raise):
                conversion.refuse(owner, node, f"`{cls.name}` may end the training, or change it, on one rank alone")
                return


def _spec_hooks(conversion: Conversion) -> None:
    """Hooks that a `model_fn` returns."""
    for script, call in conversion.program.calls():
        if not script.called(call).endswith(("estimator.EstimatorSpec", "tpu.TPUEstimatorSpec")):
            continue
        for name in ("training_hooks", "training_chief_hooks"):
            hooks = script.argument(call, name)
            if hooks is not None and not script.is_none(hooks):
                _are_known(conversion, script, hooks)


# -- rank 0 ----------------------------------------------------------------------------------------------------


def _for_rank_0(conversion: Conversion, found: Estimators) -> None:
    """Evaluation, prediction and exports, with all that uses what they give."""
    program = conversion.program
    calls: list[tuple[Script, ast.expr]] = [*found.looks]
    folders = {
        text for m in found.made if (e := m.arguments.get("model_dir")) is not None for text in _spellings(m.script, e)
    }
    for script, call in program.calls():
        name = script.called(call)
        if name == "tensorflow.logging.set_verbosity" or name.startswith("tensorflow.gfile."):
            last = name.rpartition(".")[2]
            mode = call.args[1] if len(call.args) > 1 else script.argument(call, "mode")
            opens = last in ("Open", "GFile", "FastGFile") and mode is not None
            writes = opens and bool(set(str(script.constant(mode) or "w")) & set("wax+"))
            talks = last == "set_verbosity" and call.args and ast.unparse(call.args[0]).endswith(("INFO", "DEBUG"))
            if talks or last in ("DeleteRecursively", "Remove", "Rename", "Copy") or writes:
                calls.append((script, call))
        elif name == "shutil.rmtree" and call.args and folders & _spellings(script, call.args[0]):
            calls.append((script, call))
    calls += _folders_of_configurations(conversion)
    work: Alone = alone(program, calls)
    for problem in work.problems:
        conversion.refuse_problem(problem)
    conversion.alone |= work.statements
    for script, value in work.values:
        conversion.add(Wrap(value, f"{operand(value)} if {conversion.rank_0(script, value)} else None"))


def _folders_of_configurations(conversion: Conversion) -> list[tuple[Script, ast.expr]]:
    """Where a folder is asked of a `RunConfig`, which has none on the other ranks."""
    return [
        (script, node)
        for script in conversion.program.scripts
        for node in script.all(ast.Attribute)
        if node.attr == "model_dir"
        and isinstance(node.ctx, ast.Load)
        and conversion.program.reach.contains(script, node)
        and any(_is_configuration(v) for v in script.values(node.value))
        and not (isinstance(parent := script.parents.get(node), ast.keyword) and parent.arg == "model_dir")
    ]


def _is_configuration(value: Value) -> bool:
    if value.name == "replace" and isinstance(value.node, ast.Call) and value.script is not None:
        func = value.node.func
        return isinstance(func, ast.Attribute) and any(map(_is_configuration, value.script.values(func.value)))
    return value.name == "tensorflow.estimator.RunConfig"


def _spellings(script: Script, folder: ast.expr) -> set[str]:
    """What may stand for the same folder elsewhere: the expression, and what it is known to be."""
    literals = {repr(v.literal) for v in script.values(folder) if v.kind == "constant" and v.literal is not None}
    return {ast.unparse(folder), *literals}


def _tell(conversion: Conversion, found: Estimators) -> None:
    if found.both:
        conversion.note(
            "evaluations come after as many steps as before, which go through more samples on several ranks"
        )
    conversion.note("effective batch: that of the script on every rank, times the number of ranks in all")
    conversion.note(
        "learning rates are multiplied by the number of ranks (--no-lr-scaling leaves them)"
        if conversion.scaling
        else "learning rates are as they were (--no-lr-scaling)"
    )
    conversion.note(
        "rank 0 alone writes its checkpoints where the script says, and starts from them: the others take its weights "
        "before the first step, and have temporary folders"
    )
    if any((steps := t.arguments.get("max_steps")) is not None and not t.script.is_none(steps) for t in found.trains):
        conversion.note(
            "a start after all of `max_steps` are made ends with an error: remove the checkpoints, or raise it"
        )
