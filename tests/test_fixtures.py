"""Whole scripts, as people write them: what comes out, and that it still trains the same.

`fixtures/<case>/input.py` is the script, `case.toml` the environments that it runs in (and `amp_dtype`, where bfloat16,
which a CPU computes fast, is not possible; `distribute`, to convert it and run it on two ranks), `expected.<environment>.py`
what `tfboost rewrite` makes of it there (`expected.py` where it is the same in all), with modules beside it that are
edited along as `expected.<environment>.<module>.py`. Write them anew with `python -m tests.test_fixtures`, and read the diff.
"""

from __future__ import annotations

import difflib
import json
import math
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

import pytest

from rewriter.engine import Options, Result, rewrite
from rewriter.target import named
from tests.envs import run_script, tf_env

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXTURES = Path(__file__).parent.parent / "fixtures"
TARGETS = {"tf115": "tf1.15", "tf215": "tf2.15", "tf218": "tf2.18", "tf221": "tf2.21"}
SETTINGS = {path.parent.name: tomllib.loads(path.read_text()) for path in sorted(FIXTURES.glob("*/case.toml"))}
CASES = [(name, env) for name, settings in SETTINGS.items() for env in settings["envs"]]
#: Each case trains in one of its environments, in turn, and in the others where `-m thorough` asks for it.
TRAINED = [
    pytest.param(name, env, marks=[pytest.mark.thorough] if i != number % len(settings["envs"]) else [])
    for number, (name, settings) in enumerate(SETTINGS.items())
    for i, env in enumerate(settings["envs"])
]


def modules(case: str) -> list[Path]:
    """The script first, then the modules beside it."""
    folder = FIXTURES / case
    others = sorted(p for p in folder.glob("*.py") if p.name != "input.py" and not p.name.startswith("expected"))
    return [folder / "input.py", *others]


def rewritten(case: str, env: str, level: int) -> list[Result]:
    target = named(TARGETS[env])
    dtype = SETTINGS[case].get("amp_dtype", "bfloat16")
    options = Options(level, amp_dtype=dtype, distribute=SETTINGS[case].get("distribute", "none"))
    results = rewrite(modules(case), options, lambda _: target)
    for result in results:
        assert result.error is None, result.error
    return results


def expected(case: str, env: str, path: Path) -> Path:
    module = "" if path.name == "input.py" else f".{path.stem}"
    own = FIXTURES / case / f"expected.{env}{module}.py"
    return own if own.exists() else FIXTURES / case / f"expected{module}.py"


@pytest.mark.parametrize(("case", "env"), CASES)
def test_output(case: str, env: str) -> None:
    for result in rewritten(case, env, 2):
        wanted = expected(case, env, result.path)
        want = wanted.read_bytes() if wanted.exists() else result.before
        assert result.after == want, "\n" + "".join(
            difflib.unified_diff(
                want.decode().splitlines(keepends=True),
                result.after.decode().splitlines(keepends=True),
                str(wanted),
                "rewritten",
            )
        )


@pytest.mark.tf
@pytest.mark.parametrize(("case", "env"), TRAINED)
def test_training(case: str, env: str, tmp_path: Path) -> None:
    """-O1 promises the same numbers up to rounding, -O2 the same training."""
    python = tf_env(env)
    runs = {"original": [r.path for r in rewritten(case, env, 1)]}
    ranks = 2 if SETTINGS[case].get("distribute") == "horovod" else 1
    for level in (2,) if ranks > 1 else (1, 2):
        results = rewritten(case, env, level)
        if any(r.after != r.before for r in results):
            runs[f"O{level}"] = [r.path for r in results]
            folder = tmp_path / f"O{level}"
            folder.mkdir()
            for result in results:
                (folder / result.path.name).write_bytes(result.after)
    if len(runs) == 1:
        pytest.skip("nothing to rewrite")
    shutil.copytree(FIXTURES / case, tmp_path / "original")
    if "O1" in runs and "O2" in runs and _same(tmp_path / "O1", tmp_path / "O2"):
        del runs["O2"]
    text = "".join(p.read_text(errors="replace") for p in modules(case))
    seeded = "set_random_seed(" in text  # the only one that seeds initial weights in Keras 2.15 and 3
    with ThreadPoolExecutor(2) as pool:
        several = [1 if name == "original" else ranks for name in runs]
        found = pool.map(lambda name, number: _losses(python, tmp_path / name, seeded, number), runs, several)
        losses = dict(zip(runs, found, strict=True))
    original = losses.pop("original")
    for level, learned in losses.items():
        assert set(learned) == set(original)
        for name, before in original.items():
            after = learned[name]
            told = f"{level}: {name} {before} became {after}"
            assert len(after) == len(before) and all(map(math.isfinite, after)), told
            if level == "O1" and seeded:
                assert after == pytest.approx(before, rel=1e-3, abs=1e-4), told
            elif name == "loss":  # other rounding, or other initial weights: it must have learned as much
                assert before[0] - _end(after) > 0.25 * (before[0] - _end(before)), told


def _same(a: Path, b: Path) -> bool:
    return all(p.read_bytes() == (b / p.name).read_bytes() for p in a.iterdir())


def _end(losses: list[float]) -> float:
    """The mean of the last quarter: the losses of single batches jump."""
    return fmean(losses[-max(1, len(losses) // 4) :])


def _losses(python: Path, folder: Path, seeded: bool, ranks: int = 1) -> dict[str, list[float]]:
    launcher = [python.with_name("horovodrun"), "-np", ranks, "--gloo", python] if ranks > 1 else []
    first, *rest = [*launcher, *([] if seeded else [Path(__file__).with_name("seeded.py")]), folder / "input.py"]
    done = run_script(python, Path(first), *map(str, rest), timeout=300, cwd=folder)
    assert done.returncode == 0, f"{folder.name}:\n{done.stderr[-3000:]}"
    line = next(x for x in reversed(done.stdout.splitlines()) if "RESULT" in x)
    return json.loads(line.partition("RESULT")[2])  # type: ignore[no-any-return]


def write() -> None:
    for case in sorted({case for case, _ in CASES}):
        for old in (FIXTURES / case).glob("expected*.py"):
            old.unlink()
        envs = [env for name, env in CASES if name == case]
        outputs: dict[str, dict[str, bytes]] = {}
        for env in envs:
            for result in rewritten(case, env, 2):
                if result.after != result.before:
                    outputs.setdefault(result.path.name, {})[env] = result.after
        for name, by_env in outputs.items():
            module = "" if name == "input.py" else f".{name.removesuffix('.py')}"
            common = len(set(by_env.values())) == 1 and len(by_env) == len(envs)
            for env, data in by_env.items():
                (FIXTURES / case / f"expected{'' if common else '.' + env}{module}.py").write_bytes(data)


if __name__ == "__main__":
    write()
