"""Functions of other packages, which each process calls before anything else."""

from __future__ import annotations

import os
from importlib.metadata import entry_points


def load_general_plugins() -> None:
    named = os.environ.get("VLLM_PLUGINS")
    for plugin in entry_points(group="vllm.general_plugins"):
        if named is None or plugin.name in named.split(","):
            plugin.load()()
