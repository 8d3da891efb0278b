"""`nox` checks the code, builds the TensorFlow environments of the tests, and runs the tests, as CI does.

nox -s lint                    ruff and mypy, in a minute
nox -s tests -- -m "not tf"    only the tests that start no TensorFlow
nox -s envs                    only the environments, in .envs or in $TFBOOST_ENVS
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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


RECIPES = {
    "tf221": Recipe(("3.11", "3.12", "3.10"), ("tensorflow-cpu==2.21.0 keras==3.15.1",)),
    "tf215": Recipe(
        ("3.11", "3.10"),
        (
            "tensorflow-cpu==2.15.1 'setuptools<70' 'cmake<4' wheel packaging cloudpickle psutil pyyaml cffi",
            "--no-cache-dir --no-build-isolation horovod==0.28.1",  # compiles for some minutes
        ),
        {
            f"HOROVOD_{choice}": "1"
            for choice in "WITH_TENSORFLOW WITHOUT_PYTORCH WITHOUT_MXNET WITH_GLOO WITHOUT_MPI".split()
        },
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
    """Build the TensorFlow environments that are not there yet."""
    for name, recipe in RECIPES.items():
        home = ENVS / name
        python, stamp = home / "bin" / "python", home / "recipe.sha256"
        if python.exists() and stamp.exists() and stamp.read_text() == recipe.stamp:
            session.log(f"{name} is complete")
        elif base := next(interpreters(recipe.pythons), None):
            session.log(f"building {name} with {base}")
            shutil.rmtree(home, ignore_errors=True)
            session.run(base, "-m", "venv", home)
            variables = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", **recipe.variables}
            for install in recipe.installs:
                session.run(python, "-m", "pip", "install", *shlex.split(install), env=variables)
            stamp.write_text(recipe.stamp)
        else:
            missing = f"no Python {' or '.join(recipe.pythons)} with ensurepip on PATH or in pyenv"
            if not recipe.optional:
                session.error(f"{name} cannot be built: {missing}")
            session.warn(f"{name} is skipped, and so are its tests: {missing}")


@nox.session(requires=["envs"])
def tests(session: nox.Session) -> None:
    """Run the tests with tfboost installed as a user installs it."""
    session.install(".[test]")
    session.run("pytest", "--numprocesses=2", *session.posargs)


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
