"""Where the project's sources can be had: what a distribution says as its Project-URL.

Nobody has to write it down: a clone knows where it came from, and a source distribution what the
clone it was packed from knew.

It needs no torch; setup.py loads it by its path.
"""

from __future__ import annotations

import email
import re
import subprocess
from pathlib import Path


def web_address(remote: str) -> str | None:
    """The page of a git remote, without user, password and port; None for what is no web host's.

    https://host/owner/name.git, ssh://git@host/owner/name.git and git@host:owner/name.git all are
    https://host/owner/name.
    """
    remote = remote.strip().removesuffix("/").removesuffix(".git")
    found = re.fullmatch(r"(?:https?|ssh|git)://(?:[^@/]*@)?([^:/]+\.[^:/]+)(?::\d+)?/(.+)", remote)
    found = found or re.fullmatch(r"(?:[^@/]+@)?([^:/]+\.[^:/]+):(?!/)(.+)", remote)
    return f"https://{found[1]}/{found[2]}" if found else None


def urls(root: Path) -> dict[str, str]:
    """For setuptools' project_urls: of a source distribution's PKG-INFO, else of git's origin."""
    packed = root / "PKG-INFO"
    if packed.exists():
        lines = email.message_from_string(packed.read_text()).get_all("Project-URL", [])
        return dict(line.split(", ", 1) for line in lines)
    if not (root / ".git").exists():  # else git would name the origin of a surrounding repository
        return {}
    try:
        command = ("git", "-C", root, "remote", "get-url", "origin")
        remote = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return pages(web_address(remote))


def pages(address: str | None) -> dict[str, str]:
    """The project's pages at this address, those beside the sources if their place is known."""
    if not address:
        return {}
    found = {"Source": address}
    if address.startswith("https://github.com/"):
        found["Documentation"] = f"{address}/blob/HEAD/README.md#documentation"
        found["Changelog"] = f"{address}/blob/HEAD/CHANGELOG.md"
        found["Issues"] = f"{address}/issues"
    return found
