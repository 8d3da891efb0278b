"""What several workers need: the same data in the same order on each, and files of one of them only.

Every worker goes through all batches and takes its part of each. All of them take part in saving a model, whose
variables are read from all; the chief keeps its file, the others write into a temporary folder.
"""

from __future__ import annotations

import ast

from rewriter.data.pipelines import reached
from rewriter.distribution.writes import for_rank_0, writes
from rewriter.edits import Chain, Guard, Insert, SetKeyword, Wrap
from rewriter.script import Script
from rewriter.training import FITS, ON_BATCH, TESTS, Run, Training, callbacks

from .data import same_order
from .data_names import name_of_module
from .strategies import ByStrategy
from .strategy_data import by_sample, in_memory, same_on_workers

#: Callbacks that do the same on every worker, or of which Keras keeps the files of the chief only.
_HARMLESS = frozenset(
    "EarlyStopping ReduceLROnPlateau LearningRateScheduler History Callback BaseLogger TerminateOnNaN BackupAndRestore "
    "LambdaCallback ProgbarLogger ModelCheckpoint TensorBoard".split()
)
_SEEDS = ("numpy.random.seed", "tensorflow.keras.utils.set_random_seed", "keras.utils.set_random_seed")
_SAVES = frozenset("save save_weights".split())
_ASKS = frozenset("exists isfile isdir is_file is_dir glob listdir latest_checkpoint".split())
_LOADS = frozenset("load_weights load_model".split())


def convert(conversion: ByStrategy, trainings: list[Training]) -> None:
    """Give every worker the same data, and let `fit` divide its batches."""
    same_order(conversion)
    for training in trainings:
        for run in [*training.fits, *training.tests]:
            _data(conversion, run)
        for run in training.fits:
            _callbacks(conversion, run)
        for site in training.on_batch:
            reason = f"`{site.method}` gives every worker a batch of its own"
            conversion.refuse(site.script, site.call, reason, "train with `fit`")


# -- data ----------------------------------------------------------------------------------------------------


def _data(conversion: ByStrategy, run: Run) -> None:
    script, site = run.site.script, run.site
    if site.arguments.open:
        conversion.refuse(script, site.call, f"arguments of `{site.method}` are given through `*` or `**`")
    elif run.data == "arrays":
        shuffle = site.arguments.get("shuffle")
        if run.purpose == "fit" and (shuffle is None or script.constant(shuffle) is not False):
            _seed(conversion)
        _seed_drawn(conversion, run)
    elif run.data == "dataset" and run.source is not None:
        same_on_workers(conversion, script, run.source)
        if not all(in_memory(v) for v in script.values(run.source)):
            _by_sample(conversion, script, run.source)
    else:
        what = {"loader": "a loader", "generator": "a generator"}.get(run.data, "what is not known")
        reason = f"`{site.method}` is given {what}: whether all workers get the same batches is not proven"
        conversion.refuse(script, site.call, reason, "make a `tf.data.Dataset` of it")


def _seed(conversion: ByStrategy) -> None:
    """The order in which `fit` takes samples comes from TensorFlow's seed."""
    for script, call in conversion.program.calls():
        name = script.called(call)
        seeds = name.startswith(("tensorflow.", "keras.")) and name.endswith((".set_seed", "set_random_seed"))
        if seeds and call.args and script.number(call.args[0]) is not None:
            return
    if not conversion.seeded:
        conversion.seeded = "{tensorflow.random.set_seed}(0)"
        conversion.note("a seed is set: every worker has to take the samples in the same order")


def _seed_drawn(conversion: ByStrategy, run: Run) -> None:
    """Data that is drawn at random is the same on every worker."""
    script, given = run.site.script, [run.source, run.site.arguments.get("y")]
    if any(o.called(c) in _SEEDS for o, c in conversion.program.calls()):
        return
    for node in script.behind(*[e for e in given if e is not None]):
        if isinstance(node, ast.Call) and script.called(node).startswith("numpy.random."):
            if name := name_of_module(conversion.script, "numpy"):
                conversion.seeds.add(f"{name}.random.seed(0)")
                conversion.note("a seed is set: every worker has to have the same data")
                return
            conversion.refuse(script, node, "every worker would draw other data", "set a seed: `np.random.seed(0)`")


def _by_sample(conversion: ByStrategy, script: Script, source: ast.expr) -> None:
    """Files are not divided over the workers, which may have other numbers of them: samples are."""
    if not conversion.knows(script, source):
        conversion.refuse(script, source, f"this dataset needs an option that `{conversion.script.path.name}` makes")
        return
    conversion.add(Chain(source, f"with_options({by_sample(conversion)})"))


# -- files ---------------------------------------------------------------------------------------------------


def _callbacks(conversion: ByStrategy, run: Run) -> None:
    site = run.site
    found, why = callbacks(site)
    if why:
        conversion.refuse(site.script, site.call, why)
        return
    for value in found:
        name = value.name.rpartition(".")[2]
        if value.cls is not None:
            _own_callback(conversion, value.cls.script, value.cls.node)
        elif name == "CSVLogger" and value.script is not None and isinstance(value.node, ast.Call):
            path = value.script.bind(value.node, ("filename",)).get("filename")
            if path is not None:
                _aside(conversion, value.script, path)
        elif name not in _HARMLESS:
            conversion.refuse(
                site.script, site.call, f"what the callback `{name}` does on several workers is not known"
            )


def _own_callback(conversion: ByStrategy, script: Script | None, cls: ast.AST | None) -> None:
    if script is None or not isinstance(cls, ast.ClassDef):
        return
    if any(b.endswith("CSVLogger") for b in script.library_bases(cls)):
        conversion.refuse(script, cls, f"`{cls.name}` writes a file, on every worker")
    attributes = [n for n in ast.walk(cls) if isinstance(n, ast.Attribute)]
    clocks = [n for n in attributes if n.attr in ("time", "perf_counter", "monotonic", "now")]
    if clocks and any(n.attr == "stop_training" for n in attributes):
        conversion.refuse(script, clocks[0], f"`{cls.name}` looks at the clock of one worker, which would end alone")


def by_chief(conversion: ByStrategy) -> None:
    """Files are written by the chief; models are saved by all workers, and kept by the chief."""
    program = conversion.program
    kept = list(_kept(conversion))
    _resumed(conversion)
    found = for_rank_0(program)
    for problem in found.problems:
        conversion.refuse_problem(problem)
    for _, call in found.folders:
        conversion.add(SetKeyword(call, "exist_ok", "True"))
    for statement, script in found.statements.items():
        if any(s in found.statements for s in script.enclosing(statement, ast.stmt)):
            continue
        calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
        if any(c in conversion.together and writes(script, c) == "file" for c in calls):
            continue  # every worker has a folder of its own for it
        saved = [c for c in calls if c in kept]
        files = [c for c in calls if writes(script, c) == "file" and c not in kept]
        if not files and (saved or all(writes(script, c) == "print" for c in calls if writes(script, c))):
            loads = [c for c in calls if _last(c) in _LOADS]
            if loads and not saved:
                _load(conversion, script, loads[0])
            continue
        if script.function_of(statement) is None and not conversion.knows(script, statement):
            continue  # it comes before the strategy
        if (together := _together(conversion, script, statement)) is not None:
            reason = f"only the chief writes this, but all workers take part in `{script.text(together.func)}`"
            conversion.refuse(script, together, reason, "write on a line of its own")
            continue
        conversion.add(Guard(statement, _chief(conversion, script, statement)))


def _last(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _is_of_model(script: Script, call: ast.Call) -> bool:
    """Whether it is a method of a model that is called."""
    return isinstance(call.func, ast.Attribute) and any(v.kind == "model" for v in script.values(call.func.value))


def _kept(conversion: ByStrategy) -> list[ast.Call]:
    """Calls that save a model, with their paths changed for the workers that are not the chief."""
    found = []
    for script, call in conversion.program.calls():
        path: ast.expr | None = None
        if script.called(call).endswith((".save_model", "saved_model.save")):
            path = script.bind(call, ("model", "filepath")).get("filepath")
        elif _last(call) in _SAVES and _is_of_model(script, call):
            path = script.bind(call, ("filepath",)).get("filepath")
        if path is not None:
            _aside(conversion, script, path)
            found.append(call)
    return found


def _load(conversion: ByStrategy, script: Script, call: ast.Call) -> None:
    """What is read back stands where this worker has put it."""
    path = call.args[0] if call.args else script.argument(call, "filepath")
    if path is None or ast.unparse(path) not in conversion.aside:
        conversion.refuse(
            script, call, "it reads what only the chief has written", "read from the path that was written"
        )
        return
    _aside(conversion, script, path)


def _resumed(conversion: ByStrategy) -> None:
    """What an earlier run has written is on the chief's host: the others would start from something else."""
    for script, call in conversion.program.calls():
        if _last(call) not in _LOADS:
            continue
        for around in script.enclosing(call, ast.If):
            assert isinstance(around, ast.If)
            if any(isinstance(n, ast.Call) and _last(n) in _ASKS for n in ast.walk(around.test)):
                shown = script.text(around.test)
                reason = f"whether `{shown}` may differ from host to host: workers would start from other weights"
                conversion.refuse(script, call, reason, "load it on all workers, from a folder that they share")
                break


def _together(conversion: ByStrategy, script: Script, statement: ast.stmt) -> ast.Call | None:
    """A call in which all workers have to take part."""
    together = (*FITS, *TESTS, *ON_BATCH, *_SAVES)
    for owner, call in reached(script, [statement]):
        if call in conversion.together:
            return call
        if _last(call) in together and _is_of_model(owner, call):
            return call
    return None


def _aside(conversion: ByStrategy, script: Script, path: ast.expr) -> None:
    """Every worker has a path of its own, the chief the one of the script."""
    conversion.aside.add(ast.unparse(path))
    conversion.add(Wrap(path, f"{_path(conversion, script, path)}(...)"))


def _path(conversion: ByStrategy, script: Script, node: ast.AST) -> str:
    _chief(conversion, script, node)
    if not conversion.path:
        conversion.path = conversion.free_name(conversion.script, "path_of_worker", "own_path")
    return conversion.path


def _chief(conversion: ByStrategy, script: Script, node: ast.AST) -> str:
    """A name that is true for the one worker whose files are kept."""
    if not conversion.knows(script, node):
        reason = f"it writes files, in a place that does not know `{conversion.strategy}`"
        conversion.refuse(script, node, reason, "write them in the script itself")
    if not conversion.chief:
        conversion.chief = conversion.free_name(conversion.script, "is_chief", "chief")
    return conversion.chief


# -- what stands below the strategy --------------------------------------------------------------------------


def below(conversion: ByStrategy) -> str:
    """The lines below the strategy: seeds, which worker this is, and where it puts its files."""
    lines = [*sorted(conversion.seeds), *([conversion.seeded] if conversion.seeded else [])]
    lines = [f"{seed}  # the same order of the data on every worker" for seed in lines]
    if conversion.options:
        name = conversion.options
        lines.append(f"{name} = {{tensorflow.data.Options}}()")
        policy = "{tensorflow.data.experimental.AutoShardPolicy}.DATA"
        lines.append(f"{name}.experimental_distribute.auto_shard_policy = {policy}")
    if conversion.chief:
        worker = conversion.free_name(conversion.script, "worker", "this_worker")
        lines.append(f"{worker} = {conversion.strategy}.cluster_resolver")
        first = f'{worker}.task_id == 0 and "chief" not in {worker}.cluster_spec().jobs'
        lines.append(f'{conversion.chief} = {worker}.task_type != "worker" or ({first})')
    text = "".join(f"\n{line}" for line in lines)
    if not conversion.path:
        return text
    os, tempfile = _module(conversion, "os"), _module(conversion, "tempfile")
    folder = conversion.free_name(conversion.script, "folder_of_worker", "own_folder")
    return (
        f"\n\n\ndef {conversion.path}(path):\n"
        '    """Every worker takes part in saving; only the chief keeps its files."""\n'
        f"    return path if {conversion.chief} else {os}.path.join({folder}, {os}.path.basename(path))\n\n"
        f"{text}\n{folder} = {tempfile}.mkdtemp()"
    )


def _module(conversion: ByStrategy, name: str) -> str:
    """The name of a module in the script, imported where it is not."""
    script = conversion.script
    for bound, bindings in script.names.module.bindings.items():
        if all(b.kind == "import" and b.symbol == name for b in bindings):
            return bound
    first = next((s for s in script.tree.body if isinstance(s, ast.Import | ast.ImportFrom)), None)
    future = isinstance(first, ast.ImportFrom) and first.module == "__future__"
    if first is None or future or not script.is_free(name):
        conversion.refuse(script, first or script.tree, f"`{name}` has to be imported, and is not", f"import {name}")
        return name
    conversion.add(Insert(first, f"import {name}", after=False))
    return name
