"""A page of torch's debug server: what the groups of all ranks do, on all hosts.

All ranks import this module, so that each answers for itself. Where torch has such a server (2.15
does), all ranks then start it:

    >>> from torch.distributed.debug import start_debug_server
    >>> import ringcomm.debug_server
    >>> start_debug_server(handlers=[ringcomm.debug_server.GroupsHandler()])

The page is at `http://HOST_OF_RANK_0:25999/ringcomm`, also while the ranks wait in a call. The
server is torch's. It needs the packages tabulate and requests, and is for networks that are
trusted: it asks for no password.
"""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from torch._C._distributed_c10d import _register_handler
from torch.distributed.debug._frontend import (
    DebugHandler,
    NavLink,
    Route,
    fetch_all,
    format_fetch_summary,
)

from ringcomm.chosen import Chosen, SizeClass
from ringcomm.cli.status import lines
from ringcomm.jobs import Job
from ringcomm.live import GroupStatus, RankStatus, status
from ringcomm.topology import Host

_NAME = "ringcomm_groups"  # of what each rank answers
_WIDTH = 100  # characters
_PAGE = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}Groups of ringcomm{% endblock %}</h1>{% endblock %}
{% block content %}<pre>{{ text|e }}</pre>{% endblock %}
"""


class GroupsHandler(DebugHandler):
    """The page, for `handlers` of torch's `start_debug_server`. With `dump_dir` it is written to
    files, too, if `enabled_dumps` has "ringcomm"."""

    def routes(self) -> list[Route]:
        """The page's path."""
        return [Route("/ringcomm", self._page)]

    def nav_links(self) -> list[NavLink]:
        """The page's name."""
        return [NavLink("/ringcomm", "Groups of ringcomm")]

    def templates(self) -> dict[str, str]:
        """The page's form."""
        return {"ringcomm.html": _PAGE}

    def dump(self) -> str:
        """The page's text."""
        addresses, answers = fetch_all(_NAME, timeout=self.fetch_timeout)
        groups = merged([groups_of(each.text) for each in answers if each.status_code == 200])
        text = "\n".join(line.plain for line in lines(groups, _WIDTH))
        return "\n".join(filter(None, [format_fetch_summary(addresses, answers), text]))

    def dump_filename(self) -> str:
        """The page's name among files."""
        return "ringcomm"

    def _page(self, request: Any) -> bytes:
        page: bytes = request.frontend.render_template("ringcomm.html", text=self.dump())
        return page


def answer() -> str:
    """What a rank says of the groups it is in."""
    return json.dumps([asdict(group) for group in status()])


def groups_of(text: str) -> list[GroupStatus]:
    """What a rank has answered."""
    return [_group(**fields) for fields in json.loads(text)]


def merged(answers: Sequence[Sequence[GroupStatus]]) -> list[GroupStatus]:
    """The groups of all ranks, each rank as its own host knows it.

    Args:
        answers: of the ranks, each with its groups in the order in which they were made.
    """
    found: dict[tuple[tuple[int, ...], int], GroupStatus] = {}
    for groups in answers:
        made: Counter[tuple[int, ...]] = Counter()  # groups may have the same ranks
        for group in groups:
            members = tuple(rank.global_rank for rank in group.ranks)
            key = members, made[members]
            made[members] += 1
            known = found.setdefault(key, group)
            ranks = [
                own if own.rank in group.here else other
                for own, other in zip(group.ranks, known.ranks, strict=True)
            ]
            found[key] = replace(known, ranks=tuple(ranks), failure=known.failure or group.failure)
    return list(found.values())


def _group(
    ranks: list[dict[str, Any]],
    chosen: dict[str, Any],
    job: dict[str, Any],
    here: list[int],
    **fields: Any,
) -> GroupStatus:
    hosts = tuple(Host(host["name"], tuple(host["ranks"])) for host in chosen.pop("hosts"))
    classes = tuple(SizeClass(**one) for one in chosen.pop("size_classes"))
    return GroupStatus(
        ranks=tuple(RankStatus.of(**rank) for rank in ranks),
        chosen=Chosen(hosts=hosts, size_classes=classes, **chosen),
        job=Job(**job),
        here=tuple(here),
        **fields,
    )


def _respond(_: Any, response: Any) -> None:
    response.set_content(answer(), "application/json")
    response.set_status(200)


_register_handler(_NAME, _respond)
# torch lets go of it when Python has ended, and must not be the last.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_respond))
