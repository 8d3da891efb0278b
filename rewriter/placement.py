"""Where a statement goes that has to run before any Keras layer is made, and after TensorFlow is imported.

    Placement(reach, sites, "tensorflow.keras.mixed_precision.set_global_policy").find()

Below the imports, but above those of files and packages that may make layers when they are imported; never
in a `try` that guards against a missing TensorFlow; in the function that imports TensorFlow where only that
does.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from . import catalog
from .edits import Insert
from .environment import settings
from .reach import Reach, module_level
from .scopes import FUNCTIONS, holds, is_main_guard
from .script import Script
from .spelling import spell, tensorflow_imports
from .values import Value

#: Packages that make no Keras layers when they are imported.
_HARMLESS = frozenset(
    "numpy scipy pandas sklearn skimage matplotlib mpl_toolkits seaborn PIL cv2 tqdm h5py yaml absl requests "
    "joblib imageio nltk gensim tensorflow keras tf_keras tensorflow_datasets tensorflow_probability "
    "tensorflow_addons tensorflow_hub tensorflow_text transformers torch torchvision jax wandb mlflow plotly "
    "bokeh librosa soundfile albumentations imgaug psutil IPython gym gymnasium lightgbm xgboost dotenv "
    "click fire hydra omegaconf comet_ml sacred pydot graphviz statsmodels spacy numba dask pyarrow datasets "
    "tensorboard horovod google six future past networkx dateutil pytz colorama termcolor rich typer attr "
    "pydantic imblearn optuna pylab simplejson keras_preprocessing keras_applications sentencepiece "
    "tokenizers nibabel pydicom SimpleITK rasterio imutils natsort lxml bs4 pycocotools hyperopt missingno mlxtend "
    "xarray netCDF4 pywt mne geopandas shapely rdkit Bio pymongo sqlalchemy boto3 tabulate jsonlines ujson tifffile "
    "wget gdown kaggle yfinance emoji jieba regex textblob wordcloud pretty_midi mediapipe prettytable mpi4py cupy "
    "einops shap lime eli5 xmltodict efficientnet segmentation_models classification_models keras_tuner kerastuner "
    "livelossplot visualkeras tensorflow_io cPickle Queue urllib2 ConfigParser StringIO __future__".split()
)


@dataclass(frozen=True)
class Place:
    """After or before a statement; `blank_lines` as the script has them there."""

    anchor: ast.stmt
    after: bool = True
    blank_lines: int = 0


class NoPlace(Exception):
    """There is none, and why; `node` is where to report it, if anywhere."""

    def __init__(self, node: ast.AST | None, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


class Placement:
    """Finds the place in the script of `reach`.

    sites: the calls that train. name: the dotted name that the statement uses. devices: the statement looks
    for GPUs, so that it must follow what chooses them (`os.environ["CUDA_VISIBLE_DEVICES"] = ...`).
    comes_after: what must not be made before it; layers and models as a rule. chooses: whether a node says which
    devices there are.
    """

    def __init__(
        self,
        reach: Reach,
        sites: Sequence[ast.Call],
        name: str,
        *,
        devices: bool = False,
        comes_after: Callable[[Value], bool] = lambda value: value.kind in ("layer", "model"),
        chooses: Callable[[ast.AST], bool] | None = None,
    ) -> None:
        self.reach, self.script, self.sites, self.name = reach, reach.script, sites, name
        self.devices, self.comes_after = devices, comes_after
        self.chooses = chooses or chooses_devices

    def find(self) -> Place:
        script = self.script
        imports = [s for s in tensorflow_imports(script) if self.reach.contains(script, s)]
        module = [s for s in imports if script.names.scope_of(s) is script.names.module]
        guarded = [s for s in module if any(is_main_guard(n) for n in script.enclosing(s, ast.If))]
        top = [s for s in module if s not in guarded]
        if top:
            return self._in_block(script.tree, script.tree.body, top[0])
        if guarded:
            guard = next(n for n in script.enclosing(guarded[0], ast.If) if is_main_guard(n))
            assert isinstance(guard, ast.If)
            return self._in_block(guard, guard.body, guarded[0])
        functions = {f for s in imports if (f := script.function_of(s)) is not None}
        if len(functions) > 1:
            functions = {f for f in functions if any(f in script.enclosing(s, *FUNCTIONS) for s in self.sites)}
        if len(functions) == 1:
            (function,) = functions
            if isinstance(function, ast.FunctionDef):
                first = next(s for s in imports if script.function_of(s) is function)
                return self._in_block(function, function.body, first)
        if imports:
            raise NoPlace(
                imports[0],
                "TensorFlow is imported in several functions: no one place comes before every layer",
            )
        return self._below_other_imports()

    def _below_other_imports(self) -> Place:
        """TensorFlow is imported by the files beside this one only: an import has to come with it."""
        body = self.script.tree.body
        for before, statement in pairwise(body):
            barrier = self.is_barrier(self.script, statement)
            if barrier or not (isinstance(statement, ast.Import | ast.ImportFrom) or _is_text(statement)):
                if isinstance(before, ast.Import | ast.ImportFrom):
                    return Place(before, True, _gap(before, None if barrier else statement))
                break
        raise NoPlace(None, "there is no place for the policy: this file does not import TensorFlow")

    def _in_block(self, block: ast.AST, body: list[ast.stmt], first: ast.stmt) -> Place:
        script = self.script
        outer: ast.AST = first
        attempt: ast.Try | None = None
        while script.parents[outer] is not block:
            outer = script.parents[outer]
            if isinstance(outer, ast.If) and not holds(outer.test):
                raise NoPlace(first, "TensorFlow is imported under a condition: the policy belongs there too, by hand")
            if isinstance(outer, ast.Try):
                attempt = outer
        assert isinstance(outer, ast.stmt)
        start = body.index(outer)
        for statement in body[:start]:
            if self.is_barrier(script, statement, surely=True):
                raise NoPlace(statement, "layers are made here, before TensorFlow is imported in this file")
        if attempt is not None and not _always_imports(attempt):
            return self._under_condition(body, start, attempt)
        anchor = self._end_of_imports(body, start)
        if not self._is_spelled(body[anchor]):  # a later import may bind the name that is needed
            anchor = self._later_import(body, anchor)
        if self.devices and (chosen := self._behind_devices(body, anchor)) is not None:
            return chosen
        return Place(body[anchor], True, _gap(body[anchor], body[anchor + 1] if anchor + 1 < len(body) else None))

    def _end_of_imports(self, body: list[ast.stmt], start: int) -> int:
        """The last import of the block that TensorFlow's is in: a few settings in between do not end it."""
        anchor, between = start, 0
        for index in range(start + 1, len(body)):
            statement = body[index]
            if self.is_barrier(self.script, statement):
                break
            if _imports(statement):
                anchor, between = index, 0
            elif not isinstance(statement, _ENDS_IMPORTS) and between < 5:
                between += 1
            else:
                break
        return anchor

    def _later_import(self, body: list[ast.stmt], anchor: int) -> int:
        for index in range(anchor + 1, len(body)):
            if self.is_barrier(self.script, body[index]):
                break
            if isinstance(body[index], ast.Import | ast.ImportFrom) and self._is_spelled(body[index]):
                return self._end_of_imports(body, index)
        return anchor

    def _is_spelled(self, anchor: ast.stmt) -> bool:
        """Is there a name for what is to be called behind this statement?"""
        return not spell(self.script, self.name, Insert(anchor, ""))[1]

    def _under_condition(self, body: list[ast.stmt], start: int, attempt: ast.Try) -> Place:
        """TensorFlow may be absent: inside the one condition under which layers are made."""
        makers = [s for s in body[start + 1 :] if self.builds(self.script, s)]
        if len(makers) == 1 and isinstance(makers[0], ast.If) and not is_main_guard(makers[0]):
            condition = makers[0]
            if not any(self.builds(self.script, s) for s in condition.orelse):
                return Place(condition.body[0], False)
        raise NoPlace(attempt, "TensorFlow may be absent here: no one condition holds everything that uses it")

    # -- the choice of GPUs ----------------------------------------------------------------------------------

    def _behind_devices(self, body: list[ast.stmt], anchor: int) -> Place | None:
        """The place behind what chooses GPUs, where that stands below the anchor or in a function."""
        script, found = self.script, None
        for node in ast.walk(script.tree):
            if not self.chooses(node) or not self.reach.contains(script, node):
                continue
            block, statement = self._unconditional(node)
            if block is None:
                raise NoPlace(node, "which GPUs are used is set in code that may run late: a policy must come after it")
            inside = block.body.index(statement)
            before = block.body[:inside]
            if block.body is body:
                if inside <= anchor:
                    continue
                before = body[anchor + 1 : inside]
            elif not isinstance(block, ast.FunctionDef):  # under the main guard
                before = [*body[anchor + 1 : body.index(block)], *before] if block in body else before
            elif not any(block in script.enclosing(s, *FUNCTIONS) for s in self.sites):
                raise NoPlace(node, "which GPUs are used is set here, after the policy would have looked for GPUs")
            else:
                others = [s for s in body if not self._starts(s, block)]
                before = [*others, *before]
            if any(self.is_barrier(script, s) for s in [*before, statement]):
                raise NoPlace(
                    node, "which GPUs are used is set here, after layers may be made: a policy looks for GPUs"
                )
            follower = block.body[inside + 1] if inside + 1 < len(block.body) else None
            found = Place(statement, True, _gap(statement, follower))
        return found

    def _unconditional(self, node: ast.AST) -> tuple[ast.Module | ast.FunctionDef | ast.If | None, ast.stmt]:
        """The module, function or main guard that a node stands in, and the statement there that holds it."""
        current = self.script.statement(node)
        while True:
            parent = self.script.parents[current]
            if isinstance(parent, ast.Module | ast.FunctionDef) or (
                isinstance(parent, ast.If) and is_main_guard(parent) and current in parent.body
            ):
                return parent, current
            if not isinstance(parent, ast.stmt) or isinstance(parent, ast.ClassDef):
                return None, current
            current = parent

    def _starts(self, statement: ast.stmt, function: ast.FunctionDef) -> bool:
        """The function itself, or what calls it."""
        return isinstance(statement, ast.FunctionDef | ast.ClassDef) or any(
            isinstance(n, ast.Name) and n.id == function.name for n in module_level(statement)
        )

    # -- what makes layers -----------------------------------------------------------------------------------

    def is_barrier(self, script: Script, statement: ast.stmt, *, surely: bool = False) -> bool:
        """May layers be made by this statement? (What imports something unknown may, but not `surely`.)"""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return any(self._import_builds(script, symbol, surely=surely) for symbol in _symbols(statement))
        return self.builds(script, statement) or any(
            self.is_barrier(script, s, surely=surely)
            for s in module_level(statement)
            if isinstance(s, ast.Import | ast.ImportFrom)
        )

    def _import_builds(
        self, script: Script, symbol: str, *, surely: bool, seen: frozenset[Script] = frozenset()
    ) -> bool:
        found = script.project.resolve(script, symbol)
        if found is not None:
            other = found[0]
            if other in seen:
                return False
            return any(
                self.builds(other, s)
                or (
                    isinstance(s, ast.Import | ast.ImportFrom)
                    and any(
                        self._import_builds(other, inner, surely=surely, seen=seen | {other}) for inner in _symbols(s)
                    )
                )
                for s in other.tree.body
                if not is_main_guard(s)
            )
        root = symbol.split(".")[0]
        return not surely and root not in sys.stdlib_module_names and root not in _HARMLESS

    def builds(self, script: Script, statement: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
        """Does executing this statement make layers, itself or in the project's functions that it uses?"""
        for node in module_level(statement):
            if not isinstance(node, ast.Call):
                continue
            if any(self.comes_after(v) and v.node is node for v in script.values(node)):
                return True
            for part in (node.func, *node.args, *(k.value for k in node.keywords)):
                for callee in script.values(part) if isinstance(part, ast.Name | ast.Attribute) else ():
                    body = callee.node
                    if (
                        callee.kind in ("function", "class", "method")
                        and callee.script is not None
                        and body not in seen
                        and isinstance(body, ast.FunctionDef | ast.ClassDef | ast.Lambda)
                        and self._builds_inside(callee.script, body, seen | {body})
                    ):
                        return True
        return False

    def _builds_inside(self, script: Script, node: ast.AST, seen: frozenset[ast.AST]) -> bool:
        body: Iterable[ast.AST] = node.body if isinstance(node, ast.FunctionDef) else ast.walk(node)
        if isinstance(node, ast.ClassDef):
            body = [s for f in node.body if isinstance(f, ast.FunctionDef) for s in f.body]
        elif isinstance(node, ast.Lambda):
            body = [node.body]
        return any(self.builds(script, s, seen) for s in body)


#: What the body of a script consists of, as opposed to a setting between two imports.
_ENDS_IMPORTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While)


def _imports(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    return isinstance(statement, ast.Try | ast.If) and any(
        isinstance(s, ast.Import | ast.ImportFrom) for s in statement.body
    )


def _symbols(statement: ast.Import | ast.ImportFrom) -> Iterable[str]:
    if isinstance(statement, ast.Import):
        return [a.name for a in statement.names]
    module = "." * statement.level + (statement.module or "")
    return [
        f"{module}{'' if module.endswith('.') else '.'}{a.name}" if a.name != "*" else module for a in statement.names
    ]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _always_imports(attempt: ast.Try) -> bool:
    """Every way through the `try` either imports TensorFlow or ends the program."""
    for handler in attempt.handlers:
        last = handler.body[-1]
        if isinstance(last, ast.Raise):
            continue
        if (
            isinstance(last, ast.Expr)
            and isinstance(last.value, ast.Call)
            and ast.unparse(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
        ):
            continue
        if any(
            isinstance(s, ast.Import | ast.ImportFrom)
            and any(
                catalog.in_module(catalog.canonical(n), "tensorflow") or n.split(".")[0] in ("keras", "tf_keras")
                for n in _symbols(s)
            )
            for s in handler.body
        ):
            continue
        return False
    return True


def chooses_devices(node: ast.AST) -> bool:
    """`os.environ["CUDA_VISIBLE_DEVICES"] = ...`, in any spelling."""
    names = (key.value if isinstance(key, ast.Constant) else key for key, _ in settings(node))
    return any(str(name).startswith(("CUDA_", "NVIDIA_", "ROCR_", "HIP_", "TF_FORCE_GPU", "TF_GPU")) for name in names)


def _gap(before: ast.stmt, after: ast.stmt | None) -> int:
    """Blank lines to put in between: one, where the script has some there."""
    if after is None:
        return 0
    first = min([after.lineno, *(d.lineno for d in getattr(after, "decorator_list", []))])
    return int(first - (before.end_lineno or before.lineno) > 1)
