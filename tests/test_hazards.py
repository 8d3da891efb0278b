"""Ways in which such a rewrite breaks or silently changes training: each script's header says what is correct.

Every script is rewritten with everything on that its optimization needs, and both are run: what is applied, what is
refused, and the RESULT line must be as the header says. None is left out: those whose optimization is not built yet
stand in `PENDING`, and must come out unchanged or with the RESULT that they had.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rewriter.engine import Options, Result, rewrite
from rewriter.target import named
from tests.envs import run_script, tf_env

FOLDER = Path(__file__).parent / "hazards"
SCRIPTS = {path.stem[:2]: path for path in sorted(FOLDER.glob("*.py"))}
TARGETS = {"tf215": "tf2.15", "tf221": "tf2.21", "tf115": "tf1.15"}

Same = Callable[[str, str], bool]


def equal(before: str, after: str) -> bool:
    return before == after


def close(tolerance: float) -> Same:
    """Every number within a relative tolerance, everything else equal: nan and inf are far from any number."""

    def same(before: str, after: str) -> bool:
        number = r"-?\d+\.?\d*(?:e-?\d+)?|nan|inf"
        a, b = (re.findall(number, text) for text in (before, after))
        rest = re.sub(number, "#", before) == re.sub(number, "#", after)
        return rest and all(
            abs(float(x) - float(y)) <= tolerance * max(abs(float(x)), 1e-6) for x, y in zip(a, b, strict=True)
        )

    return same


def prints(text: str) -> Same:
    return lambda before, after: after == f"RESULT {text}"


def anything(before: str, after: str) -> bool:
    return after.startswith("RESULT")


@dataclass
class Correct:
    """What the header asks for. `error`: the file is refused as a whole, and this is said."""

    applied: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    result: Same = equal
    level: int = 2
    error: str = ""
    text: str = ""  # must stand in the rewritten script
    wider: bool = False  # with one more layer: a model that is all output gains nothing from mixed precision
    distribute: str = "none"  # with this `--distribute`, and what is converted runs on two ranks


CORRECT = {
    "01": Correct(("mixed-precision",), result=close(0.2), text='dtype="float32"'),
    "02": Correct(refused={"mixed-precision": "float32"}),
    "04": Correct(("mixed-precision",), result=close(0.05), text='dtype="float32"'),
    "05": Correct(("mixed-precision",), result=close(0.05), text="opt.get_unscaled_gradients(grads)", wider=True),
    "07": Correct(("mixed-precision",), result=anything, text="opt.scale_loss(loss)", wider=True),
    "08": Correct(("mixed-precision",), result=prints("compute dtypes ['float16', 'float32']")),
    "10": Correct(refused={"mixed-precision": "before TensorFlow 2.1"}),
    "11": Correct(("mixed-precision", "xla"), text="optimizer=lambda: tf.train.experimental.enable_mixed_precision"),
    "13": Correct(refused={"mixed-precision": "float64"}),
    "14": Correct(refused={"xla": "StringLookup"}),
    "16": Correct(refused={"xla": ""}, result=anything),
    "17": Correct(refused={"xla": "run_eagerly"}),
    "19": Correct(refused={"xla": "may hold `jit_compile`"}),
    "20": Correct(level=3),
    "22": Correct(refused={"xla": "1.15"}),
    "23": Correct(text="super().compile(steps_per_execution=2, jit_compile=True)"),
    "25": Correct(refused={"lamb": "batch"}, level=3),
    "26": Correct(refused={"lamb": "batch"}, level=3, result=close(0.05)),
    "28": Correct(),
    "29": Correct(result=anything),
    "31": Correct(refused={"parallel-map": "seed"}),
    "32": Correct(refused={"parallel-map": "numpy_function"}),
    "34": Correct(refused={"parallel-reads": "skip"}),
    "35": Correct(("prefetch",), text=".prefetch(tf.data.experimental.AUTOTUNE)"),
    "37": Correct(),
    "38": Correct(result=close(0.1)),
    "40": Correct(refused={"feed-dict": "two `run` calls"}),
    "41": Correct(("feed-dict",), text="placeholder_with_default"),
    "43": Correct(refused={"feed-dict": "does not train"}),
    "44": Correct(("feed-dict",), text="from_generator"),
    "46": Correct(refused={"tf-function": "global `seen`"}),
    "47": Correct(refused={"tf-function": ".numpy()"}),
    "49": Correct(("tf-function",), result=anything, text="step(x, y, tf.constant(1.0 + 0.01 * i))"),
    "50": Correct(refused={"tf-function": "generator"}),
    "52": Correct(("tf-function",), text="@timed\n@tf.function"),
    "53": Correct(refused={"steps-per-execution": "on_train_batch_begin"}),
    "55": Correct(refused={"loader-workers": "self.served"}),
    "56": Correct(refused={"loader-workers": "kwargs"}),
    "58": Correct(
        ("horovod",), text="ExponentialDecay(0.1 * hvd.size(), 100 // hvd.size(), 0.9)", distribute="horovod"
    ),
    "59": Correct(("horovod",), result=prints("lr per epoch [0.1, 0.2, 0.02]"), distribute="horovod"),
    "61": Correct(("horovod",), result=prints("steps 10"), distribute="horovod"),
    "62": Correct(refused={"horovod": "no training"}, distribute="horovod"),
    "64": Correct(
        ("horovod",),
        result=anything,
        text="[g if g is None else hvd.allreduce(g) for g in tf.gradients(loss, [w])]",
        distribute="horovod",
    ),
    "65": Correct(
        ("horovod",), result=anything, text="g_tape = hvd.DistributedGradientTape(g_tape)", distribute="horovod"
    ),
    "67": Correct(refused={"horovod": "`MirroredStrategy`"}, distribute="horovod"),
    "68": Correct(refused={"horovod": "cannot be built"}, distribute="horovod"),
    "70": Correct(refused={"horovod": "no training"}, distribute="horovod"),
    "71": Correct(
        ("horovod",),
        result=anything,
        text='hvd.DistributedOptimizer(pick(os.environ.get("OPT", "sgd"), 0.01))',
        distribute="horovod",
    ),
    "73": Correct(refused={"horovod": "`net.compile` is passed on"}, distribute="horovod"),
    "74": Correct(("horovod",), text='.local_rank()], "GPU")\nSCALE = tf.constant(2.0)', distribute="horovod"),
    "76": Correct(("mixed-precision",), wider=True),
    "77": Correct(),
    "79": Correct(("mixed-precision",), wider=True),
    "80": Correct(),
    "82": Correct(("mixed-precision",), wider=True),
    "83": Correct(("mixed-precision",), wider=True),
    "85": Correct(error="same bytes", wider=True),
    "86": Correct(error="LibCST cannot parse", wider=True),
    "88": Correct(("mixed-precision",), wider=True),
    "89": Correct(("mixed-precision",), wider=True),
    "91": Correct(error="nested"),
    "92": Correct(("loader-workers",), text="workers=4"),
    "94": Correct(error="Python 2"),
}

TORCH = "PyTorch scripts are not rewritten"
PENDING = {
    **dict.fromkeys("95 97 98".split(), TORCH),
}


def with_one_more_layer(path: Path, folder: Path) -> Path:
    first = re.compile(rb"(\.Sequential\(\[(?:tf\.keras\.Input\(\(4,\)\), )?)(tf\.keras\.layers\.Dense\()")
    text = path.read_bytes()
    assert len(first.findall(text)) == 1
    wider = folder / f"wider_{path.name}"
    wider.write_bytes(first.sub(rb"\1tf.keras.layers.Dense(8), \2", text))
    return wider


def rewritten(path: Path, level: int, distribute: str = "none") -> tuple[Result, str]:
    env = re.search(rb"^# venv: (\w+)", path.read_bytes().replace(b"\r", b"\n"), re.M)
    assert env
    name = env[1].decode()
    target = named(TARGETS.get(name, "tf2.15"))
    (result,) = rewrite([path], Options(level, distribute=distribute), lambda _: target)
    return result, name


def line(env: str, path: Path, ranks: int = 1) -> str:
    python = tf_env(env)
    launcher = (python.with_name("horovodrun"), "-np", str(ranks), "--gloo", str(python)) if ranks > 1 else ()
    first, *rest = (*launcher, path)
    done = run_script(python, Path(first), *map(str, rest), timeout=300)
    assert done.returncode == 0, f"{path.name} fails:\n{path.read_bytes().decode('latin-1')}\n{done.stderr[-3000:]}"
    return next(x[x.index("RESULT") :] for x in reversed(done.stdout.splitlines()) if "RESULT" in x)


def compare(result: Result, env: str, same: Same, folder: Path, ranks: int = 1) -> None:
    if result.after == result.before:
        return
    changed = folder / result.path.name
    changed.write_bytes(result.after)
    before, after = line(env, result.path), line(env, changed, ranks)
    assert same(before, after), f"{before} became {after}\n{result.after.decode('latin-1')}"


def test_every_hazard_is_here() -> None:
    assert set(SCRIPTS) == set(CORRECT) | set(PENDING)
    assert not set(CORRECT) & set(PENDING)


@pytest.mark.tf
@pytest.mark.parametrize("number", CORRECT)
def test_hazard(number: str, tmp_path: Path) -> None:
    correct = CORRECT[number]
    path = SCRIPTS[number]
    path = with_one_more_layer(path, tmp_path) if correct.wider else path
    result, env = rewritten(path, correct.level, correct.distribute)
    if correct.error:
        assert result.error and correct.error in str(result.error) and result.error.line
        assert result.after == result.before
        return
    assert result.error is None, result.error
    reasons = {(r.codemod, r.reason) for r in result.refused}
    assert set(correct.applied) <= {a.codemod for a in result.applied}, reasons
    for codemod, reason in correct.refused.items():
        assert codemod not in {a.codemod for a in result.applied}
        assert any(name == codemod and reason in text for name, text in reasons), reasons
    assert correct.text in result.after.decode("latin-1")
    distributed = any(a.codemod == correct.distribute for a in result.applied)
    compare(result, env, correct.result, tmp_path, 2 if distributed else 1)


@pytest.mark.tf
@pytest.mark.parametrize("number", PENDING)
def test_pending_hazard_is_not_made_worse(number: str, tmp_path: Path) -> None:
    result, env = rewritten(SCRIPTS[number], 2)
    if env == "torch":
        assert result.after == result.before
        return
    seeded = b"seed" in result.before.lower()
    compare(result, env, close(0.05) if seeded else anything, tmp_path)


def test_scripts_that_parse_say_what_they_are() -> None:
    for path in SCRIPTS.values():
        text = path.read_bytes().replace(b"\r", b"\n").decode("latin-1")
        assert re.search(r"^# correct rewriter: ", text, re.M) and re.search(r"^# venv: ", text, re.M)
        if path.stem[:2] != "94":
            ast.parse(path.read_bytes())
