"""Files of traces, in Chrome's format."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringcomm.arguments import output_file

SUFFIXES = (".json", ".json.gz")


def trace_file(text: str) -> Path:
    """A path for a trace."""
    if not text.endswith(SUFFIXES):
        raise argparse.ArgumentTypeError(f"must end in {' or '.join(SUFFIXES)}, got {text!r}")
    return output_file(text).absolute()


def write_trace(
    output: Path,
    events: Sequence[Mapping[str, Any]],
    contents: str,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Writes the events, and says what is in the file and how to open it."""
    text = json.dumps({"traceEvents": events, "otherData": about or {}})
    if output.suffix == ".gz":
        output.write_bytes(gzip.compress(text.encode()))
    else:
        output.write_text(text)
    print(f"wrote {output}: {contents}")
    print("open it at https://ui.perfetto.dev, which keeps it on your machine", flush=True)
