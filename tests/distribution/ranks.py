"""Converting a program and starting it on several ranks, with Horovod over Gloo."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.envs import run_script, tf_env

#: What a test adds behind a program: every rank tells what it has.
TELL = """
import json as _json, os as _os
with open("told_%s.json" % _os.environ.get("HOROVOD_RANK", "0"), "w") as _file:
    _json.dump(told, _file, default=float)
"""


def converted(source: str, *, env: str = "tf215", level: int = 1, select: str = "", **options: Any) -> str:
    """What `--distribute horovod` makes of a program; fails where it refuses."""
    path = Path("/nowhere/train.py")
    target = named({"tf215": "tf2.15", "tf218": "tf2.18", "tf115": "tf1.15"}[env])
    wanted = Options(level, frozenset(select.split()), distribute="horovod", **options)
    (result,) = rewrite([path], wanted, lambda _: target, {path: textwrap.dedent(source).lstrip("\n").encode()})
    assert result.error is None, result.error
    assert any(a.codemod == "horovod" for a in result.applied), [(r.line, r.reason) for r in result.refused]
    return result.after.decode()


def run(
    text: str, folder: Path, *, ranks: int = 1, env: str = "tf215", timeout: float = 240, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder of its own, on one process or on several ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text).lstrip("\n") + TELL)
    python = tf_env(env)
    if ranks == 1:
        return run_script(python, script, timeout=timeout, env=variables)
    launcher = python.with_name("horovodrun")
    start = ("-np", str(ranks), "--gloo", str(python), script.name)
    return run_script(python, launcher, *start, timeout=timeout, cwd=folder, env=variables)


def told(folder: Path, ranks: int = 1) -> list[dict[str, Any]]:
    """What every rank told at its end."""
    return [json.loads((folder / f"told_{rank}.json").read_text()) for rank in range(ranks)]


def trained(text: str, folder: Path, *, ranks: int = 1, **options: Any) -> list[dict[str, Any]]:
    """Run a program to its end; what every rank told."""
    done = run(text, folder, ranks=ranks, **options)
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return told(folder, ranks)
