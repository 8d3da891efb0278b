"""Find the target: asked for, told by installed packages or requirements, or read from idioms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .target import ASSUMED, Evidence, Target, named

if TYPE_CHECKING:
    from .source import Source


@dataclass
class Detector:
    """Tells the target of scripts that run together.

    What is asked for overrules packages, these overrule requirement files, and these overrule the scripts'
    idioms; the weaker only narrows what the stronger leaves open.
    """

    name: str = "auto"
    interpreter: Evidence | None = None
    _folders: dict[Path, Evidence | None] = field(default_factory=dict)

    def __call__(self, sources: Sequence[Source]) -> Target:
        from .idioms import idioms, legacy_keras, which_keras

        found = Evidence()
        if self.name != "auto":
            asked = named(self.name)
            found = Evidence(
                asked.lowest,
                None if self.name == "keras3" else asked.highest,
                3 if self.name == "keras3" else None,
                (asked.why,),
            )
        if self.interpreter:
            found = found.narrowed(self.interpreter)
        if self.name == "auto" and not found.exact and (declared := self._declared(sources[0].path)):
            found = found.narrowed(declared)
        if found.two_keras:
            found = found.narrowed(which_keras(sources))
        elif self.name == "auto" and not found.exact:
            found = found.narrowed(idioms(sources, found.lowest or ASSUMED))
        elif legacy := legacy_keras(sources):
            found = found.narrowed(legacy)
        return found.target()

    def _declared(self, path: Path) -> Evidence | None:
        """What requirement files say: beside the script, else in the nearest folder of its repository."""
        from .requirements import of_folder

        chain = list(_up_to_root((Path.cwd() / path).parent))
        for index, folder in enumerate(chain):
            if folder not in self._folders:
                self._folders[folder] = of_folder(folder)
            if found := self._folders[folder]:
                self._folders.update(dict.fromkeys(chain[:index], found))
                return found
        return None


def _up_to_root(folder: Path) -> Iterator[Path]:
    """The folder and those above it up to the repository's root; outside a repository only the folder."""
    above = [folder, *folder.parents]
    for index, candidate in enumerate(above):
        if (candidate / ".git").exists():
            yield from above[: index + 1]
            return
    yield folder
