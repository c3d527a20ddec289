"""Headers that most sources include, compiled once for all of them, in GCC's way.

The headers are sources like others, compiled by the same command, and again when that changes; the
build directory belongs to one version of torch. GCC takes what stands beside an included file as
FILE.gch, and reads FILE itself where that does not fit.

It needs no torch; setup.py loads it by its path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

FACING_TORCH = Path("csrc/torch")
PRECOMPILED = {"torch": FACING_TORCH / "precompiled.h", "others": Path("csrc/core/precompiled.h")}
Compile = Callable[..., list[str]]  # as distutils' compilers do


def wrapped(compile_sources: Compile, root: Path, build_temp: Path) -> Compile:
    """A compiler's compile() that compiles the headers of PRECOMPILED once for all sources below.

    Args:
        compile_sources: the compiler's own compile().
        root: the project's folder, to which sources and headers are relative.
        build_temp: where objects go.
    """

    def compile(
        sources: list[str], *, extra_postargs: dict[str, list[str]], **options: Any
    ) -> list[str]:
        def together(sources: list[str], *flags: str) -> list[str]:
            postargs = {**extra_postargs, "cxx": [*extra_postargs["cxx"], *flags]}
            return compile_sources(sources, extra_postargs=postargs, **options)

        def including(header: Path) -> list[str]:
            return [f"-include{build_temp / header}", "-Winvalid-pch"]

        headers = list(PRECOMPILED.values())
        kernels = [source for source in sources if source.endswith(".cu")]
        facing_torch = [source for source in sources if Path(source).parent == FACING_TORCH]
        bindings = [source for source in facing_torch if source.endswith("bindings.cpp")]
        others = [source for source in sources if source not in (*kernels, *facing_torch)]
        classes = [source for source in facing_torch if source not in bindings]

        compiled = together([*map(str, headers), *kernels])
        for header, binary in zip(headers, compiled, strict=False):
            included = build_temp / header
            for link, target in ((included, root / header), (Path(f"{included}.gch"), binary)):
                link.unlink(missing_ok=True)
                link.symlink_to(Path(target).resolve())
        objects = compiled[len(headers) :]
        objects += together(others, *including(PRECOMPILED["others"]))
        objects += together(classes, *including(PRECOMPILED["torch"]))
        # They run once for each group or less; -O3 would take a third longer.
        objects += together(bindings, *including(PRECOMPILED["torch"]), "-O1")
        return objects

    return compile
