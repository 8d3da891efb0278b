"""Which files are meant, which of them belong together, and how results get onto the disk."""

# `os.path` answers for names that `pathlib` raises on, and links must not be followed:
# ruff: noqa: PTH100, PTH110, PTH112, PTH113, PTH118

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from .source import RELEVANT, SourceError

#: Folders that a walk never enters, beside hidden ones and virtual environments.
SKIPPED = frozenset({"node_modules", "__pycache__", "__pypackages__", "site-packages", "venv"})

#: The name that standard input goes by.
STDIN = Path("<stdin>")


def shown(path: Path | str) -> str:
    """A path as people read it: relative where it lies below the working folder."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return str(path)
    return str(path) if relative.startswith(os.pardir) else relative


# -- finding -------------------------------------------------------------------------------------------------


def find(given: Sequence[Path], excludes: Callable[[Path], bool], force: bool = False) -> Iterator[Path]:
    """The files meant by paths: files as they are, folders with every *.py below; each file once.

    force: a file that is excluded is left out even where it is named.
    """
    seen: set[str] = set()
    absolute = any(path.is_absolute() for path in given) and not all(path.is_absolute() for path in given)
    for path in given:
        path = Path(os.path.abspath(path)) if absolute else Path(os.path.normpath(path))
        for found in sorted(_walk(path, excludes)) if os.path.isdir(path) else [path]:
            real = os.path.realpath(found)
            if real not in seen and not (force and found == path and excludes(path)):
                seen.add(real)
                yield found


def _walk(folder: Path, excludes: Callable[[Path], bool]) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = [
            f
            for f in folders
            if not f.startswith(".")
            and f not in SKIPPED
            and not _is_environment(os.path.join(here, f))
            and not excludes(Path(here, f))
        ]
        for name in names:
            if name.endswith(".py") and not excludes(path := Path(here, name)) and path.is_file():
                yield path  # dangling links, as editors leave them, and pipes are no scripts


def _is_environment(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, mark)) for mark in ("pyvenv.cfg", "conda-meta"))


def read(path: Path) -> bytes:
    """Raises `SourceError` for what cannot be read or is no script by its name."""
    if path.suffix == ".ipynb":
        raise SourceError(path, "is a notebook: export it with `jupyter nbconvert --to script`")
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise SourceError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


# -- files that belong together ------------------------------------------------------------------------------

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\r\n]*)|import[ \t]+([^\r\n]*))",
    re.MULTILINE,
)
#: What a file does to a model or a dataset that it got from elsewhere.
_CONCERNED = re.compile(
    rb"\.(?:compile|(?:fit|evaluate|predict)(?:_generator)?|(?:train|test|predict)_on_batch|"
    rb"map|batch|shuffle|interleave|prefetch)\("
)


def groups(data: Mapping[Path, bytes]) -> list[list[Path]]:
    """Files that import each other, directly or through files that only pass names on.

    Only groups that use TensorFlow somewhere, with those of their files that may have something to edit.
    """
    concerned = {p for p, d in data.items() if RELEVANT.search(d) or _CONCERNED.search(d)}
    leader = {path: path for path in concerned}

    def lead(path: Path) -> Path:
        while leader[path] != path:
            leader[path] = path = leader[leader[path]]
        return path

    folders = {path.parent for path in data}
    imports = {path: list(_imports(path, d, data, folders)) for path, d in data.items()} if len(data) > 1 else {}
    for path in concerned:
        todo, seen = list(imports.get(path, ())), {path}
        while todo:
            other = todo.pop()
            if other in seen:
                continue
            seen.add(other)
            if other in concerned:
                leader[lead(other)] = lead(path)
            else:
                todo.extend(imports[other])
    members: dict[Path, list[Path]] = {}
    for path in data:
        if path in concerned:
            members.setdefault(lead(path), []).append(path)
    return [group for group in members.values() if any(RELEVANT.search(data[path]) for path in group)]


def _imports(path: Path, data: bytes, known: Mapping[Path, bytes], folders: set[Path]) -> Iterator[Path]:
    """Those of the known files that a file imports."""
    for module, names, plain in _IMPORT.findall(data.replace(b"\r", b"\n")):
        if plain:
            dotted = [part.split()[0].decode(errors="replace") for part in plain.split(b",") if part.split()]
        else:
            package = module.decode(errors="replace")
            within = package if package.endswith(".") else f"{package}."
            members = [name for part in names.strip(b"() \t").split(b",") for name in part.split()[:1]]
            dotted = [package, *(within + name.decode(errors="replace") for name in members)]
        for name in dotted:
            yield from _module(path.parent, name, known, folders)


def _module(folder: Path, name: str, known: Mapping[Path, bytes], folders: set[Path]) -> Iterator[Path]:
    plain = name.lstrip(".")
    if plain == name:  # found beside the file, or beside the script in a folder above that imports it
        places = [folder, *(above for above in folder.parents if above in folders)]
    else:
        places = [[folder, *folder.parents][min(len(name) - len(plain) - 1, len(folder.parents))]]
    for place in places:
        stem = place.joinpath(*plain.split(".")) if plain else place
        candidates = [stem / "__init__.py", *([stem.with_name(f"{stem.name}.py")] if plain else [])]
        if found := [c for c in candidates if c in known]:
            yield from found
            return


# -- writing -------------------------------------------------------------------------------------------------


def write(files: Mapping[Path, bytes], modes_of: Mapping[Path, Path] | None = None) -> None:
    """Put bytes into files, all or none of them: each appears at once, with the permissions that it had.

    A link stays a link: the file that it points to is written. `modes_of` names the file from which a new one
    takes its permissions. Raises `SourceError`.
    """
    import tempfile

    ready: list[tuple[Path, Path, Path]] = []
    path = Path()
    try:
        for path, data in files.items():
            if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
                path.write_bytes(data)  # /dev/stdout, a pipe
                continue
            real = Path(os.path.realpath(path))
            exists = os.path.exists(real)
            if exists and not os.access(real, os.W_OK):
                raise PermissionError(0, "it is read-only")
            if os.path.isdir(real):
                raise IsADirectoryError(0, "it is a folder")
            real.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".tfboost-", suffix=".tmp", dir=real.parent)
            ready.append((Path(temporary), real, path))
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            _permit(Path(temporary), real if exists else None, (modes_of or {}).get(path))
        while ready:
            unnamed, real, path = ready[0]
            unnamed.replace(real)
            ready.pop(0)
    except OSError as error:
        raise SourceError(path, f"cannot be written: {error.strerror or error}") from None
    finally:
        for unnamed, _, _ in ready:
            with contextlib.suppress(OSError):
                unnamed.unlink()


def _permit(temporary: Path, replaced: Path | None, model: Path | None) -> None:
    """Give a file the owner and permissions of the one that it replaces, or else the mode of its model."""
    if replaced:
        status = replaced.stat()
        if hasattr(os, "chown") and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            with contextlib.suppress(OSError):
                os.chown(temporary, status.st_uid, status.st_gid)
        shutil.copystat(replaced, temporary)
        os.utime(temporary)
    elif model and model.is_file():
        shutil.copymode(model, temporary)
    else:
        mask = os.umask(0o22)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)


def destinations(given: Sequence[Path], found: Sequence[Path], out: str) -> dict[Path, Path]:
    """Where `-o OUT` puts each file: OUT itself for one script, below the folder OUT for several.

    Below a folder, files lie as they lie below the folder that holds all that was given. Raises `ValueError`.
    """
    several = len(given) > 1 or os.path.isdir(given[0])
    if not several and not os.path.isdir(out) and not out.endswith(("/", os.sep)):
        places = {path: Path(out) for path in found}
    else:
        if os.path.exists(out) and not os.path.isdir(out):
            raise ValueError(f"{out} is a file, and there are several scripts to write: give a folder")
        tops = [os.path.abspath(p if os.path.isdir(p) else p.parent) for p in given]
        base = os.path.commonpath(tops)
        places = {path: Path(out, os.path.relpath(os.path.abspath(path), base)) for path in found}
    originals = {os.path.realpath(path) for path in found}
    for path, place in places.items():
        if os.path.realpath(place) in originals:
            raise ValueError(f"-o would overwrite {shown(path)}: --in-place does that")
    return places
