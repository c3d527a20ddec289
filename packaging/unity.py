"""A unity build: sources that belong together are compiled as one.

Most of the time that a source of csrc/torch/ takes to compile goes into torch's headers. A unit
reads them once. There is a unit for each folder of csrc/, and three for csrc/torch/. Two sources of
a unit must not define the same name, not even in unnamed namespaces.

It needs no torch; setup.py loads it by its path.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Bindings run once for each group or less: -O3 would take a quarter longer.
QUICKLY = '#pragma GCC optimize("O1")\n'


def unit_of(source: Path) -> str:
    """The name of the unit that includes this source of csrc/."""
    folder, name = source.parent.name, source.stem
    if folder == "reduce" and name.startswith("host_"):
        return f"reduce_{name}"  # for instructions of its own
    if folder == "torch":
        for part in ("bindings", "backend"):
            if part in name:
                return f"torch_{part}"
    return folder


def units(sources: Iterable[Path], csrc: Path) -> dict[str, str]:
    """The text of each unit by its name, those first that take longest.

    Args:
        sources: C++ sources below csrc/.
        csrc: that folder, which compilers look for includes in.
    """
    included: dict[str, list[Path]] = {}
    for source in sorted(sources):
        included.setdefault(unit_of(source), []).append(source)
    return {
        name: (QUICKLY if name == "torch_bindings" else "")
        + "".join(f'#include "{source.relative_to(csrc)}"\n' for source in paths)
        for name, paths in sorted(included.items(), reverse=True)
    }


def write(sources: Iterable[Path], csrc: Path, folder: Path) -> list[Path]:
    """Writes the units of the sources into the folder; where they are.

    A unit whose text has not changed is not written, so that it is not compiled again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in units(sources, csrc).items():
        path = folder / f"{name}.cpp"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        written.append(path)
    return written
