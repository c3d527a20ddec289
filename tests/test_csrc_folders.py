"""What the folders of csrc/ may include of each other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def included(source: Path, pattern: str) -> list[str]:
    return re.findall(rf"#include [<\"]({pattern})", source.read_text())


def csrc() -> list[Path]:
    return sorted(path for path in (ROOT / "csrc").rglob("*.*") if path.is_file())


def test_only_the_torch_folder_includes_torch():
    for source in csrc():
        if source.parent.name != "torch":
            foreign = included(source, r"(?:torch|ATen|c10|pybind11)/.*")
            assert not foreign, f"{source} has {foreign}"


# From the bottom; a folder includes itself and those of lower floors.
FLOORS = [
    {"plan", "reduce"},
    {"gpu/streams", "core"},
    {"setup", "gpu/fused"},
    {"gpu/nccl", "shm"},
    {"hosts"},
    {"torch"},
]
# Streams carry out what core/ describes, and the other way round nothing is needed.
WITHIN_A_FLOOR = {("gpu/streams", "core")}


def folder_of(source: Path) -> str:
    return source.parent.relative_to(ROOT / "csrc").as_posix()


def test_arrows_between_folders_go_one_way():
    floor_of = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}
    assert {folder_of(source) for source in csrc()} == set(floor_of)
    for source in csrc():
        own = folder_of(source)
        for other in included(source, r"[\w/]+(?=/\w+\.h\")"):
            if other not in floor_of:  # a library's
                continue
            below = floor_of[other] < floor_of[own]
            assert below or other == own or (own, other) in WITHIN_A_FLOOR, (
                f"{source.relative_to(ROOT)} includes {other}/"
            )


# The half of the backend that serves CPU tensors, by shared memory.
HOST_HALF = re.compile(
    r"backend\w*|arguments|\w*bindings\w*|announced|fast_path|shared_memory|sparse"
)


def test_the_device_half_needs_no_shared_memory():
    for source in csrc():
        folder = source.parent.name
        if folder in ("shm", "hosts") or (folder == "torch" and HOST_HALF.fullmatch(source.stem)):
            continue
        foreign = included(source, r"(?:shm/|hosts/linked_hosts)")
        assert not foreign, f"{source.relative_to(ROOT)} includes {foreign}"
        headers = [name for name in included(source, r"torch/\w+(?=\.h\")") if folder == "torch"]
        host = [name for name in headers if HOST_HALF.fullmatch(name.removeprefix("torch/"))]
        assert not host, f"{source.relative_to(ROOT)} includes {host}"
