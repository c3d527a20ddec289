"""python -m ringcomm explain: writes a plan as a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ringcomm
from ringcomm.explain.page import page

SUFFIXES = (".html", ".svg", ".gif")


def run(options: argparse.Namespace) -> int:
    """Writes the picture and says where. Returns the exit code."""
    generate = getattr(ringcomm.plan, options.collective)
    arguments = {"algorithm": options.algorithm} if options.algorithm else {}
    if options.root is not None:
        arguments["root"] = options.root
    output: Path = options.output or Path(f"{options.collective}.html")
    try:
        plans = generate(world_size=options.world_size, **arguments)
        plans.verify()
        if output.suffix not in SUFFIXES:
            raise ValueError(f"-o must end in one of {', '.join(SUFFIXES)}, got {output}")
        if output.suffix == ".html":
            output.write_text(page(plans), encoding="utf-8")
        else:
            from ringcomm.explain.drawing import draw

            draw(plans, output)
    except ModuleNotFoundError as error:
        print(
            f"{output.suffix} needs matplotlib: pip install matplotlib ({error})", file=sys.stderr
        )
        return 1
    except TypeError:
        print(f"{options.collective} has no root, got --root {options.root}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"python -m ringcomm explain: {error}", file=sys.stderr)
        return 1
    print(f"wrote {output.resolve()}")
    return 0
