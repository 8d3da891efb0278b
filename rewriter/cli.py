"""The entry point: answers at once where there is nothing to do, else hands over to the Typer commands."""

from __future__ import annotations

import gc
import os
import sys

#: A file without any of these words gives tfboost nothing to do.
_WORDS = (b"tensorflow", b"keras", b"horovod", b"tfboost:")


def main() -> None:
    """Run `tfboost`."""
    if not _nothing_to_do(sys.argv[1:]):
        gc.disable()  # what importing and one script leave behind is not worth looking through
        from .commands import app

        app(prog_name="tfboost")


def _nothing_to_do(arguments: list[str]) -> bool:
    """Answer for files without TensorFlow, which commit hooks mostly get, before Typer would have started."""
    command, given = (arguments or [""])[0], arguments[1:]
    paths = [argument for argument in given if argument != "--in-place"]
    if command not in ("check", "rewrite") or not paths or any(path.startswith("-") for path in paths):
        return False
    folders = set()
    for path in paths:
        try:
            if path.endswith(".ipynb") or not os.path.isfile(path):
                return False
            with open(path, "rb") as file:
                data = file.read()
        except (OSError, ValueError):
            return False
        if any(word in data for word in _WORDS):
            return False
        folders.add(os.path.dirname(os.path.abspath(path)))
    while folders:
        folder = folders.pop()
        try:
            with open(os.path.join(folder, "pyproject.toml"), "rb") as file:
                if b"tfboost" in file.read():
                    return False  # a configuration that may hold a mistake
        except OSError:
            pass
        if os.path.dirname(folder) != folder:
            folders.add(os.path.dirname(folder))
    names = paths[0] if len(paths) == 1 else f"{len(paths)} files"
    stream = sys.stdout if command == "rewrite" and len(paths) < len(given) else sys.stderr
    try:
        print(f"nothing to do: no TensorFlow or Keras in {names}", file=stream, flush=True)
    except (OSError, UnicodeError):
        return False
    return True
