"""`[tool.tfboost]` in pyproject.toml, and the names of codemods wherever a user writes them."""

# Links must not be followed, and thousands of paths are compared:
# ruff: noqa: PTH100, PTH119, PTH120

from __future__ import annotations

import fnmatch
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import shown

AMP_DTYPES = ("float16", "bfloat16")
DISTRIBUTE = ("none", "horovod", "mirrored", "multiworker", "auto")


class ConfigError(Exception):
    """A configuration that cannot be followed; the message names the file."""


@dataclass(frozen=True)
class Settings:
    """What a `[tool.tfboost]` table says. `folder` is what its globs are relative to."""

    folder: Path = field(default_factory=Path.cwd)
    level: int | None = None
    select: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()
    target: str | None = None
    amp_dtype: str | None = None
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, frozenset[str]], ...] = ()
    distribute: str | None = None
    lr_scaling: bool | None = None

    def excludes(self, path: Path) -> bool:
        """Whether a file or folder found on a walk is left out."""
        return any(_matches(path, pattern, self.folder) for pattern in self.exclude)

    def ignored_in(self, path: Path) -> frozenset[str]:
        """Codemods that a file's path switches off."""
        return frozenset().union(
            *(names for pattern, names in self.per_file_ignores if _matches(path, pattern, self.folder))
        )


def _matches(path: Path, pattern: str, folder: Path) -> bool:
    """As ruff does: the pattern stands for a name, or for a path from the folder of pyproject.toml."""
    pattern = pattern.rstrip("/")
    absolute = os.path.abspath(path)
    if fnmatch.fnmatch(os.path.basename(absolute), pattern):
        return True
    relative = os.path.relpath(absolute, folder)
    if relative.startswith(os.pardir):
        return False
    parts = Path(relative).parts
    return any(fnmatch.fnmatch("/".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


class Configs:
    """The settings for each folder: the nearest `[tool.tfboost]` table in a pyproject.toml upward."""

    def __init__(self) -> None:
        self._known: dict[str, Settings] = {}

    def of(self, path: Path) -> Settings:
        """For a file. Raises `ConfigError`."""
        return self.of_folder(os.path.dirname(os.path.abspath(path)))

    def of_folder(self, folder: str) -> Settings:
        if folder not in self._known:
            parent = os.path.dirname(folder)
            self._known[folder] = read(Path(folder, "pyproject.toml")) or (
                Settings(Path(folder)) if parent == folder else self.of_folder(parent)
            )
        return self._known[folder]


def read(path: Path) -> Settings | None:
    """The settings in a pyproject.toml; None where there is no such file or it does not speak of tfboost."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if b"tfboost" not in data:
        return None
    name = shown(path)
    try:
        document = load_toml(data.decode())
    except ValueError as error:  # of the decoder too
        position = re.search(r"\s*\(at line (\d+), column (\d+)\)", str(error))
        where = f":{position[1]}:{position[2]}" if position else ""
        message = str(error).replace(position[0], "") if position else str(error)
        raise ConfigError(f"{name}{where}: not valid TOML: {message}") from None
    table = document.get("tool", {}).get("tfboost") if isinstance(document.get("tool"), dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise ConfigError(f"{name}: [tool.tfboost] must be a table")
    return _settings(table, path.parent, name)


def load_toml(text: str) -> dict[str, Any]:
    """Raises `ValueError` for what is not valid TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data: dict[str, Any] = tomllib.loads(text)
    return data


def _settings(table: dict[str, Any], folder: Path, file: str) -> Settings:
    from .target import named

    def fail(key: str, message: str) -> ConfigError:
        return ConfigError(f"{file}: [tool.tfboost] {key}: {message}")

    def strings(key: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise fail(key, "must be a list of strings")
        return tuple(value)

    def names(key: str, value: object) -> frozenset[str]:
        given = strings(key, value)
        try:
            check_names(given)
        except ValueError as error:
            raise fail(key, str(error)) from None
        return frozenset(given)

    found: dict[str, Any] = {}
    for key, value in table.items():
        match key:
            case "level":
                if type(value) is not int or value not in (1, 2, 3):
                    raise fail(key, f"must be 1, 2 or 3, not {value!r}")
                found["level"] = value
            case "target":
                if not isinstance(value, str):
                    raise fail(key, "must be a string")
                if value != "auto":
                    try:
                        named(value)
                    except ValueError as error:
                        raise fail(key, str(error)) from None
                found["target"] = value
            case "amp-dtype":
                if value not in AMP_DTYPES:
                    raise fail(key, f"must be {' or '.join(AMP_DTYPES)}, not {value!r}")
                found["amp_dtype"] = value
            case "distribute":
                try:
                    check_distribute(value)
                except ValueError as error:
                    raise fail(key, str(error)) from None
                found["distribute"] = value
            case "lr-scaling":
                if not isinstance(value, bool):
                    raise fail(key, f"must be true or false, not {value!r}")
                found["lr_scaling"] = value
            case "select" | "ignore":
                found[key] = names(key, value)
            case "exclude":
                found["exclude"] = strings(key, value)
            case "per-file-ignores":
                if not isinstance(value, dict):
                    raise fail(key, "must be a table of globs and lists of codemods")
                found["per_file_ignores"] = tuple((glob, names(f'{key} "{glob}"', off)) for glob, off in value.items())
            case _:
                keys = (
                    *("level", "select", "ignore", "target", "amp-dtype", "distribute", "lr-scaling"),
                    *("exclude", "per-file-ignores"),
                )
                raise fail(key, f"unknown key{_nearest(key.replace('_', '-'), keys)}")
    return Settings(folder, **found)


# -- names of codemods ---------------------------------------------------------------------------------------


def check_names(names: Iterable[str]) -> None:
    """Raises `ValueError` for the first name that is no codemod's, with the nearest that is."""
    from .codemod import registry

    for name in names:
        if name not in registry():
            raise ValueError(f"unknown codemod `{name}`{_nearest(name, tuple(registry()))}")


def check_distribute(value: object) -> None:
    """Raises `ValueError` for what `--distribute` and the configuration cannot mean."""
    if value not in DISTRIBUTE:
        raise ValueError(f"must be {', '.join(DISTRIBUTE[:-1])} or {DISTRIBUTE[-1]}, not {value!r}")


def _nearest(name: str, known: tuple[str, ...]) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower().replace("_", "-"), known, 1, 0.5)
    return f"; did you mean `{near[0]}`?" if near else f"; there are {', '.join(known)}"


_IGNORE = re.compile(r"#\s*tfboost:\s*ignore\[([^\]]*)\]", re.IGNORECASE)


def ignored_names(text: str) -> Iterator[tuple[int, int, str]]:
    """Line, column and name for each codemod that a `# tfboost: ignore[...]` comment names."""
    if "tfboost:" not in text.lower():
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if token.type == tokenize.COMMENT and (match := _IGNORE.search(token.string)):
                position = match.start(1)
                for part in match[1].split(","):
                    if name := part.strip():
                        column = token.start[1] + position + len(part) - len(part.lstrip()) + 1
                        yield token.start[0], column, name
                    position += len(part) + 1
    except (tokenize.TokenError, SyntaxError):
        return
