"""`lamb`: Adam → LAMB, the optimizer for large batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

from codemods.graph.lamb import graph_lamb
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.edits import DropKeyword, Edit, Insert, NameArgument, Replace, SetKeyword
from rewriter.models import Structure, structure
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script
from rewriter.spelling import outermost, tensorflow_imports
from rewriter.training import Run, Training, same, trainings
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
    Not applied: batches smaller than 512 or of unknown size, `amsgrad=True`, settings that LAMB has no match for;
    training that continues from an optimizer's saved state, which is Adam's; in Keras 3 models with an `Embedding`
    (its Lamb squares the gradients of a repeated row one by one) and models that are saved as `.h5` (it cannot
    load them again).
    What is written: `keras.optimizers.Lamb` for Keras 3 (from 3.5 on); for Keras 2, and for the
    `tf.train.AdamOptimizer` of TensorFlow 1 sessions and Estimators, the class itself, above its use.

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
    yield from graph_lamb(script, SMALLEST_BATCH, _batched, _defined_for_graphs)


def _decide(training: Training, owner: Script, place: ast.expr, kind: str, value: Value | None) -> Finding:
    if reason := _batch_too_small(training):
        return Refusal(
            place,
            f"{reason}: LAMB is for batches of {SMALLEST_BATCH} and more",
            "raise the batch size first, then tune the learning rate with warm-up",
        )
    if owner.options.distribute != "none":
        return Refusal(
            place,
            "the program is distributed in this run, with the learning rate scaled for the optimizer that is there",
            "rewrite it for LAMB first, then distribute what comes out",
        )
    if training.unseen:
        return Refusal(place, f"another training of this model may not be seen: {training.unseen[0].reason}")
    if reason := _restores(training):
        return Refusal(
            place,
            f"{reason}: what was saved may be Adam's state",
            "train with LAMB from the start, and restore only what it has saved",
        )
    target = owner.target
    if value is not None and ".legacy." in value.name:
        return Refusal(place, "the script asks for the legacy optimizer")
    edits: list[Edit]
    if target.keras == 3:
        if target.keras_version is not None and target.keras_version < (3, 5):
            return Refusal(place, f"keras.optimizers.Lamb needs Keras 3.5, this is {target.keras_version}")
        if reason := _looks_up(training):
            return Refusal(
                place, f"{reason}, and the Lamb of Keras 3 squares the gradients of a repeated row one by one"
            )
        if shown := _saved_as_h5(training):
            return Refusal(
                place, f"{shown}: Keras 3 cannot load a model with Lamb from an .h5 file", "save it as `.keras`"
            )
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
        name = _free_name(owner, snippet)
        edits = [_definition(owner, _uses(owner, place), _snippet(snippet), name)]
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
    message = "LAMB takes larger batches than Adam; tune its learning rate and warm-up anew before you rely on it"
    if target.keras == 2 and any(True for _ in _saves(training)):
        message += "; where else the saved model is loaded needs the class LAMB, or `compile=False`"
    return Fix(place, message, edits)


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
            return f"the batch size of the fit ({run.site.script.at(run.site.call)}) is not known"
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


# -- models and files that LAMB does not suit ------------------------------------------------------------------------

_EMBEDDINGS = frozenset({"Embedding", "ReversibleEmbedding"})
#: Functions whose gradient has one entry per row that they look up, not per row of the table.
_GATHERS = frozenset("gather gather_nd take embedding_lookup embedding_lookup_sparse".split())
_RESTORING_CALLBACKS = tuple(
    f"callbacks.{name}" for name in ("BackupAndRestore", "experimental.BackupAndRestore", "OrbaxCheckpoint")
)
_H5 = re.compile(r"\.(h5|hdf5)$|^h5$")


def _looks_up(training: Training) -> str:
    """Where the model may look up rows of a table of weights; empty if it surely does not."""
    for built in map(structure, training.models):
        for layer in built.layers:
            if _EMBEDDINGS & {layer.keras.removeprefix("layers."), *_bases(layer)} and layer.node and layer.script:
                return f"the model has an Embedding ({layer.script.at(layer.node)})"
        if built.unseen:
            return f"the model may have an Embedding that is not seen: {built.unseen[0].reason}"
        for script, call in _own_calls(built):
            if isinstance(call.func, ast.Attribute) and call.func.attr in _GATHERS:
                return f"`{ast.unparse(call.func)}` may look up weights ({script.at(call)})"
    return ""


def _bases(layer: Value) -> set[str]:
    if layer.cls is None or layer.cls.script is None or not isinstance(layer.cls.node, ast.ClassDef):
        return set()
    return {base.rpartition(".")[2] for base in layer.cls.script.library_bases(layer.cls.node)}


def _own_calls(built: Structure) -> Iterator[tuple[Script, ast.Call]]:
    for code in built.code:
        for node in ast.walk(code.node):
            if isinstance(node, ast.Call):
                yield code.script, node


def _saves(training: Training) -> Iterator[tuple[Script, ast.Call]]:
    """The calls that save a whole model, its optimizer included."""
    for script in training.script.project.scripts.values():
        for call in script.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "save":
                if any(v.kind in ("model", "parameter", "unknown") for v in _receiver(script, call)):
                    yield script, call
            elif (
                script.called(call).endswith((".save_model", ".ModelCheckpoint"))
                and script.constant(script.argument(call, "save_weights_only")) is not True
            ):
                yield script, call


def _saved_as_h5(training: Training) -> str:
    for script, call in _saves(training):
        given = [*call.args[:2], *(k.value for k in call.keywords if k.arg in ("filepath", "save_format"))]
        texts = {text for expr in given for text in _texts(script, expr)}
        if not any("." in text for text in texts):  # the name of the file is not seen: any may be meant
            texts |= {n.value for n in script.all(ast.Constant) if isinstance(n.value, str)}
        if any(_H5.search(text) and not text.endswith(".weights.h5") for text in texts):
            return f"`{ast.unparse(call.func)}` ({script.at(call)}) saves the whole model"
    return ""


def _receiver(script: Script, call: ast.Call) -> tuple[Value, ...]:
    return script.values(call.func.value) if isinstance(call.func, ast.Attribute) else ()


def _texts(script: Script, expr: ast.expr) -> set[str]:
    """The strings that an expression is made of, names in it followed."""
    found: set[str] = set()
    todo: list[ast.AST] = [expr]
    seen: set[ast.AST] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.add(part.value)
            elif isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
                for value in script.values(part):
                    if value.kind == "constant":
                        found.add(str(value.literal))
                bound = script.names.reaching(part) if isinstance(part, ast.Name) else ()
                todo.extend(b.value for b in bound if b.value is not None)
    return found


def _restores(training: Training) -> str:
    """How the training goes on from an optimizer state of an earlier run; empty if it does not."""
    for script in training.script.project.scripts.values():
        for call in script.calls_to(*_RESTORING_CALLBACKS):
            return f"`{ast.unparse(call.func)}` ({script.at(call)}) restores the optimizer"
        checkpoints = any(True for _ in script.calls_to("tensorflow.train.Checkpoint"))
        for call in script.calls:
            if not isinstance(call.func, ast.Attribute):
                continue
            shown = f"`{ast.unparse(call.func)}` ({script.at(call)}) restores the optimizer"
            if checkpoints and call.func.attr.startswith("restore"):
                return shown
            if call.func.attr in ("set_weights", "load_own_variables") and (
                any(v.kind == "optimizer" for v in _receiver(script, call))
                or (isinstance(call.func.value, ast.Attribute) and call.func.value.attr == "optimizer")
            ):
                return shown
        for site in script.sites("fit", "fit_generator", "train_on_batch"):
            if any(_is_loaded(m) and not any(same(m, c) for c in _compiled(script)) for m in site.models):
                where = script.at(site.call)
                return f"the `{site.method}` in {where} goes on with a loaded model and its optimizer"
    return _restores_weights(training)


def _is_loaded(model: Value) -> bool:
    return model.kind == "model" and model.name.endswith("load_model") and not _without_optimizer(model)


def _without_optimizer(model: Value) -> bool:
    assert model.script is not None
    return (
        isinstance(model.node, ast.Call)
        and model.script.constant(model.script.argument(model.node, "compile")) is False
    )


def _compiled(script: Script) -> Iterator[Value]:
    for other in script.project.scripts.values():
        for site in other.sites("compile"):
            yield from site.models


def _restores_weights(training: Training) -> str:
    """`load_weights` before a `fit`: in Keras 2 a checkpoint of TensorFlow's format holds the optimizer as well."""
    if training.script.target.keras == 3:
        return ""
    for script in training.script.project.scripts.values():
        for site in script.sites("load_weights"):
            if not any(same(a, b) for a in site.models for b in training.models) or not site.call.args:
                continue
            before = any(
                run.site.script is not script or run.site.call.lineno > site.call.lineno for run in training.fits
            )
            if before and not any(_H5.search(text) for text in _texts(script, site.call.args[0])):
                return f"`load_weights` ({script.at(site.call)}) restores a checkpoint with its optimizer"
    return ""


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


# -- the class where the library has none ----------------------------------------------------------------------------


@cache
def _snippet(name: str) -> str:
    """The source of the class, with `tf` open to be spelled as the user's file does."""
    text = files("codemods.snippets").joinpath(f"{name}.py").read_text(encoding="utf-8")
    start = text.index("class LAMB(")
    return re.sub(r"\btf\.", "{tensorflow}.", text[start:]).rstrip() + "\n"


def _free_name(owner: Script, snippet: str) -> str:
    name = "LAMB"
    while any(name in scope.bindings for scope in owner.names.scopes.values()) and not _is_ours(owner, name, snippet):
        name += "_"
    return name


def _is_ours(owner: Script, name: str, snippet: str) -> bool:
    """The class that an earlier optimizer of the same script has already brought in."""
    found = owner.names.module.bindings.get(name, [])
    if len(found) != 1 or not isinstance(found[0].node, ast.ClassDef):
        return False
    told = " ".join((ast.get_docstring(found[0].node) or "nothing").split())
    return told in " ".join(_snippet(snippet).split())


def _defined_for_graphs(owner: Script, uses: list[ast.Call], tensorflow: str) -> tuple[str, list[Edit]]:
    """The name of the class for TensorFlow 1, and what puts it above the calls that need it."""
    name = _free_name(owner, "lamb_tf1")
    if _is_ours(owner, name, "lamb_tf1"):
        return name, []
    text = _snippet("lamb_tf1").replace("{tensorflow}", tensorflow)
    return name, [_definition(owner, uses, text, name)]


def _uses(owner: Script, place: ast.expr) -> Iterator[ast.expr]:
    """Every optimizer of a file that may become LAMB: one class, above the first, is there for all of them."""
    yield place
    for training in trainings(owner):
        optimizer = training.compile.arguments.get("optimizer")
        if optimizer is not None and training.script is owner:
            yield optimizer
            yield from (v.node for v in owner.values(optimizer) if v.script is owner and isinstance(v.node, ast.expr))


def _definition(owner: Script, uses: Iterable[ast.expr], text: str, name: str) -> Edit:
    """The class, below the imports or above the first top-level statement that may need it."""
    if name != "LAMB":
        text = text.replace("class LAMB(", f"class {name}(")
    body = owner.tree.body
    first = min((outermost(owner, use, owner.tree) for use in uses), key=lambda s: s.lineno)
    imports = [s for s in body if isinstance(s, ast.Import | ast.ImportFrom) and s.lineno < first.lineno]
    top = [
        outermost(owner, s, owner.tree)
        for s in tensorflow_imports(owner)
        if not any(True for _ in owner.enclosing(s, *FUNCTIONS))
    ]
    anchor = max([*imports, *(s for s in top if s.lineno < first.lineno)], key=lambda s: s.lineno, default=body[0])
    return Insert(anchor, text, blank_lines=2)
