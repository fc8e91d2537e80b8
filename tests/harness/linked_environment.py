"""What `pip install fedrep[EXTRA]` gives in an empty environment, without downloading torch for each extra.

A fresh virtual environment without pip; the wheel unpacked into its site-packages; and links to exactly those distributions of
the running environment that the wheel's own metadata ask for, with all that they ask for in turn.
"""

from __future__ import annotations

import venv
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

Parts = tuple[str, ...]


@dataclass(frozen=True)
class LinkedEnvironment:
    """`unpacked` are the top-level names in site-packages that came out of the wheel."""

    python: Path
    unpacked: frozenset[str]
    distributions: frozenset[str]

    @classmethod
    def create(cls, folder: Path, wheel: zipfile.ZipFile, extra: str) -> LinkedEnvironment:
        """`extra` may be empty: then only what everybody gets."""
        venv.create(folder, with_pip=False, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        assert not list(site.iterdir()), "an environment without pip is empty"
        wheel.extractall(site)
        unpacked = frozenset(path.name for path in site.iterdir())
        (metadata,) = site.glob("*.dist-info")
        wanted = closure(Distribution.at(metadata), extra)
        for name in wanted:
            _link(name, site)
        return cls(folder / "bin" / "python", unpacked, frozenset(wanted))


def closure(root: Distribution, extra: str) -> set[NormalizedName]:
    """Every installed distribution that `root` needs, directly or not; an extra of one of them counts too."""
    found: dict[NormalizedName, set[str]] = {}
    waiting = list(_required(root, {extra}))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        new = ({""} | requirement.extras) - found.get(name, set())
        if new:
            found.setdefault(name, set()).update(new)
            waiting += _required(distribution(name), new)
    return set(found)


def _required(of: Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, of.requires or ()):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def _link(name: NormalizedName, site: Path) -> None:
    """Whole folders where they hold nothing of another distribution's (`google` and `opentelemetry` do), else what is in them."""
    source = distribution(name)
    for parts in {_own_part(parts, name) for parts in _files(source)}:
        link = site.joinpath(*parts)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(str(source.locate_file("/".join(parts))))


def _own_part(parts: Parts, name: NormalizedName) -> Parts:
    owners = _owners()
    return next((parts[:depth] for depth in range(1, len(parts)) if owners[parts[:depth]] == {name}), parts)


@cache
def _owners() -> Mapping[Parts, set[NormalizedName]]:
    """Whose files are in each folder of site-packages."""
    owners: defaultdict[Parts, set[NormalizedName]] = defaultdict(set)
    for installed in distributions():
        name = canonicalize_name(installed.metadata["Name"])
        for parts in _files(installed):
            for depth in range(1, len(parts)):
                owners[parts[:depth]].add(name)
    return owners


def _files(of: Distribution) -> Iterator[Parts]:
    """In site-packages; commands and manuals lie elsewhere."""
    return (file.parts for file in of.files or () if ".." not in file.parts and file.parts[0] != "__pycache__")
