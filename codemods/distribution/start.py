"""`hvd.init()` before anything uses a device, and a GPU of its own for every process."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from rewriter.distribution.sources import unlike_on_ranks
from rewriter.edits import Insert
from rewriter.environment import settings
from rewriter.placement import NoPlace, Place, Placement, chooses_devices
from rewriter.script import Script
from rewriter.values import Value

from .conversion import Conversion

#: Functions of TensorFlow that use no device.
_HARMLESS = re.compile(
    r"tensorflow\.(config\.(?!list_logical|experimental\.list_logical|experimental_run)|random\.set_seed$|get_logger$|"
    r"set_random_seed$|logging\.|autograph\.|debugging\.(set|disable)|compat\.|io\.(gfile|read)|"
    r"(train|io|summary|saved_model)$|data\.Options$|data\.experimental\.AutoShardPolicy|version|sysconfig|app\.|flags\.)"
)
_KINDS = frozenset("layer model tensor dataset optimizer metric loss schedule iterator".split())


def uses_device(value: Value) -> bool:
    """Whether making it may set up the devices, after which none can be chosen."""
    return value.kind in _KINDS and not _HARMLESS.match(value.name)


def start(conversion: Conversion) -> None:
    """Initialise Horovod below the imports, and choose the GPU of the process."""
    script = conversion.script
    for owner in conversion.program.scripts:
        _check_devices(conversion, owner)
    place = find(conversion, "`hvd.init()`", "tensorflow.config.set_visible_devices")
    if place is None:
        return
    if script.function_of(place.anchor) is not None or script.parents[place.anchor] is not script.tree:
        conversion.refuse(
            script, place.anchor, "TensorFlow is imported in a function: import it at the top of the file"
        )
        return
    conversion.started = place.anchor.lineno - (not place.after)
    hvd = conversion.hvd(script, place.anchor)
    for edit in conversion.edits if not conversion.pins else ():
        early = edit.node in script.names.parents and getattr(edit.node, "lineno", 0) < place.anchor.lineno
        if early and script.function_of(edit.node) is None and any(f"{hvd}." in t for t in edit.texts):
            conversion.refuse(script, edit.node, "this comes before `hvd.init()` could: import TensorFlow above it")
    text = f"{hvd}.init()"
    if conversion.pins:
        gpus = conversion.free_name(script, "gpus", "physical_gpus")
        gpu = conversion.free_name(script, "gpu", "physical_gpu")
        text += (
            f'\n{gpus} = {{tensorflow.config.list_physical_devices}}("GPU")\n'
            f"for {gpu} in {gpus}:\n"
            f"    {{tensorflow.config.experimental.set_memory_growth}}({gpu}, True)\n"
            f"if {gpus}:\n"
            f'    {{tensorflow.config.set_visible_devices}}({gpus}[{hvd}.local_rank()], "GPU")'
        )
    for seed in sorted(conversion.seeds):
        line = f"{seed}  # the order of the data is the same on every rank"
        late = imported_below(script, place.anchor, seed)
        if late is None:
            text += f"\n{line}"
        elif script.parents[late] is script.tree and all(s is script for s, *_ in unlike_on_ranks(conversion.program)):
            conversion.add(Insert(late, line))
        else:
            reason = "what orders the data is imported too late to be seeded here"
            conversion.refuse(script, place.anchor, reason, "set a seed before the data is shuffled")
    conversion.add(Insert(place.anchor, text, after=place.after, blank_lines=1))


def find(
    conversion: Conversion, what: str, name: str, chooses: Callable[[ast.AST], bool] = chooses_devices
) -> Place | None:
    """Where a statement goes that uses `name` and has to come before anything that uses a device; refuses otherwise.

    what: what it is called in a message. chooses: nodes that say which devices there are, which it must follow.
    """
    script = conversion.script
    sites = [w.node for w in conversion.program.ways if isinstance(w.node, ast.Call)]
    placement = Placement(conversion.program.reach, sites, name, devices=True, comes_after=uses_device, chooses=chooses)
    try:
        return placement.find()
    except NoPlace as error:
        reason = f"{what} has to come before anything that uses a device, and there is no such place"
        node = error.node or script.tree.body[0]
        conversion.refuse(script, node, f"{reason}: {_plain(error.reason, what)}")
        return None


def imported_below(script: Script, anchor: ast.stmt, seed: str) -> ast.stmt | None:
    """The statement that first imports a module that is seeded, where it stands below another one."""
    bindings = script.names.module.bindings.get(seed.partition(".")[0], ())
    statements = [script.statement(b.node) for b in bindings]  # none: it is imported at the top with all else
    first = min(statements, key=lambda s: s.lineno, default=None)
    return first if first is not None and first.lineno > anchor.lineno else None


def _plain(reason: str, what: str) -> str:
    return reason.replace("the policy", what).replace("a policy", what).replace("layers are", "something is")


def _check_devices(conversion: Conversion, script: Script) -> None:
    """What chooses devices for one process cannot choose them for many."""
    for node in script.names.parents:
        for key, value in settings(node) if isinstance(node, ast.Assign | ast.Call | ast.AugAssign) else ():
            name = key if isinstance(key, str) else script.constant(key)
            if name == "CUDA_VISIBLE_DEVICES" and script.constant(value) not in ("", "-1"):
                conversion.refuse(
                    script, node, "`CUDA_VISIBLE_DEVICES` gives every process the same GPUs", "leave it to horovodrun"
                )
            elif name == "TF_CONFIG":
                conversion.refuse(script, node, "`TF_CONFIG` is set: the program is started on several hosts already")
    for call in script.calls_into("tensorflow"):
        name = script.called(call)
        if name.endswith(("config.set_visible_devices", "experimental.set_visible_devices")) and of_gpus(script, call):
            conversion.refuse(script, call, "it chooses the GPUs itself, the same for every process", "leave that out")
        elif name.endswith(("set_virtual_device_configuration", "set_logical_device_configuration")):
            conversion.refuse(script, call, "it divides devices itself, the same in every process", "leave that out")
        elif name == "tensorflow.device":
            device = script.constant(call.args[0]) if call.args else None
            if isinstance(device, str) and re.search(r"gpu:[1-9]", device, re.IGNORECASE):
                conversion.refuse(
                    script, call, f"a process has one GPU: {device!r} is not there", "leave the device out"
                )


def of_gpus(script: Script, call: ast.Call) -> bool:
    """Whether `set_visible_devices` is given GPUs."""
    kind = call.args[1] if len(call.args) > 1 else script.argument(call, "device_type")
    none = call.args and isinstance(call.args[0], ast.List) and not call.args[0].elts
    return not none and (kind is None or script.constant(kind) != "CPU")
