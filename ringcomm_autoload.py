"""Makes the backend "ring" known to torch 2.13 and older, which do not look for backends by name.

They call `register` at the end of `import torch` (the entry point torch.backends), in every program
where ringcomm is installed. So it must cost nothing there and never fail; ringcomm is imported when
the first group is made.
"""

from __future__ import annotations

import contextlib
from typing import Any


def register() -> None:
    """Says how a group of the backend "ring" is made, if torch will not find out by itself."""
    with contextlib.suppress(Exception):  # else an error would make `import torch` fail
        import torch.distributed as dist

        finds_backends = hasattr(dist.Backend, "_ensure_backend_registered")
        if not finds_backends and "ring" not in dist.Backend.backend_list:
            dist.Backend.register_backend(
                "ring", _create, extended_api=True, devices=["cpu", "cuda"]
            )


def _create(options: Any, pg_options: Any) -> Any:
    from ringcomm import backend

    return backend.create(options, pg_options)
