"""A program that trains with `fit`, under a strategy of `tf.distribute`.

The batch of the script is that of all replicas together: every step is the one of the script, computed in parts.
"""

from __future__ import annotations

import ast

from rewriter.distribution.portions import EACH, FREE, Reading
from rewriter.distribution.program import Way
from rewriter.distribution.writes import saves_whole_models
from rewriter.edits import DropKeyword, Wrap
from rewriter.loops.steps import is_update, tapes_in
from rewriter.script import Script, own_nodes
from rewriter.training import Run, Training

from . import fit, strategy_batches, strategy_models, strategy_workers, train_step
from .strategies import ByStrategy


def convert(conversion: ByStrategy, ways: list[Way]) -> None:
    """Put what every `fit` trains under the scope."""
    program = conversion.program
    fit.check(conversion, ways)
    trainings = [t for t in program.trainings if t.fits]
    _every_fit_is_compiled(conversion, ways, trainings)
    if conversion.target.keras != 2:
        _keras3(conversion)
    elif any(saves_whole_models(program, ending) for ending in (".keras", ".weights.h5")):
        _weights_of_keras2(conversion)
    strategy_batches.fixed_sizes(conversion)
    strategy_models.samples_apart(conversion)
    strategy_models.of_keras(conversion)
    strategy_models.embeddings(conversion)
    for training in trainings:
        for use in training.unseen:
            conversion.refuse(use.script, use.node, use.reason)
        _under_scope(conversion, training)
        _compile_arguments(conversion, training)
        strategy_batches.check(conversion, training)
    if conversion.several_hosts:
        strategy_workers.convert(conversion, trainings)
    for run in {r.site.call: r for t in trainings for r in t.fits}.values():
        conversion.note(_batch(run, must=conversion.target.keras != 2))
    conversion.note(
        "learning rates are as they were, since the batch is; to make full use of N GPUs multiply the batch size by N, "
        "and the learning rate with it (Goyal et al. 2017)"
    )


def _every_fit_is_compiled(conversion: ByStrategy, ways: list[Way], trainings: list[Training]) -> None:
    for way, site in fit.uncompiled(conversion, ways, trainings).items():
        models = [m for m in site.models if m.kind == "model"]
        if models and all(m.name.endswith("load_model") for m in models):  # with its optimizer
            assert isinstance(site.call.func, ast.Attribute)
            conversion.scope.hold_made(site.script, site.call.func.value)
            continue
        conversion.refuse(way.script, way.node, fit.not_compiled(site))


# -- what makes variables ------------------------------------------------------------------------------------


def _under_scope(conversion: ByStrategy, training: Training) -> None:
    """Put the model, its optimizer and metrics, and `compile` itself under the scope."""
    scope, site = conversion.scope, training.compile
    scope.hold(site.script, site.call)
    assert isinstance(site.call.func, ast.Attribute)
    scope.hold_made(site.script, site.call.func.value)
    for name in ("optimizer", "metrics", "weighted_metrics"):
        if (expr := site.arguments.get(name)) is not None:
            scope.hold_made(site.script, expr)
    for model in training.models:
        if model.script is None or not isinstance(model.node, ast.expr):
            continue
        for owner, use in model.script.flow(model.node):
            parent = owner.parents.get(use)
            if isinstance(parent, ast.Attribute) and parent.attr in ("add", "build", "add_metric"):
                call = owner.parents.get(parent)
                if isinstance(call, ast.Call) and call.func is parent:
                    scope.hold(owner, call)
                    scope.hold_made(owner, call)
            elif (
                isinstance(parent, ast.Call) and parent.func is use and not _follows_training(conversion, owner, parent)
            ):
                scope.hold(owner, parent)  # the first call makes its variables
    _adapted(conversion)


def _follows_training(conversion: ByStrategy, script: Script, node: ast.expr) -> bool:
    """Whether a call comes after a `fit` in the same function: all variables are there."""
    function = script.function_of(node)
    fits = [w.node for w in conversion.program.ways if w.kind == "fit" and w.script is script]
    mine = [f for f in fits if script.function_of(f) is function]
    return any(f.lineno < node.lineno for f in mine if isinstance(f, ast.Call))


def _adapted(conversion: ByStrategy) -> None:
    """`layer.adapt(data)` makes the variables of a layer that is made under the scope, and so does its first call."""
    scope = conversion.scope
    for script, call in conversion.program.calls():
        adapts = isinstance(call.func, ast.Attribute) and call.func.attr == "adapt"
        layer = call.func.value if isinstance(call.func, ast.Attribute) and adapts else call.func
        made = [v.node for v in script.values(layer) if v.kind == "layer"]
        if not any(scope.holds(n) for n in made if n is not None) or _follows_training(conversion, script, call):
            continue
        if adapts or script.function_of(call) is None:
            scope.hold(script, call)


def _compile_arguments(conversion: ByStrategy, training: Training) -> None:
    """What `compile` is given that does not go together with a strategy is left out."""
    site = training.compile
    wrong: dict[str, tuple[tuple[object, ...], str]] = {
        "jit_compile": ((False, None, "auto"), "XLA does not compile what adds up gradients")
    }
    if conversion.target.keras != 2:
        wrong["steps_per_execution"] = ((1, None), "Keras 3 makes one step at a time under a strategy")
    for name, (harmless, why) in wrong.items():
        expr = site.arguments.get(name)
        values = site.script.values(expr) if expr is not None else ()
        if expr is None or (values and all(v.kind == "constant" and v.literal in harmless for v in values)):
            continue
        keyword = next((k for k in site.call.keywords if k.arg == name), None)
        if keyword is None:
            conversion.refuse(site.script, expr, f"`{name}` is not given by its name here, and has to go: {why}")
            continue
        conversion.add(DropKeyword(site.call, name))
        conversion.note(f"`{name}` is left out: {why}")


# -- one version of Keras ------------------------------------------------------------------------------------


_OF_ONE_GPU = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps")


def _keras3(conversion: ByStrategy) -> None:
    """What Keras 3 cannot do under a strategy, or gets wrong."""
    for script, call in conversion.program.calls():
        if any(v.kind == "optimizer" and v.node is call for v in script.values(call)):
            for keyword in call.keywords:
                if keyword.arg in _OF_ONE_GPU and not script.is_none(keyword.value):
                    reason = f"Keras 3 applies `{keyword.arg}` on every GPU by itself, before gradients are added up"
                    conversion.refuse(script, keyword.value, reason)
        if script.called(call).endswith(("set_global_policy", "set_dtype_policy", "mixed_precision.set_policy")):
            policy = script.constant(call.args[0]) if call.args else None
            if policy == "mixed_float16":
                reason = "the loss scaling of Keras 3 looks at the gradients of one GPU only: infinities get through"
                conversion.refuse(script, call, reason, "use `mixed_bfloat16`")
        of_text = script.called(call).endswith(("layers.TextVectorization", "layers.StringLookup"))
        if of_text and not _in_dataset(script, call):
            reason = "Keras 3 cannot build a model that is given text under a strategy"
            conversion.refuse(script, call, reason, "make numbers of the text in the dataset: `ds.map(...)`")


def _in_dataset(script: Script, layer: ast.Call) -> bool:
    """Whether a layer is only used in what datasets map, as far as is seen: not put into a model."""
    for owner, use in script.flow(layer):
        parent = owner.parents.get(use)
        if isinstance(parent, ast.List | ast.Tuple):
            return False
        if isinstance(parent, ast.Call):
            if parent.func is use and any(v.kind == "tensor" for v in owner.values(parent)):
                function = owner.function_of(parent)
                if function is None:
                    return False
            elif parent.func is not use and isinstance(parent.func, ast.Attribute) and parent.func.attr == "add":
                return False
    return True


def _weights_of_keras2(conversion: ByStrategy) -> None:
    """Keras 2 cannot put weights of its newer files into the metrics of a replicated model."""
    for script, call in conversion.program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "load_weights":
            path = script.constant(call.args[0]) if call.args else None
            if not isinstance(path, str) or path.endswith((".keras", ".weights.h5")):
                reason = "Keras 2 cannot load weights of this kind of file under a strategy"
                conversion.refuse(script, call, reason, "save them as `.h5`")


# -- the report ----------------------------------------------------------------------------------------------


def _batch(run: Run, *, must: bool) -> str:
    """The effective batch of one `fit`; Keras 3 fails where the parts of the first one have several sizes."""
    number = fit.batch_size(run)
    shown = "that of the script" if number is None else f"{number} samples in all, as in the script"
    return f"effective batch: {shown}, divided over the GPUs, whose number {'has to' if must else 'should'} divide it"


# -- steps of its own ----------------------------------------------------------------------------------------


def steps(conversion: ByStrategy, ways: list[Way]) -> None:
    """Models with a `train_step` of the project: its loss has to be the one that Keras divides by the replicas."""
    for script, step in train_step.those_of_fit(conversion, ways):
        _step(conversion, script, step)


#: Methods of a model that give its loss, divided by the number of replicas.
_LOSSES = frozenset("compute_loss compiled_loss _compute_loss".split())
_SCALES = frozenset("scale_loss get_scaled_loss get_unscaled_gradients".split())


def _step(conversion: ByStrategy, script: Script, step: ast.FunctionDef) -> None:
    myself = step.args.args[0].arg if step.args.args else "self"
    for call in [n for n in own_nodes(step) if isinstance(n, ast.Call)]:
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        if name.startswith("clip_by"):
            reason = "it clips the gradients of one GPU, before they are added up"
            conversion.refuse(script, call, reason, "give the optimizer `global_clipnorm` or `clipnorm`")
        if is_update(script, call) and isinstance(func, ast.Attribute):
            if ast.unparse(func.value) != f"{myself}.optimizer":
                reason = f"`{script.text(func)}` is not of the optimizer that `compile` is given"
                conversion.refuse(script, call, reason)
            if func.attr == "minimize" and call.args:
                _divided(conversion, script, step, call.args[0], myself)
    _applied(conversion, script, step)
    for tape in tapes_in(script, iter(own_nodes(step))):
        for gradient in tape.gradients:
            target = script.bind(gradient, ("target", "sources")).get("target")
            if target is not None:
                _divided(conversion, script, step, target, myself)


def _applied(conversion: ByStrategy, script: Script, step: ast.FunctionDef) -> None:
    """Gradients are applied as they are, in every step: what is made of them before would be of one GPU's part."""
    names = [a.arg for a in step.args.args]
    reading = Reading()
    reading.function(script, step, {n: EACH if i else FREE for i, n in enumerate(names)})
    for owner, node, why in reading.problems:
        sets = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr[:6] == "assign"
        if sets or (isinstance(node, ast.Call) and is_update(owner, node)):
            conversion.refuse(owner, node, why)
    updates = [n for n in own_nodes(step) if isinstance(n, ast.Call) and is_update(script, n)]
    if not updates and any(tapes_in(script, iter(own_nodes(step)))):
        conversion.refuse(script, step, "where the gradients of this step are applied is not seen")
    for update in updates:
        for around in script.enclosing(update, ast.If, ast.While):
            assert isinstance(around, ast.If | ast.While)
            if around in own_nodes(step) and not _is_setting(around.test):
                shown = script.text(around.test)
                reason = f"the gradients are applied where `{shown}`: replicas apply them in all steps"
                conversion.refuse(script, update, reason)


def _is_setting(test: ast.expr) -> bool:
    """`if self.training_phase:`, `if sample_weight is not None:`, `if len(data) == 3:`."""
    if isinstance(test, ast.Compare):
        same = all(isinstance(o, ast.Is | ast.IsNot | ast.In | ast.NotIn) for o in test.ops)
        return same or "len(" in ast.unparse(test)
    return isinstance(test, ast.Name | ast.Attribute | ast.UnaryOp | ast.Constant) or (
        isinstance(test, ast.Call) and ast.unparse(test.func) in ("isinstance", "hasattr")
    )


def _divided(conversion: ByStrategy, script: Script, step: ast.FunctionDef, loss: ast.expr, myself: str) -> None:
    """A loss that gradients are taken of is that of Keras; where it is reported, it is multiplied again."""
    reason = f"gradients of `{script.text(loss)}` are added up over the GPUs: it is not seen that each has its part"
    hint = "take `self.compute_loss(x, y, y_pred)` or `self.compiled_loss(y, y_pred)`, which are divided"
    names: list[ast.Name] = []
    expr: ast.expr | None = loss
    for _ in range(4):
        if isinstance(expr, ast.Name):
            bindings = script.names.reaching(expr)
            names.append(expr)
            expr = bindings[0].part if len(bindings) == 1 else None
        elif isinstance(expr, ast.Call) and isinstance(expr.func, ast.Attribute) and expr.func.attr in _SCALES:
            expr = expr.args[0] if expr.args else None
    own = isinstance(expr, ast.Call) and isinstance(expr.func, ast.Attribute) and expr.func.attr in _LOSSES
    if not own or not isinstance(expr, ast.Call) or ast.unparse(expr.func).partition(".")[0] != myself:
        conversion.refuse(script, loss, reason, hint)
        return
    for name in {b for n in names for b in script.names.reaching(n)}:
        for load in script.names.loads(name):
            parent = script.parents.get(load)
            func = parent.func if isinstance(parent, ast.Call) else None
            called = func.attr if isinstance(func, ast.Attribute) else ""
            if called in ("gradient", "minimize", *_SCALES):
                continue
            if called == "update_state" or isinstance(parent, ast.Dict):
                conversion.add(Wrap(load, f"... * {myself}.distribute_strategy.num_replicas_in_sync"))
            else:
                reason = f"`{load.id}` is divided by the number of GPUs, and used here too"
                conversion.refuse(script, load, reason, "use it for gradients only")
