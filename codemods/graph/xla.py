"""`xla` for graphs: sessions whose configuration lets TensorFlow cluster operations and compile them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter.codemod import Finding, Fix, Refusal
from rewriter.data.pipelines import related
from rewriter.edits import Edit, Insert, Replace, SetKeyword
from rewriter.graphs.graph_mode import (
    Start,
    builds_graphs,
    configs,
    free_name,
    on_cpu,
    on_tpu,
    prefix,
    starts,
    trains,
    v1,
)
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script
from rewriter.training import distribution
from rewriter.values import Value

_NAMES = ("config", "session_config")
_REPLACING = frozenset("CopyFrom MergeFrom ParseFromString MergeFromString Clear ClearField".split())
_FIELD = "graph_options.optimizer_options.global_jit_level"
_MESSAGE = "operations are clustered and compiled with XLA, once for every batch size"
_ON_CPU = "training runs on a CPU, where XLA compiles nothing in a session unless TF_XLA_FLAGS asks for it"
_FLAGS = "; on a CPU nothing is compiled without TF_XLA_FLAGS=--tf_xla_cpu_global_jit in the environment"


def session_jit(script: Script, *, asked_on_cpu: bool) -> Iterator[Finding]:
    """Switch on XLA's auto-clustering in what configures the sessions that this file starts."""
    found = starts(script)
    if not found or not builds_graphs(script) or not (trains(script) or _trains_keras(script)) or _decided(script):
        return
    first = found[0].call
    if script.target.cpu and not asked_on_cpu:
        yield Refusal(first, _ON_CPU, "TF_XLA_FLAGS=--tf_xla_cpu_global_jit, and `--select xla`")
        return
    if reason := _refused(script):
        yield Refusal(first, reason)
        return
    told = _MESSAGE + (_FLAGS if script.target.cpu else "")
    unconfigured: list[Start] = []
    done: set[ast.AST | None] = set()
    shared = True
    for start in found:
        if start.kind == "Estimator" and start.config is not None:
            if reason := _run_config(start):
                yield Refusal(start.call, reason)
            continue
        given = configs(start)
        if isinstance(given, str):
            yield Refusal(start.call, given, f"set `config.{_FIELD}` where it is made")
        elif not given:
            unconfigured.append(start)
        else:
            new = [value for value in given if value.node not in done]
            done |= {value.node for value in given}
            if (hoisted := _hoisted(start, given)) is not None:
                yield Fix(start.call, told, hoisted)
                shared = False
                continue
            edits = [_jit_in(value) for value in new]
            if reason := next((e for e in edits if isinstance(e, str)), ""):
                yield Refusal(start.call, reason)
            elif edits:
                place = new[0].node if new[0].script is script else start.call
                assert place is not None
                yield Fix(place, told, [e for e in edits if isinstance(e, Edit)])
    if unconfigured:
        yield Fix(unconfigured[0].call, told, list(_configured(script, unconfigured, shared)))


def _trains_keras(script: Script) -> bool:
    """Keras of TensorFlow 1 trains in the session that it is given."""
    return script.target.before(2, 0) and any(
        s.sites("fit", "fit_generator", "train_on_batch") for s in related(script)
    )


def _decided(script: Script) -> bool:
    return any(
        "jit_level" in text or "tf_xla" in text or "experimental_jit_scope" in text or "xla.compile" in text
        for text in (member.source.text for member in related(script))
    )


def _refused(script: Script) -> str:
    for question in (on_cpu, on_tpu):
        if reason := question(script):
            return reason
    strategy, shown = distribution(script)
    if strategy and strategy != "horovod":
        return f"training is distributed with {shown}, which has not been tried with compiled sessions"
    for member in related(script):
        for call in member.calls_into("tensorflow"):
            if "OptimizerOptions" in member.called(call):
                return f"the script has its own options for optimizing graphs ({member.at(call)})"
        if reason := _varies(member):
            return f"{reason}: every new shape is compiled anew"
    return ""


_BUCKETS = frozenset("padded_batch bucket_by_sequence_length bucket batch_sequences_with_states".split())


def _varies(script: Script) -> str:
    """Where batches get shapes that differ in more than the number of examples."""
    for call in script.calls:
        last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if last in _BUCKETS:
            return f"`{script.text(call.func)}` ({script.at(call)}) makes batches of varying shape"
        if any(k.arg == "dynamic_pad" and script.constant(k.value) is not False for k in call.keywords):
            return f"`dynamic_pad` ({script.at(call)}) makes batches of varying shape"
    for call in script.calls_to("tensorflow.placeholder"):
        shape = script.bind(call, ("dtype", "shape")).get("shape")
        parts = shape.elts if isinstance(shape, ast.List | ast.Tuple) else []
        if sum(isinstance(p, ast.Constant) and p.value is None for p in parts) > 1:
            return f"`{script.text(call)}` ({script.at(call)}) takes batches of varying shape"
    for call in script.calls_into("tensorflow.ragged", "tensorflow.RaggedTensor"):
        return f"`{script.text(call.func)}` ({script.at(call)}) makes batches of varying shape"
    return ""


def _run_config(start: Start) -> str:
    """Why what an Estimator is given cannot be configured; where it is a `RunConfig`, that is done there."""
    for value in start.script.values(start.config):
        if not value.name.endswith("estimator.RunConfig"):
            return f"how `{start.script.text(start.call.func)}` is configured is not seen"
    return ""


# -- a configuration that is there -----------------------------------------------------------------------------------


def _jit_in(config: Value) -> Edit | str:
    """Set the level in one `tf.ConfigProto(...)`: in a line of its own where it has a name, else as an argument."""
    script, call = config.script, config.node
    assert script is not None and isinstance(call, ast.Call)
    name = v1(script, call)
    level = f"{name}.OptimizerOptions.ON_1"
    statement = script.parents[call]
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name | ast.Attribute):
            written = ast.unparse(target)
            if (other := _replaced(script, written)) is not None:
                return f"`{script.text(other)}` may replace what is set ({script.at(other)})"
            return Insert(_last_setting(script, statement, written), f"{written}.{_FIELD} = {level}")
    if script.bind(call).may_have("graph_options") or call.args:
        return f"`{script.text(call)}` has its own `graph_options` ({script.at(call)})"
    options = f"{name}.OptimizerOptions(global_jit_level={level})"
    return SetKeyword(call, "graph_options", f"{name}.GraphOptions(optimizer_options={options})")


def _replaced(script: Script, name: str) -> ast.Call | None:
    """What gives a configuration, or a part of it, other contents as a whole."""
    for call in script.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in _REPLACING:
            receiver = ast.unparse(call.func.value)
            if receiver == name or receiver.startswith(f"{name}.graph_options"):
                return call
    return None


def _last_setting(script: Script, made: ast.stmt, name: str) -> ast.stmt:
    """The last of the lines directly below that set something of the same configuration."""
    block = _block(script, made)
    last = made
    for statement in block[block.index(made) + 1 :]:
        if not (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and ast.unparse(statement.targets[0]).startswith(f"{name}.")
        ):
            break
        last = statement
    return last


def _block(script: Script, statement: ast.stmt) -> list[ast.stmt]:
    """The list of statements that one stands in."""
    parent = script.parents[statement]
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


# -- a new configuration -----------------------------------------------------------------------------------------------


def _hoisted(start: Start, given: list[Value]) -> list[Edit] | None:
    """`tf.Session(config=tf.ConfigProto(...))`: the configuration gets a name, above the session."""
    script, call = start.script, start.config
    statement = script.statement(start.call)
    if (
        len(given) != 1
        or not isinstance(call, ast.Call)
        or given[0].node is not call
        or call.lineno != call.end_lineno
        or _inline(script, start.call, statement)
        or sum(script.statement(s.call) is statement for s in starts(script)) > 1
    ):
        return None
    name, tensorflow = free_name(script, *_NAMES), v1(script, call)
    text = f"{name} = {script.source.snippet(call)}\n{name}.{_FIELD} = {tensorflow}.OptimizerOptions.ON_1"
    return [Insert(statement, text, after=False), Replace(call, name)]


def _configured(script: Script, without: list[Start], shared: bool) -> Iterator[Edit]:
    """A new configuration above the first session that needs one, and wherever that one is not seen.

    `shared`: nothing between two sessions gives its name to another configuration.
    """
    name = free_name(script, *_NAMES)
    above: list[tuple[ast.stmt, bool]] = []  # what a configuration stands before, and whether it is for Estimators
    for start in without:
        tensorflow = v1(script, start.call) if not start.is_estimator else v1(script)
        statement = script.statement(start.call)
        # An Estimator without a configuration places what has no GPU kernel on the CPU; one with it has to be told.
        soft = "allow_soft_placement=True" if start.is_estimator else ""
        if _inline(script, start.call, statement):
            level = f"{tensorflow}.OptimizerOptions(global_jit_level={tensorflow}.OptimizerOptions.ON_1)"
            options = f"graph_options={tensorflow}.GraphOptions(optimizer_options={level})"
            value = f"{tensorflow}.ConfigProto({', '.join(filter(None, (soft, options)))})"
        else:
            value = name
            if not shared or not any(
                _covers(script, anchor, statement) and kind == bool(soft) for anchor, kind in above
            ):
                above.append((statement, bool(soft)))
                text = (
                    f"{name} = {tensorflow}.ConfigProto({soft})\n{name}.{_FIELD} = {tensorflow}.OptimizerOptions.ON_1"
                )
                yield Insert(statement, text, after=False)
        if start.kind == "Estimator":
            value = f"{_estimators(script, start.call)}.RunConfig(session_config={value})"
        yield SetKeyword(start.call, start.keyword, value)


def _estimators(script: Script, call: ast.Call) -> str:
    """How the file writes `tf.estimator`."""
    name = script.called(call)
    if ".keras." in name:
        written = prefix(script, call.func)
        return f"{written}.estimator" if written else "{tensorflow.estimator}"
    written = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    return written.removesuffix(f".{last}") if written.endswith(f".{last}") else "{tensorflow.estimator}"


def _inline(script: Script, call: ast.Call, statement: ast.stmt) -> bool:
    """Whether the call is not run just where its statement is, so that nothing can be put before it."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If | ast.While | ast.Assert):
        return True
    if isinstance(script.parents[statement], ast.ClassDef):
        return True
    inner = script.enclosing(call, *FUNCTIONS, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp, ast.stmt)
    return not isinstance(next(inner, None), ast.stmt)


def _covers(script: Script, anchor: ast.stmt, statement: ast.stmt) -> bool:
    """Whether what stands before `anchor` has run whenever `statement` does, in the same function."""
    block = _block(script, anchor)
    node: ast.AST = statement
    while node is not script.tree and not isinstance(node, FUNCTIONS):
        if node in block:
            return block.index(node) >= block.index(anchor)
        node = script.parents[node]
    return False
