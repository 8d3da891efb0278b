"""`nox` checks the code, builds the TensorFlow environments of the tests, and runs the tests, as CI does.

nox -s lint                    ruff and mypy, in a minute
nox -s tests -- -m "not tf"    only the tests that start no TensorFlow
nox -s tests -- -m thorough    what is left out otherwise, to keep the rest under an hour
nox -s envs                    only the environments, in .envs or in $TFBOOST_ENVS
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "envs", "tests"]
nox.options.reuse_venv = "yes"

ENVS = Path(os.environ.get("TFBOOST_ENVS") or Path(__file__).parent / ".envs")


@dataclass(frozen=True)
class Recipe:
    """How an environment is built: the Pythons that can run it, best first, and what `pip install` gets."""

    pythons: tuple[str, ...]
    installs: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False

    @property
    def stamp(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


#: Horovod compiles for some minutes, with what the environment has: TensorFlow, and tools that it can still use.
HOROVOD = "--no-cache-dir --no-build-isolation horovod==0.28.1"
HOROVOD_NEEDS = "'setuptools<70' 'cmake<4' wheel packaging cloudpickle psutil pyyaml cffi"
HOROVOD_CHOICES = {
    f"HOROVOD_{choice}": "1" for choice in "WITH_TENSORFLOW WITHOUT_PYTORCH WITHOUT_MXNET WITH_GLOO WITHOUT_MPI".split()
}

RECIPES = {
    "tf221": Recipe(("3.11", "3.12", "3.10"), ("tensorflow-cpu==2.21.0 keras==3.15.1",)),
    "tf218": Recipe(
        ("3.11", "3.10"), (f"tensorflow-cpu==2.18.1 keras==3.8.0 {HOROVOD_NEEDS}", HOROVOD), HOROVOD_CHOICES
    ),
    "tf215": Recipe(
        ("3.11", "3.10"),
        (f"tensorflow-cpu==2.15.1 pillow 'scipy<1.15' 'pandas<3' {HOROVOD_NEEDS}", HOROVOD),  # as image folders need
        HOROVOD_CHOICES,
    ),
    "tf115": Recipe(("3.7",), ("tensorflow==1.15.5 'protobuf<3.21'",), optional=True),
}


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and types."""
    session.install("-e", ".[test]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session(venv_backend="none")
def envs(session: nox.Session) -> None:
    """Build the TensorFlow environments that are not there yet, all at the same time."""
    ENVS.mkdir(parents=True, exist_ok=True)
    todo = {}
    for name, recipe in RECIPES.items():
        stamp = ENVS / name / "recipe.sha256"
        if stamp.exists() and stamp.read_text() == recipe.stamp:
            session.log(f"{name} is complete")
        elif base := next(interpreters(recipe.pythons), None):
            session.log(f"building {name} with {base}: {ENVS / name}.log tells how it goes")
            todo[name] = base
        else:
            missing = f"no Python {' or '.join(recipe.pythons)} with ensurepip on PATH or in pyenv"
            if not recipe.optional:
                session.error(f"{name} cannot be built: {missing}")
            session.warn(f"{name} is skipped, and so are its tests: {missing}")
    with ThreadPoolExecutor(len(RECIPES)) as pool:
        built = dict(zip(todo, pool.map(partial(build, session), todo, todo.values()), strict=True))
    if failed := [name for name, is_built in built.items() if not is_built]:
        session.error(f"not built: {', '.join(failed)}")


def build(session: nox.Session, name: str, base: str) -> bool:
    """Build one environment, with a log beside it whose end is shown where something fails."""
    recipe, home, log = RECIPES[name], ENVS / name, ENVS / f"{name}.log"
    python = home / "bin" / "python"
    variables = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", **recipe.variables}
    began = time.monotonic()
    shutil.rmtree(home, ignore_errors=True)
    commands = [[base, "-m", "venv", home]]
    commands += [[python, "-m", "pip", "install", *shlex.split(install)] for install in recipe.installs]
    with log.open("w") as output:
        for command in commands:
            if subprocess.run(command, env=variables, stdout=output, stderr=subprocess.STDOUT).returncode:
                end = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
                session.warn(f"{name} failed: {shlex.join(map(str, command))}\n{end}")
                return False
    (home / "recipe.sha256").write_text(recipe.stamp)
    session.log(f"{name} was built in {time.monotonic() - began:.0f} s")
    return True


@nox.session(requires=["envs"])
def tests(session: nox.Session) -> None:
    """Run the tests with tfboost installed as a user installs it."""
    session.install(".[test]")
    session.run("pytest", "--numprocesses=2", *(session.posargs or ("-m", "not thorough")))


def interpreters(versions: tuple[str, ...]) -> Iterator[str]:
    """Pythons that can make a virtual environment; a pyenv shim counts only if it starts one."""
    pyenv = shutil.which("pyenv")
    root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip() if pyenv else None
    for version in versions:
        found = [shutil.which(f"python{version}")]
        found += map(str, Path(root).glob(f"versions/{version}.*/bin/python")) if root else []
        for python in filter(None, found):
            if subprocess.run([python, "-c", "import ensurepip"], capture_output=True).returncode == 0:
                yield python
