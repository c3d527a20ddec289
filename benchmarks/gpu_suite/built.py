"""Packs what was built, and unpacks it again in a checkout that was not built.

python -m gpu_suite.built pack TARBALL
python -m gpu_suite.built unpack TARBALL CHECKOUT
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pack(tarball: Path, checkout: Path = ROOT) -> None:
    package = checkout / "ringcomm"
    with tarfile.open(tarball, "w:gz") as tar:
        for path in (*sorted(package.glob("_C.*.so")), package / "_build_info.py"):
            tar.add(path, path.relative_to(checkout))


def unpack(tarball: Path, checkout: Path) -> None:
    """A file that is in use is replaced, not overwritten."""
    package = checkout / "ringcomm"
    package.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=checkout) as directory, tarfile.open(tarball) as tar:
        # Python before 3.11.4 has no filters.
        tar.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        for path in sorted(Path(directory, "ringcomm").iterdir()):
            os.replace(path, package / path.name)
            print(f"unpacked {package / path.name}")


def main(action: str, *paths: str) -> None:
    {"pack": pack, "unpack": unpack}[action](*map(Path, paths))


if __name__ == "__main__":
    main(*sys.argv[1:])
