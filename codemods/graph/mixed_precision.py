"""`mixed-precision` for graphs: wrap the optimizer, and TensorFlow rewrites what a session runs to float16."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter import catalog
from rewriter.codemod import Finding, Fix, Refusal
from rewriter.data.pipelines import related
from rewriter.edits import Edit, Insert, Replace, Wrap
from rewriter.graphs.graph_mode import (
    Optimizer,
    builds_graphs,
    free_name,
    is_eager,
    made_after,
    on_cpu,
    on_tpu,
    optimizers,
    restores,
    starts,
    v1,
)
from rewriter.low_precision import HUGE, TINY
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script
from rewriter.training import checks_numerics, distribution

_REWRITE = "train.experimental.enable_mixed_precision_graph_rewrite"
_MESSAGE = (
    "matrix products and convolutions run in float16 and the loss is scaled; checkpoints of earlier runs have no "
    "scale and cannot be continued"
)
_CANNED = "tensorflow.estimator."


def graph_rewrites(script: Script) -> Iterator[Finding]:
    """Wrap the optimizers that this file makes for programs that run graphs in sessions."""
    made = [o for o in optimizers(script) if o.uses or o.unseen]
    if not made or _decided(script):
        return
    first = made[0].call
    if reason := _no_session(script):
        if not is_eager(script) and any(True for m in related(script) for _ in m.calls_to("tensorflow.GradientTape")):
            return  # an own loop of TensorFlow 2, of which something else is said
        yield Refusal(first, reason)
        return
    reason, hint = _refused(script)
    if reason:
        yield Refusal(first, reason, hint)
        return
    for group in _groups(script, made):
        yield _wrapped(script, group)


def _decided(script: Script) -> bool:
    """The program scales a loss or chooses mixed precision already."""
    for member in related(script):
        for call in member.calls:
            last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if "mixed_precision" in last or "LossScale" in last:
                return True
        if "auto_mixed_precision" in member.source.text or "AUTO_MIXED_PRECISION" in member.source.text:
            return True
    return False


def _no_session(script: Script) -> str:
    if reason := is_eager(script):
        return f"{reason}: there is no graph to rewrite"
    if not any(starts(member) for member in related(script)):
        return "no session that trains with it is seen"
    if not builds_graphs(script):
        return "whether it is used in a graph is not known"
    return ""


# -- the whole program -------------------------------------------------------------------------------------------


def _refused(script: Script) -> tuple[str, str]:
    """Why nothing of this program is wrapped, and what to try by hand."""
    target = script.target
    if not target.since(1, 14):
        return f"the graph rewrite came with TensorFlow 1.14 (this is {target})", ""
    if target.cpu:
        return "the graph rewrite works on GPUs only, and the target is known to be a CPU", ""
    if script.options.amp_dtype == "bfloat16":
        return "the graph rewrite computes in float16 only", "leave out --amp-dtype"
    for question in (on_cpu, on_tpu, checks_numerics):
        if reason := question(script):
            return reason, ""
    if found := restores(script):
        return (
            f"{found} restores a checkpoint, which may have no variables for the scale of the loss",
            "wrap the optimizer by hand if only checkpoints of the wrapped program are restored",
        )
    strategy, shown = distribution(script)
    if strategy and strategy != "horovod":
        return f"training is distributed with {shown}", ""
    for member in related(script):
        if reason := _own_precision(member) or _calls(member):
            return reason, "wrap the optimizer by hand if float16 has the range for it"
        if reason := _numbers(member) or _all_variables(member):
            return reason, ""
    if not _initialized(script):
        return "no `global_variables_initializer` that also initializes the scale of the loss is seen", ""
    return "", ""


def _own_precision(script: Script) -> str:
    """Where a file chooses another precision than float32 for something in the graph."""
    for name in ("float64", "float16", "double", "half", "bfloat16"):
        for mention in script.mentions(name):
            if script.symbol(mention) == f"tensorflow.{name}":
                return f"the script chooses its precision: `{script.text(mention)}` ({script.at(mention)})"
    for constant in script.all(ast.Constant):
        if constant.value in ("float64", "float16"):
            call = next(script.enclosing(constant, ast.Call), None)
            if isinstance(call, ast.Call) and script.called(call).startswith(("tensorflow.", "keras.")):
                return f"the script chooses its precision: {constant.value!r} ({script.at(constant)})"
    for call in script.calls_to("tensorflow.Variable", "tensorflow.constant", "tensorflow.convert_to_tensor"):
        arguments = script.bind(call, ("value",) if script.called(call).endswith("Variable") else ("value", "dtype"))
        if "dtype" in arguments:
            continue
        given = arguments.get("initial_value") or arguments.get("value")
        if "float32" not in ast.unparse(call) and any(
            v.kind == "array" and v.name.startswith("numpy.") for v in script.values(given)
        ):
            return f"`{script.text(call)}` may be float64, as NumPy's arrays are ({script.at(call)})"
    return ""


#: What needs the range or the precision of float32, by the name that is called, and why.
_LOSSES = "compares numbers of any size, which float16 may not hold"
_SENSITIVE = {
    "losses.mean_squared_error": _LOSSES,
    "losses.absolute_difference": _LOSSES,
    "losses.huber_loss": _LOSSES,
    "losses.mean_pairwise_squared_error": _LOSSES,
    "losses.log_loss": "takes the logarithm of numbers that float16 rounds to 0",
    "squared_difference": _LOSSES,
    "math.squared_difference": _LOSSES,
    "nn.log_poisson_loss": _LOSSES,
    "gradients": "takes gradients of a loss that is not scaled",
    "hessians": "takes gradients of a loss that is not scaled",
    "log": "takes the logarithm of numbers that float16 rounds to 0",
    "log1p": "takes the logarithm of numbers that float16 rounds",
    "math.log": "takes the logarithm of numbers that float16 rounds to 0",
    "math.log1p": "takes the logarithm of numbers that float16 rounds",
    "check_numerics": "stops at the infinities that a scaled loss may have",
    "debugging.check_numerics": "stops at the infinities that a scaled loss may have",
    "verify_tensor_all_finite": "stops at the infinities that a scaled loss may have",
    "train.Server": "distributes training, where the scale of the loss has not been tried",
    "train.ClusterSpec": "distributes training, where the scale of the loss has not been tried",
    "contrib.quantize.create_training_graph": "quantizes the graph that would be rewritten",
    "report_uninitialized_variables": "initializes some of the variables only",
}
_SQUARES = frozenset("square math.square abs math.abs nn.l2_loss pow math.pow".split())


def _calls(script: Script) -> str:
    for call in script.calls_into("tensorflow"):
        path = script.called(call).removeprefix("tensorflow.").removeprefix("contrib.").removeprefix("keras.")
        whole = script.called(call).removeprefix("tensorflow.")
        why = _SENSITIVE.get(whole) or (_SENSITIVE.get(path) if path.startswith("losses.") else None)
        if why is not None and not (path.endswith(("log", "log1p")) and _of_numbers(script, call)):
            return f"`{script.text(call.func)}` ({script.at(call)}) {why}"
        if path in _SQUARES and call.args and _is_difference(script, call.args[0]):
            return f"`{script.text(call)}` ({script.at(call)}) {_LOSSES}"
    for power in script.all(ast.BinOp):
        if isinstance(power.op, ast.Pow) and _is_difference(script, power.left):
            return f"`{script.text(power)}` ({script.at(power)}) {_LOSSES}"
    return ""


def _of_numbers(script: Script, call: ast.Call) -> bool:
    return bool(call.args) and all(v.kind == "constant" for v in script.values(call.args[0]))


def _is_difference(script: Script, expr: ast.expr) -> bool:
    """`prediction - label`, also through a name."""
    for value in script.values(expr):
        node = value.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and value.kind == "tensor":
            return True
        if value.name in ("tensorflow.subtract", "tensorflow.math.subtract"):
            return True
    return False


#: Calls whose numbers are settings, not part of what is computed in float16.
_SETTINGS = ("data.", "train.", "app.", "flags.", "estimator.", "logging.", "contrib.data.", "contrib.opt.", "summary.")


def _numbers(script: Script) -> str:
    """A constant in the graph that float16 rounds to zero or cannot hold."""
    for constant in script.all(ast.Constant):
        number = constant.value
        if not isinstance(number, float | int) or isinstance(number, bool) or number == 0:
            continue
        if not (abs(number) <= TINY or abs(number) >= HUGE):
            continue
        parent = script.parents.get(constant)
        if isinstance(parent, ast.UnaryOp):
            parent = script.parents.get(parent)
        if isinstance(parent, ast.BinOp):
            inside = any(v.kind == "tensor" for v in script.values(parent))
        else:
            call = parent if isinstance(parent, ast.Call) else script.parents.get(parent) if parent else None
            name = script.called(call) if isinstance(call, ast.Call) else ""
            path = name.removeprefix("tensorflow.")
            inside = name.startswith("tensorflow.") and not path.startswith(_SETTINGS) and isinstance(number, float)
            inside = inside and not catalog.keras_path(name)
        if inside:
            what = "is zero in float16" if abs(number) <= TINY else "is more than float16 can hold"
            return f"`{number}` ({script.at(constant)}) {what}"
    return ""


#: What takes every variable as it is, whatever they are.
_TAKES_ANY = ("Saver", "variables_initializer", "initialize_variables", "len", "print", "BroadcastGlobalVariablesHook")


def _all_variables(script: Script) -> str:
    """Where the script does something with every variable, among which are now those for the scale of the loss."""
    for call in script.calls_to("tensorflow.global_variables", "tensorflow.all_variables"):
        if call.args or call.keywords:
            continue
        for owner, expr in script.flow(call):
            parent = owner.parents.get(expr)
            user = owner.parents.get(parent) if isinstance(parent, ast.keyword) else parent
            if isinstance(parent, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
                continue
            name = ast.unparse(user.func).rpartition(".")[2] if isinstance(user, ast.Call) else ""
            if name not in _TAKES_ANY:
                return f"`{script.text(call)}` ({script.at(call)}) would hold the scale of the loss too"
    return ""


#: What initializes every variable, or does so by itself.
_INITIALIZERS = (
    "tensorflow.global_variables_initializer", "tensorflow.initialize_all_variables",
    "tensorflow.initializers.global_variables", "tensorflow.keras.initializers.global_variables",
)  # fmt: skip
_INITIALIZE = frozenset(
    "MonitoredTrainingSession SingularMonitoredSession ChiefSessionCreator managed_session prepare_or_wait_for_session "
    "RunConfig Estimator train".split()
)


def _initialized(script: Script) -> bool:
    return any(
        next(member.calls_to(*_INITIALIZERS), None) is not None or any(s.kind in _INITIALIZE for s in starts(member))
        for member in related(script)
    )


# -- one optimizer, or several that go by one name -------------------------------------------------------------


def _groups(script: Script, made: list[Optimizer]) -> list[list[Optimizer]]:
    """The branches of one `if` that give one name its optimizer belong together; each other one is by itself."""
    groups: dict[object, list[Optimizer]] = {}
    for one in made:
        assigned = _assignment(script, one.place)
        chain = _chain(script, assigned) if assigned is not None else None
        key = (chain, ast.unparse(_target(assigned))) if chain is not None and assigned is not None else one
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _assignment(script: Script, call: ast.Call) -> ast.Assign | ast.AnnAssign | None:
    """The statement that gives one name or attribute this optimizer, or one of those in a conditional expression."""
    node: ast.AST = call
    while isinstance(parent := script.parents[node], ast.IfExp) and node is not parent.test:
        node = parent
    parent = script.parents[node]
    if isinstance(parent, ast.AnnAssign) or (isinstance(parent, ast.Assign) and len(parent.targets) == 1):
        return parent if isinstance(_target(parent), ast.Name | ast.Attribute) else None
    return None


def _target(assigned: ast.Assign | ast.AnnAssign) -> ast.expr:
    return assigned.targets[0] if isinstance(assigned, ast.Assign) else assigned.target


def _chain(script: Script, statement: ast.stmt) -> ast.If | None:
    """The whole `if ... elif ... else` that a statement stands in directly."""
    node: ast.AST = statement
    found: ast.If | None = None
    while isinstance(parent := script.parents[node], ast.If):
        found, node = parent, parent
        if not _is_elif(script, parent):
            break
    return found


def _is_elif(script: Script, node: ast.If) -> bool:
    around = script.parents[node]
    return isinstance(around, ast.If) and around.orelse == [node]


def _wrapped(script: Script, group: list[Optimizer]) -> Finding:
    first = group[0]
    for one in group:
        if reason := _unsuited(script, one):
            return _canned(script, one) or Refusal(one.call, reason)
    text = _rewrite(script, first)
    assigned = _assignment(script, first.place)
    edits: list[Edit] = []
    if assigned is not None:
        target = ast.unparse(_target(assigned))
        after = _chain(script, assigned) if len(group) > 1 else None
        if after is not None and _all_wrapped(script, after, group):
            edits = [Insert(after, f"{target} = {text}({target})")]
        else:
            statements = [s for one in group if (s := _assignment(script, one.place)) is not None]
            edits = [Insert(s, f"{target} = {text}({target})") for s in dict.fromkeys(statements)]
    elif (statement := _trained_at_once(script, first.place)) is not None:
        target = free_name(script, "optimizer", "opt", "train_optimizer")
        lines = f"{target} = {script.source.snippet(first.place)}\n{target} = {text}({target})"
        edits = [Insert(statement, lines, after=False), Replace(first.place, target)]
    else:
        edits = [Wrap(first.place, f"{text}(...)")]
    return Fix(first.call, _MESSAGE, edits)


def _rewrite(script: Script, one: Optimizer) -> str:
    """The function that wraps an optimizer, as the file would write it."""
    name = v1(script, one.call)
    return f"{name[:-1]}.{_REWRITE}}}" if name.endswith("}") else f"{name}.{_REWRITE}"


def _trained_at_once(script: Script, call: ast.Call) -> ast.stmt | None:
    """The statement `train_op = tf.train.AdamOptimizer(1e-3).minimize(loss)`: the optimizer gets lines of its own."""
    method = script.parents[call]
    use = script.parents[method]
    statement = script.parents[use]
    if (
        call.lineno == call.end_lineno
        and isinstance(method, ast.Attribute)
        and isinstance(use, ast.Call)
        and use.func is method
        and isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr)
        and not isinstance(script.parents[statement], ast.ClassDef)
    ):
        return statement
    return None


def _all_wrapped(script: Script, chain: ast.If, group: list[Optimizer]) -> bool:
    """Whether every use comes after the whole `if`, and of what its branches may give nothing else is used."""
    calls = {one.place for one in group}
    for one in group:
        for owner, use in one.uses:
            inside = owner is script and chain in owner.enclosing(use, ast.If)
            receiver = use.func.value if isinstance(use.func, ast.Attribute) else None
            if inside or (
                receiver is not None
                and any(v.node not in calls and v.kind != "constant" for v in owner.values(receiver))
            ):
                return False
    return True


def _unsuited(script: Script, one: Optimizer) -> str:
    """Why one optimizer is not wrapped."""
    if one.unseen:
        return f"not all that is done with the optimizer is seen: {one.unseen}"
    if (start := made_after(one)) is not None:
        at = start.script.at(start.call)
        return f"the session is started before it is made, so its graph would stay as it is ({at})"
    for owner, use in one.uses:
        if owner is script and (reason := _elsewhere(script, one.place, use)):
            return reason
        if (statement := _initialized_before(owner, use)) is not None:
            return f"the variables are initialized before it is made ({owner.at(statement)})"
        receiver = use.func.value if isinstance(use.func, ast.Attribute) else None
        for value in owner.values(receiver) if receiver is not None else ():
            if value.kind in ("unknown", "parameter") and all(value.node is not o.place for o in optimizers(script)):
                return f"`{owner.text(receiver)}` may be something else ({owner.at(use)})"  # type: ignore[arg-type]
        if any(k.arg == "grad_loss" for k in use.keywords):
            return f"`grad_loss` replaces the gradient that would be scaled ({owner.at(use)})"
    methods = {_method(use) for _, use in one.uses}
    if methods == {"apply_gradients"}:
        return "its gradients come from elsewhere, from a loss that is not scaled"
    if "compute_gradients" in methods and "apply_gradients" not in methods:
        return "its gradients are applied by something else, which would apply infinite ones as well"
    return ""


def _method(use: ast.Call) -> str:
    return use.func.attr if isinstance(use.func, ast.Attribute) else ""


def _elsewhere(script: Script, made: ast.Call, use: ast.Call) -> str:
    """Whether the variables for the scale would be made in another graph than the one that is trained."""
    if _graph_of(script, made) is not _graph_of(script, use) and script.function_of(made) is script.function_of(use):
        return f"it is made outside of the graph that it trains ({script.at(use)})"
    estimators = any(s.is_estimator for member in related(script) for s in starts(member))
    if estimators and script.function_of(made) is None and script.function_of(use) is not None:
        return f"it is made outside of the function that builds the Estimator's graph ({script.at(use)})"
    return ""


def _graph_of(script: Script, node: ast.AST) -> ast.AST | None:
    """The `with graph.as_default()` around a node."""
    for block in script.enclosing(node, ast.With, *FUNCTIONS):
        if not isinstance(block, ast.With):
            return None
        for item in block.items:
            call = item.context_expr
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "as_default"
                and not any(v.name.endswith("Session") for v in script.values(call.func.value))
            ):
                return block
    return None


def _initialized_before(script: Script, use: ast.Call) -> ast.stmt | None:
    """A `global_variables_initializer()` above the optimizer, in the same function: it knows no later variable."""
    function, before, after = script.function_of(use), None, None
    for call in script.calls_to(*_INITIALIZERS):
        if script.function_of(call) is function:
            if call.lineno < use.lineno:
                before = before or script.statement(call)
            else:
                after = call
    if before is None or after is not None:
        return None
    around = set(script.enclosing(use, ast.For, ast.While))
    return None if around & set(script.enclosing(before, ast.For, ast.While)) else before


# -- ready-made Estimators ------------------------------------------------------------------------------------------


def _canned(script: Script, one: Optimizer) -> Fix | None:
    """`DNNClassifier(optimizer=...)` takes a function as well, which makes the optimizer in the Estimator's graph."""
    parent = script.parents.get(one.call)
    call = script.parents.get(parent) if isinstance(parent, ast.keyword) else None
    if not isinstance(call, ast.Call) or not isinstance(parent, ast.keyword):
        return None
    name = script.called(call)
    if parent.arg not in ("optimizer", "dnn_optimizer") or name not in (
        f"{_CANNED}DNNClassifier", f"{_CANNED}DNNLinearCombinedClassifier",
    ):  # fmt: skip
        return None
    if not all(
        v.kind == "constant" for a in [*one.call.args, *(k.value for k in one.call.keywords)] for v in script.values(a)
    ):
        return None
    return Fix(one.call, _MESSAGE, [Wrap(one.call, f"lambda: {_rewrite(script, one)}(...)")])
