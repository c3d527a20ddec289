"""python -m ringcomm explain: writes a plan as a picture."""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

import ringcomm
from ringcomm.explain.page import page

SUFFIXES = (".html", ".svg", ".gif")


def run(options: argparse.Namespace) -> int:
    """Writes the picture and says where. Returns the exit code."""
    generate = getattr(ringcomm.plan, options.collective)
    given = {name: getattr(options, name) for name in ("algorithm", "root", "ranks_per_host")}
    arguments = {name: value for name, value in given.items() if value is not None}
    output: Path = options.output or Path(f"{options.collective}.html")
    try:
        for name, value in arguments.items():
            if name not in inspect.signature(generate).parameters:
                raise ValueError(f"{options.collective} has no {name}, got {value}")
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
    except (OSError, ValueError) as error:
        print(f"python -m ringcomm explain: {error}", file=sys.stderr)
        return 1
    print(f"wrote {output.resolve()}")
    return 0
