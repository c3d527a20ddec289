"""What the pages show of the program itself, made by each build, so that it cannot go stale.

<!-- plan: all_reduce hierarchical 4 ranks_per_host=2 -->   the plan's picture
<!-- help: bench -->                                         what `bench --help` prints
<!-- output: explain --choose -->                            what the command prints
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import ringcomm
from ringcomm.cli import main
from ringcomm.explain.drawing import draw
from ringcomm.explain.page import page as player
from ringcomm.plan import Plans

PLAN = re.compile(r"^<!-- plan: (\w+) (\w+) (\d+)(?: ranks_per_host=(\d+))? -->$", re.M)
HELP = re.compile(r"^<!-- help: (\w+) -->$", re.M)
OUTPUT = re.compile(r"^<!-- output: (.+) -->$", re.M)


def plans_of(match: re.Match[str]) -> Plans:
    """The plans that a placeholder names; they are proven before they are drawn."""
    collective, algorithm, world_size, ranks_per_host = match.groups()
    options = {} if ranks_per_host is None else {"ranks_per_host": int(ranks_per_host)}
    generate = getattr(ringcomm.plan, collective)
    plans: Plans = generate(algorithm, world_size=int(world_size), **options)
    plans.verify()
    return plans


def name_of(match: re.Match[str]) -> str:
    """The name of a picture, without its suffix."""
    return "plans/" + "_".join(part for part in match.groups() if part)


def output_of(arguments: Sequence[str]) -> str:
    """What `python -m ringcomm` prints on a terminal of 90 columns."""
    printed = io.StringIO()
    settings = patch.dict(os.environ, {"COLUMNS": "90", "RINGCOMM_TUNING": "off"})
    with settings, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(arguments)
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Draws the plans, and writes the pages that play them."""
    named = {}
    for file in files.documentation_pages():
        named.update({name_of(match): match for match in PLAN.finditer(file.content_string)})
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "plan.svg"
        for name, match in named.items():
            plans = plans_of(match)
            draw(plans, picture)
            files.append(File.generated(config, f"{name}.svg", content=picture.read_bytes()))
            files.append(File.generated(config, f"{name}.html", content=player(plans)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Puts pictures and texts in the placeholders' place."""
    up = "../" * page.file.src_uri.count("/")

    def picture(match: re.Match[str]) -> str:
        collective, algorithm, world_size, _ = match.groups()
        path = up + name_of(match)
        words = f"{collective} by {algorithm} among {world_size} ranks, step by step"
        return f"![{words}]({path}.svg)\n\n[Play it]({path}.html)"

    def text(arguments: Sequence[str]) -> str:
        return f"```text\n{output_of(arguments)}```"

    markdown = PLAN.sub(picture, markdown)
    markdown = HELP.sub(lambda match: text([match[1], "--help"]), markdown)
    return OUTPUT.sub(lambda match: text(match[1].split()), markdown)
