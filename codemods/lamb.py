"""`lamb`: Adam → LAMB, the optimizer for large batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.edits import DropKeyword, Edit, Insert, NameArgument, Replace, SetKeyword
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script
from rewriter.spelling import outermost, tensorflow_imports
from rewriter.training import Run, Training, trainings
from rewriter.values import Value

#: The smallest batch for which the paper gives settings (You et al. 2020, table of learning rates).
SMALLEST_BATCH = 512

#: Keras's defaults, where Adam's and LAMB's differ or must be written out.
DEFAULT_RATE = "0.001"
ADAMW_DECAY = "0.004"

#: What is exempt from weight decay, as in the paper: biases, and scale and shift of normalization layers.
NOT_DECAYED = '["bias", "gamma", "beta"]'

#: Adam's arguments that LAMB has too, with the same meaning.
SHARED = frozenset(
    "learning_rate beta_1 beta_2 epsilon weight_decay name clipnorm clipvalue global_clipnorm use_ema "
    "ema_momentum ema_overwrite_frequency loss_scale_factor gradient_accumulation_steps".split()
)
_POSITIONS = {
    "Adam": ("learning_rate", "beta_1", "beta_2", "epsilon", "amsgrad"),
    "AdamW": ("learning_rate", "weight_decay", "beta_1", "beta_2", "epsilon", "amsgrad"),
}


@codemod(level=3, phase="optimizer")
def lamb(script: Script) -> Iterator[Finding]:
    """Train with LAMB instead of Adam where the batch is large.

    Why: with batches of 512 and more, LAMB's layer-wise steps stay stable at learning rates at which Adam diverges
    (You et al. 2020, arXiv 1904.00962). It is another optimizer: the learning rate and a warm-up have to be tuned
    again, so this runs only at -O3 or when it is selected.
    Not applied: batches smaller than 512 or of unknown size, `amsgrad=True`, settings that LAMB has no match for.
    What is written: `keras.optimizers.Lamb` for Keras 3 (from 3.5 on); for Keras 2 the class itself, above its use.

    Before (Keras 3):
        import keras
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")
        model.fit(x, y, batch_size=1024)

    After:
        import keras
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.Lamb(learning_rate=0.01), loss="mse")
        model.fit(x, y, batch_size=1024)
    """
    done: set[ast.AST] = set()
    for training in trainings(script):
        optimizer = training.compile.arguments.get("optimizer")
        if optimizer is None:
            continue
        for value in training.script.values(optimizer):
            if value.node in done:
                continue
            if value.kind == "constant" and str(value.literal).lower() in ("adam", "adamw"):
                done.add(optimizer)
                yield _decide(training, training.script, optimizer, str(value.literal).lower(), None)
            elif re.search(r"optimizers\.(legacy\.)?(Adam|AdamW)$", value.keras) and isinstance(value.node, ast.Call):
                assert value.script is not None and value.node is not None
                done.add(value.node)
                yield _decide(training, value.script, value.node, value.keras.rsplit(".", 1)[-1].lower(), value)


def _decide(training: Training, owner: Script, place: ast.expr, kind: str, value: Value | None) -> Finding:
    if reason := _batch_too_small(training):
        return Refusal(
            place,
            f"{reason}: LAMB is for batches of {SMALLEST_BATCH} and more",
            "raise the batch size first, then tune the learning rate with warm-up",
        )
    if training.unseen:
        return Refusal(place, f"another training of this model may not be seen: {training.unseen[0].reason}")
    target = owner.target
    if value is not None and ".legacy." in value.name:
        return Refusal(place, "the script asks for the legacy optimizer")
    edits: list[Edit]
    if target.keras == 3:
        if target.keras_version is not None and target.keras_version < (3, 5):
            return Refusal(place, f"keras.optimizers.Lamb needs Keras 3.5, this is {target.keras_version}")
        name = f"{{{_family(owner, value)}.optimizers.Lamb}}"
        edits = []
    elif target.keras == 2 and target.since(2, 4):
        snippet = "lamb_keras2" if target.since(2, 11) else "lamb_keras2_legacy" if target.before(2, 11) else ""
        if not snippet:
            return Refusal(
                place,
                f"LAMB is written differently for TensorFlow 2.10 and 2.11, and this is {target}",
                "give --target",
            )
        name = _free_name(owner)
        edits = [_definition(owner, place, snippet, name)]
    elif target.keras is None:
        return Refusal(
            place, "Keras 3 has LAMB, Keras 2 does not: which one will run this is not known", "give --target"
        )
    else:
        return Refusal(place, f"LAMB needs TensorFlow 2.4 or later, this is {target}")
    if value is None:
        rest = f", weight_decay={ADAMW_DECAY}" if kind == "adamw" else ""
        if rest:
            return Refusal(
                place,
                "LAMB exempts biases and norms from weight decay, which needs the optimizer as an object",
                f'optimizer = AdamW(); model.compile(optimizer=optimizer, ...) instead of "{kind}"',
            )
        edits.append(Replace(place, f"{name}(learning_rate={DEFAULT_RATE})"))
    else:
        mapped = _map(owner, value, name, kind)
        if isinstance(mapped, str):
            return Refusal(place, mapped)
        edits += mapped
    return Fix(
        place,
        "LAMB takes larger batches than Adam; tune its learning rate and warm-up anew before you rely on it",
        edits,
    )


def _family(owner: Script, value: Value | None) -> str:
    """`keras` or `tensorflow.keras`, as the script has it."""
    if value is not None:
        return value.name.partition(".optimizers.")[0]
    names = {
        b.symbol.split(".")[0]
        for found in owner.names.module.bindings.values()
        for b in found
        if b.kind in ("import", "star")
    }
    return "keras" if "keras" in names else "tensorflow.keras"


# -- batch size ------------------------------------------------------------------------------------------------------


def _batch_too_small(training: Training) -> str:
    """Why the batches of this training are not known to be large; empty when every `fit` has large ones."""
    if not training.fits:
        return "no fit of this model is seen, so the batch size is not known"
    for run in training.fits:
        size = _batch_size(run)
        if size is None:
            return f"the batch size of the fit in line {run.site.call.lineno} is not known"
        if size < SMALLEST_BATCH:
            return f"the batch size is {size}"
    if training.on_batch:
        return "it is also trained with train_on_batch, whose batch size is not known"
    return ""


def _batch_size(run: Run) -> int | None:
    script = run.site.script
    if run.data == "arrays":
        size = run.site.arguments.get("batch_size")
        if size is None:
            return None if run.site.arguments.open else 32
        return script.integer(size)
    if run.data == "dataset":
        sizes = {_batched(v) for v in script.values(run.source)}
        return sizes.pop() if len(sizes) == 1 else None
    return None


def _batched(dataset: Value) -> int | None:
    stage: Value | None = dataset
    while stage is not None:
        if stage.name in ("batch", "padded_batch") and isinstance(stage.node, ast.Call) and stage.script:
            return stage.script.integer(stage.script.bind(stage.node, f"Dataset.{stage.name}").get("batch_size"))
        if stage.name.endswith("dataset_from_directory") and isinstance(stage.node, ast.Call) and stage.script:
            size = stage.script.bind(stage.node, "image_dataset_from_directory").get("batch_size")
            return 32 if size is None else stage.script.integer(size)
        if stage.name in ("unbatch", "rebatch", "flat_map", "interleave", "apply", "window", "ragged_batch"):
            return None
        stage = stage.base
    return None


# -- arguments -------------------------------------------------------------------------------------------------------


def _map(owner: Script, value: Value, name: str, kind: str) -> list[Edit] | str:
    """Adam's arguments as LAMB's, or why they have no match."""
    call = value.node
    assert isinstance(call, ast.Call)
    positions = _POSITIONS["AdamW" if kind == "adamw" else "Adam"]
    arguments = owner.bind(call, positions)
    if arguments.open or len(call.args) > len(positions):
        return "not all of its arguments can be seen"
    edits: list[Edit] = [Replace(call.func, name)]
    if any(k.arg is None for k in call.keywords):
        return "its arguments come from a dict"
    amsgrad = arguments.get("amsgrad")
    if amsgrad is not None and owner.constant(amsgrad) is not False:
        return "LAMB has no amsgrad"
    if "amsgrad" in arguments.keywords:
        edits.append(DropKeyword(call, "amsgrad"))
    elif amsgrad is not None:
        return "amsgrad is given by position"
    if "decay" in arguments.keywords:
        if owner.number(arguments.get("decay")) != 0:
            return "`decay` lowers Adam's learning rate step by step: write it as a schedule (InverseTimeDecay) first"
        edits.append(DropKeyword(call, "decay"))
    unknown = [n for n in arguments.keywords if n not in SHARED | {"amsgrad", "decay"}]
    if unknown:
        return f"LAMB has no `{unknown[0]}`"
    if kind == "adamw":  # its second position is the weight decay, LAMB's is beta_1
        edits += [NameArgument(call, i, positions[i]) for i in range(1, len(call.args))]
    edits += [NameArgument(call, k.arg, "learning_rate") for k in call.keywords if k.arg == "lr"]
    if arguments.get("learning_rate") is None:
        edits.append(SetKeyword(call, "learning_rate", DEFAULT_RATE))
    decay = arguments.get("weight_decay")
    if kind == "adamw" and decay is None:
        edits.append(SetKeyword(call, "weight_decay", ADAMW_DECAY))
    if kind == "adamw" or (decay is not None and owner.constant(decay) not in (None, 0)):
        exempt = _exempt(owner, call)
        if isinstance(exempt, str):
            return exempt
        edits += exempt
    return edits


def _exempt(owner: Script, call: ast.Call) -> list[Edit] | str:
    """Norms and biases keep out of weight decay: a call after the optimizer is made, unless the script has one."""
    for script, alias in owner.flow(call):
        parent = script.parents.get(alias)
        if isinstance(parent, ast.Attribute) and parent.attr == "exclude_from_weight_decay":
            return []
    statement = owner.parents.get(call)
    if not (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name | ast.Attribute)
    ):
        return (
            "LAMB exempts biases and norms from weight decay, which needs the optimizer in a variable: "
            "write `optimizer = ...` on a line of its own"
        )
    target = ast.unparse(statement.targets[0])
    return [Insert(statement, f"{target}.exclude_from_weight_decay(var_names={NOT_DECAYED})")]


# -- the class for Keras 2 -------------------------------------------------------------------------------------------


@cache
def _snippet(name: str) -> str:
    """The source of the class, with `tf` open to be spelled as the user's file does."""
    text = files("codemods.snippets").joinpath(f"{name}.py").read_text(encoding="utf-8")
    start = text.index("class LAMB(")
    return re.sub(r"\btf\.", "{tensorflow}.", text[start:]).rstrip() + "\n"


def _free_name(owner: Script) -> str:
    name = "LAMB"
    while any(name in scope.bindings for scope in owner.names.scopes.values()) and not _is_ours(owner, name):
        name += "_"
    return name


def _is_ours(owner: Script, name: str) -> bool:
    """The class that an earlier optimizer of the same script has already brought in."""
    found = owner.names.module.bindings.get(name, [])
    return (
        len(found) == 1
        and isinstance(found[0].node, ast.ClassDef)
        and "arXiv 1904.00962" in (ast.get_docstring(found[0].node) or "")
    )


def _definition(owner: Script, place: ast.expr, snippet: str, name: str) -> Edit:
    """The class, below the imports or above the first top-level statement that may need it."""
    text = _snippet(snippet)
    if name != "LAMB":
        text = text.replace("class LAMB(", f"class {name}(")
    body = owner.tree.body
    first = outermost(owner, place, owner.tree)
    imports = [s for s in body if isinstance(s, ast.Import | ast.ImportFrom) and s.lineno < first.lineno]
    top = [
        outermost(owner, s, owner.tree)
        for s in tensorflow_imports(owner)
        if not any(True for _ in owner.enclosing(s, *FUNCTIONS))
    ]
    anchor = max([*imports, *(s for s in top if s.lineno < first.lineno)], key=lambda s: s.lineno, default=body[0])
    return Insert(anchor, text, blank_lines=2)
