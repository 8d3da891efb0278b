"""What a program writes, prints and shows, and what reads such files back: work for rank 0 alone.

for_rank_0(program)     # the statements that go under `if hvd.rank() == 0:`, and what stands against it
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..data.pipelines import in_function_of
from ..scopes import Binding
from ..script import Script
from ..training import FITS
from .program import Program, trains_estimator
from .sources import Problem
from .steps import kind_of_run

Writes = Literal["file", "print", ""]

_FILES = re.compile(
    r"(numpy\.(save|savez|savez_compressed|savetxt)|(pickle|cPickle|joblib|json|yaml|dill|torch)\.(dump|save)"
    r"|os\.(remove|unlink|rename|replace|rmdir|removedirs|renames|symlink|mkdir)|shutil\.(rmtree|move|copy\w*)"
    r"|matplotlib\.(pyplot|pylab)\.(savefig|show|imsave)|seaborn\.\w*savefig|cv2\.(imwrite|imshow)"
    r"|imageio\.(\w+\.)?(imwrite|imsave|mimsave|mimwrite)|scipy\.(misc|io)\.(imsave|savemat)|scipy\.io\.wavfile\.write"
    r"|tensorflow\.(saved_model\.save|io\.write_file|io\.write_graph|io\.TFRecordWriter|python_io\.TFRecordWriter"
    r"|train\.write_graph|summary\.(create_file_writer|FileWriter)|keras\.utils\.plot_model"
    r"|io\.gfile\.(remove|rmtree|rename|copy|mkdir))"
    r"|(tensorflow\.)?keras\.(\w+\.)*(save_model|plot_model|save_img|save_weights)|h5py\.File|logging\.(FileHandler|basicConfig)"
    r"|tensorflowjs\.converters\.\w+|pandas\.\w*\.to_(csv|pickle|hdf|excel|parquet|json)|wandb\.(log|save|finish)"
    r"|mlflow\.\w*log\w*|mlflow\.set_\w+)$"
)
#: Methods that write a file, whatever they are called on.
_METHODS = frozenset(
    "save save_weights savefig save_model save_pretrained to_csv to_pickle to_excel to_hdf to_parquet write_text "
    "write_bytes write_out imsave tofile unlink".split()
)
_PRINTS = frozenset({"builtins.print", "pprint.pprint", "pprint.pp", "tensorflow.print"})


def writes(script: Script, call: ast.Call) -> Writes:
    """Whether a call writes a file or prints."""
    name = script.called(call)
    if name in _PRINTS:
        return "print"
    if name == "builtins.open" or (name in ("io.open", "gzip.open", "codecs.open", "tensorflow.io.gfile.GFile")):
        mode = call.args[1] if len(call.args) > 1 else script.argument(call, "mode")
        return "file" if mode is not None and set(str(script.constant(mode) or "w")) & set("wax+") else ""
    if name == "h5py.File":
        mode = call.args[1] if len(call.args) > 1 else script.argument(call, "mode")
        return "" if mode is None or script.constant(mode) == "r" else "file"
    if name == "logging.basicConfig":
        return "file" if script.argument(call, "filename") is not None else ""
    if name and _FILES.match(name):
        return "file"
    if isinstance(call.func, ast.Attribute):
        receiver = script.values(call.func.value)
        if call.func.attr == "summary" and any(v.kind == "model" for v in receiver):
            return "print"
        if call.func.attr == "export" and any(v.kind == "model" for v in receiver):
            return "file"
        if call.func.attr in _METHODS and not any(v.kind in ("dataset", "symbol") for v in receiver):
            return "file"
        if call.func.attr == "open" and call.args and set(str(script.constant(call.args[0]) or "")) & set("wax+"):
            return "file"
    return ""


def trains(script: Script, node: ast.AST) -> bool:
    """Whether it holds a `fit`, or calls a function of the project that does: all ranks have to take part in that."""
    from ..data.pipelines import reached

    return any(
        trains_estimator(owner, c)
        or (
            isinstance(c.func, ast.Attribute)
            and (
                c.func.attr in (*FITS, "train_on_batch", "apply_gradients", "gradient")
                or kind_of_run(owner, c) in ("train", "init")
            )
        )
        for owner, c in reached(script, [node])
    )


def saves_whole_models(program: Program, ending: str) -> bool:
    """Whether the program names files with this ending, as `model.save("model.keras")` does."""
    return any(
        isinstance(text.value, str) and text.value.endswith(ending)
        for script in program.scripts
        if ending in script.source.text
        for text in script.all(ast.Constant)
    )


@dataclass(eq=False)
class Guarded:
    """Statements for rank 0 alone; `folders` are `makedirs` calls that may collide."""

    statements: dict[ast.stmt, Script] = field(default_factory=dict)
    folders: list[tuple[Script, ast.Call]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def for_rank_0(program: Program, apart: Iterable[ast.AST] = (), alone: Iterable[ast.AST] = ()) -> Guarded:
    """What of a program only rank 0 should do.

    apart: classes that are dealt with otherwise, such as callbacks. alone: statements that only rank 0 runs anyway.
    """
    found = Guarded()
    skipped = (*apart, *alone)
    for script, call in program.calls():
        if any(node in skipped for node in script.enclosing(call, ast.ClassDef, ast.stmt)):
            continue
        if script.called(call) == "os.makedirs":
            exists = script.argument(call, "exist_ok")
            if exists is None and len(call.args) < 3:
                found.folders.append((script, call))
            continue
        kind = writes(script, call)
        if not kind and _reads_back(program, script, call):
            kind = "file"
        if kind == "file" and _temporary(script, call):
            continue  # every rank has files of its own there
        if kind == "file" and _is_training_data(program, script, call):
            reason = f"`{script.text(call.func)}` writes files before training, which rank 0 alone would have"
            hint = "prepare the data in a program of its own, which runs first"
            found.problems.append(Problem(script, call, reason, hint))
        elif kind:
            _guard(found, program, script, call, kind)
    _follow(found, program)
    return found


def _temporary(script: Script, call: ast.Call) -> bool:
    """Whether it writes into memory, or into a folder that `tempfile` made, or a path is built from one."""
    todo: list[tuple[Script, ast.AST]] = [(script, call)]
    seen: set[ast.AST] = set()
    while todo:
        owner, node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and owner.called(inner).startswith(
                ("tempfile.", "io.BytesIO", "io.StringIO")
            ):
                return True
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                todo += [(owner, b.value) for b in owner.names.reaching(inner) if b.value is not None]
                values = owner.values(inner)
                todo += [(v.script, v.node) for v in values if v.script and isinstance(v.node, ast.expr)]
    return False


_DATA = re.compile(
    r".*(TFRecordWriter|\.(savez?|savez_compressed|savetxt|imwrite|imsave|save_img|to_csv|to_pickle|to_hdf|to_parquet"
    r"|dump))$|shutil\.\w+$|os\.(rename|replace|renames|symlink|remove|unlink)$|h5py\.File$"
)
_READS_DATA = re.compile(
    r"tensorflow\.data\.(TFRecordDataset|TextLineDataset|FixedLengthRecordDataset|Dataset\.list_files|"
    r"experimental\.(make_csv_dataset|CsvDataset|make_batched_features_dataset))$|.*_dataset_from_directory$|"
    r"pandas\.read_\w+$|numpy\.(load|loadtxt|genfromtxt|memmap)$|pickle\.load$|joblib\.load$|h5py\.File$"
)


def _is_training_data(program: Program, script: Script, call: ast.Call) -> bool:
    """Whether a file may be written that training reads: every rank would have to find it."""
    text = script.called(call) or (f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else "")
    if text == "builtins.open":
        text = ".savetxt"
    if not _DATA.match(text):
        return False
    receiver = script.values(call.func.value) if isinstance(call.func, ast.Attribute) else ()
    if any(v.kind == "model" or v.name == "tensorflow.train.Saver" for v in receiver):
        return False
    fits = [s.call for s in program.sites(*FITS)]
    fits += [c for s, c in program.calls() if trains_estimator(s, c)]
    here = [f for f in fits if f in script.names.parents and script.function_of(f) is script.function_of(call)]
    if here and all(f.lineno < call.lineno for f in here):
        return False
    return any(
        _READS_DATA.match(other.called(c))
        or (isinstance(c.func, ast.Attribute) and c.func.attr == "flow_from_directory")
        for other, c in program.calls()
        if c is not call
    )


def _guard(found: Guarded, program: Program, script: Script, call: ast.Call, kind: Writes) -> None:
    statement = script.statement(call)
    if script.is_generator(script.function_of(call) or script.tree) or _in_graph(script, call):
        return
    if kind == "print" and (not isinstance(statement, ast.Expr) or statement.value is not call or _draws(script, call)):
        return  # one that also computes something stays as it is
    around = next(script.enclosing(call, ast.Lambda), None)
    if around is not None:
        found.problems.append(Problem(script, call, f"`{script.text(call)}` writes in a lambda, on every rank"))
        return
    if trains(script, statement):
        if kind == "file":
            found.problems.append(
                Problem(script, call, f"`{script.text(call)}` writes in a statement that also trains: every rank would")
            )
        return
    if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.With):
        found.statements.setdefault(statement, script)
        return
    found.problems.append(
        Problem(
            script,
            call,
            f"`{script.text(call)}` writes, on every rank, in a statement that cannot be left to rank 0",
            "write on a line of its own",
        )
    )


def _in_graph(script: Script, call: ast.Call) -> bool:
    return in_function_of(script, call, "map", "filter", "interleave", "flat_map", "from_generator", "apply")


def _draws(script: Script, call: ast.Call) -> bool:
    """Whether the arguments of a print use up random numbers or elements, which the other ranks would not."""
    for node in ast.walk(call):
        if isinstance(node, ast.Call) and node is not call:
            name = script.called(node)
            if name == "builtins.next" or ".random." in f".{name}" or name.startswith("random."):
                return True
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", "get_next", "append", "popleft"):
                return True
        if isinstance(node, ast.NamedExpr | ast.Yield | ast.Await):
            return True
    return False


_LOADS = frozenset("load_weights load_model".split())
_READS = (".load_model", "latest_checkpoint")
#: Readers of files that are known by their path alone.
_READS_PATH = re.compile(
    r"(builtins|io|gzip|PIL\.Image|tensorflow\.io\.gfile)\.(open|GFile)|numpy\.(load|loadtxt|genfromtxt)|pandas\.read_\w+"
    r"|tensorflow\.(saved_model\.load|io\.read_file)|(joblib|imageio)\.(load|imread)|matplotlib\.(pyplot|image)\.imread"
)
_LISTS = re.compile(r"os\.(listdir|scandir|walk)|glob\.i?glob|tensorflow\.io\.gfile\.(listdir|glob|walk)")
_SAVES = frozenset("save save_weights save_model savetxt savez savez_compressed savefig to_csv".split())
#: Functions whose second argument is the path that they write to.
_SAVES_SECOND = ("saved_model.save", ".save_model")


def _reads_back(program: Program, script: Script, call: ast.Call) -> bool:
    """Whether a call reads what the program itself has written, which the other ranks may not find."""
    name = script.called(call)
    last = (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )
    is_model = last in _LOADS or name.endswith(_READS)
    lists = _LISTS.fullmatch(name) is not None or _is_lister(script, call)
    if not is_model and not lists and not (_READS_PATH.fullmatch(name) and not writes(script, call)):
        return False
    fits = [
        s.call
        for s in program.sites(*FITS)
        if s.script is script and s.script.function_of(s.call) is script.function_of(call)
    ]
    if all(call.lineno < f.lineno for f in fits) and (fits or not is_model):
        return False  # it is read before anything is trained
    path = call.args[0] if call.args else script.argument(call, "filepath")
    written = list(_written(program))
    if lists or (is_model and fits and not isinstance(script.constant(path), str)):
        theirs = {text for other, node in written if node is not None for text in _strings(other, node)}
        if any(
            text == mine or text.startswith(mine.rstrip("/") + "/")
            for mine in _strings(script, path)
            for text in theirs
        ):
            return True
    if lists:
        return False
    if path is None:
        return is_model and bool(written)
    mine_is = _path(script, path)
    paths = [_path(other, node) for other, node in written if node is not None]
    return mine_is in paths or (is_model and len(paths) < len(written))


def _is_lister(script: Script, call: ast.Call) -> bool:
    """Whether it calls a function of the project that lists a folder, as one that finds the newest checkpoint."""
    return any(
        v.script is not None
        and isinstance(v.node, ast.FunctionDef)
        and any(isinstance(n, ast.Call) and _LISTS.fullmatch(v.script.called(n)) for n in ast.walk(v.node))
        for v in (script.values(call.func) if isinstance(call.func, ast.Name) else ())
    )


def _strings(script: Script, path: ast.expr | None) -> set[str]:
    """What a path is made of: of `checkpoint_dir`, which is `os.path.dirname(checkpoint_path)`."""
    found = script.behind(path) if path is not None else ()
    return {n.value for n in found if isinstance(n, ast.Constant) and isinstance(n.value, str) and len(n.value) > 1}


def _written(program: Program) -> Iterable[tuple[Script, ast.expr | None]]:
    """The paths that a program writes to."""
    for script, call in program.calls():
        name = script.called(call)
        opens = name == "builtins.open" and writes(script, call) == "file"
        saves = isinstance(call.func, ast.Attribute) and call.func.attr in _SAVES
        if opens or saves or name.endswith((".ModelCheckpoint", ".CSVLogger")):
            index = int(name.endswith(_SAVES_SECOND))
            given = call.args[index] if len(call.args) > index else script.argument(call, "filepath")
            yield script, given or script.argument(call, "filename")


def _path(script: Script, node: ast.expr) -> str:
    text = script.constant(node)
    return str(text) if isinstance(text, str) else ast.unparse(node)


def _follow(found: Guarded, program: Program) -> None:
    """What uses a name that only guarded statements give a value belongs under the guard too."""
    todo, known = list(found.statements.items()), 0
    while todo or len(found.statements) > known:
        if not todo:  # once more: what seemed to have a value from elsewhere may have got that under the guard as well
            todo, known = list(found.statements.items()), len(found.statements)
        statement, script = todo.pop()
        if (fit := _trained(script, statement)) is not None:
            reason = f"what only rank 0 may read here is trained on every rank ({script.at(fit)})"
            found.problems.append(Problem(script, statement, reason, "compile it again after it is loaded"))
            continue
        for name, loads in _bound(script, statement, found.statements):
            for load in loads:
                use = script.statement(load)
                if use in found.statements or any(s in found.statements for s in script.enclosing(load, ast.stmt)):
                    continue
                outside = script.function_of(load) is not script.function_of(statement)
                if (
                    outside
                    or not isinstance(use, ast.Expr | ast.Assign | ast.With | ast.AugAssign)
                    or trains(script, use)
                ):
                    found.problems.append(
                        Problem(
                            script,
                            statement,
                            f"only rank 0 may write this, but `{name}`, which it gives a value, is used on every rank "
                            f"({script.at(load)})",
                        )
                    )
                    continue
                found.statements[use] = script
                todo.append((use, script))


def _trained(script: Script, statement: ast.stmt) -> ast.AST | None:
    """Where a model that a statement gives a name is trained."""
    inside = set(ast.walk(statement))
    for bindings in script.names.scope_of(statement).bindings.values():
        for binding in bindings:
            for load in script.names.loads(binding) if binding.node in inside else ():
                parent = script.parents.get(load)
                if isinstance(parent, ast.Attribute) and parent.attr in (*FITS, "train_on_batch"):
                    return load
    return None


def _bound(script: Script, statement: ast.stmt, guarded: Container[ast.AST]) -> Iterable[tuple[str, list[ast.Name]]]:
    """The names that a statement gives a value, and what uses a value that comes from there alone, or from statements
    that are guarded as well."""
    scope = script.names.scope_of(statement)
    inside = set(ast.walk(statement))
    for name, bindings in scope.bindings.items():
        mine = [b for b in bindings if b.node in inside]
        if not mine:
            continue
        everywhere = [b for b in bindings if b not in mine and not _is_guarded(script, b, guarded)]
        loads = []
        for binding in mine:
            for load in script.names.loads(binding):
                others = [b for b in script.names.reaching(load) if b in everywhere or b not in bindings]
                if load not in inside and not others and not _was_bound(script, everywhere, statement):
                    loads.append(load)
        if loads:
            yield name, loads


def _is_guarded(script: Script, binding: Binding, guarded: Container[ast.AST]) -> bool:
    return any(s in guarded for s in script.enclosing(binding.node, ast.stmt))


def _was_bound(script: Script, bindings: list[Binding], statement: ast.stmt) -> bool:
    """`model = load_model(...)` where `model` had a value before: the other ranks keep that."""
    block = script.parents.get(statement)
    for b in bindings:
        if getattr(b.node, "lineno", 10**9) < statement.lineno and not _deleted(script, b, statement):
            around = script.parents.get(script.statement(b.node)) if not isinstance(b.node, ast.arg) else block
            if around is block or isinstance(around, ast.Module | ast.FunctionDef):
                return True
    return False


def _deleted(script: Script, binding: Binding, statement: ast.stmt) -> bool:
    """`del model` between the two."""
    return any(
        isinstance(target, ast.Name)
        and target.id == binding.name
        and getattr(binding.node, "lineno", 0) < target.lineno < statement.lineno
        and script.names.scope_of(target) is script.names.scope_of(statement)
        for deletion in script.all(ast.Delete)
        for target in deletion.targets
    )
