"""The hooks, installed and run by pre-commit itself in a scratch repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .cli import FAST, ROOT, SCRIPT

pytestmark = pytest.mark.slow

CONFIG = """\
repos:
  - repo: {repo}
    rev: {rev}
    hooks:
      - id: tfboost-check
        args: [--select, prefetch]
      - id: tfboost
        args: [--select, prefetch]
"""


def git(*arguments: str, cwd: Path) -> str:
    who = ("-c", "user.name=tfboost", "-c", "user.email=tfboost@example.invalid", "-c", "core.hooksPath=/dev/null")
    return subprocess.run(["git", *who, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with what this checkout holds now."""
    repo = tmp_path_factory.mktemp("tfboost")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for path in (ROOT / "rewriter", ROOT / "codemods"):
        shutil.copytree(path, repo / path.name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, repo)
    git("init", "-q", cwd=repo)
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "all", cwd=repo)
    return repo


def test_hooks(hooks: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"PRE_COMMIT_HOME": str(tmp_path_factory.mktemp("home")), "NO_COLOR": "1"}
    git("init", "-q", cwd=tmp_path)
    (tmp_path / ".pre-commit-config.yaml").write_text(
        CONFIG.format(repo=hooks.as_posix(), rev=git("rev-parse", "HEAD", cwd=hooks))
    )

    def run(**contents: bytes) -> tuple[int, str]:
        for name, content in contents.items():
            (tmp_path / f"{name}.py").write_bytes(content)
        git("add", "-A", cwd=tmp_path)
        done = subprocess.run(
            [sys.executable, "-m", "pre_commit", "run", "--color", "never"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    def commit() -> None:
        git("add", "-A", cwd=tmp_path)
        git("commit", "-qm", "next", cwd=tmp_path)

    code, text = run()  # no Python file at all
    assert (code, text.count("Skipped")) == (0, 2), text
    commit()
    code, text = run(plain=b"import os\n", empty=b"")
    assert (code, text.count("Passed")) == (0, 2), text
    commit()
    code, text = run(train=SCRIPT, plain=b"import sys\n")
    assert code == 1
    assert "train.py:3:6: prefetch " in text
    assert "files were modified by this hook" in text
    assert (tmp_path / "train.py").read_bytes() == FAST
    code, text = run()
    assert (code, text.count("Passed")) == (0, 2), text
    commit()
    broken = b"import tensorflow as tf\nx = (\n"
    code, text = run(broken=broken, plain=b"print 'Python 2'\n", train=SCRIPT, other=SCRIPT)
    assert (code, text.count("broken.py:2:5: cannot be parsed")) == (1, 2), text
    assert (tmp_path / "broken.py").read_bytes() == broken
    assert (tmp_path / "train.py").read_bytes() == (tmp_path / "other.py").read_bytes() == FAST
