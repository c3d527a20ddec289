"""The flight record: what this process did last in its groups, for torch's `torchfrtrace`.

Each operation of the backend "ring" is recorded with its sizes, dtypes, sequence number, and the
times at which it was called, started and completed. The last RINGCOMM_FLIGHT_RECORDS of them are
written to a file by `dump`, on SIGUSR2 and, where that is asked for, when an operation fails on
this rank or on another one. With RINGCOMM_FLIGHT_DIGESTS=1 they have digests of their results, by
which `python -m ringcomm bits` compares two runs, and the file is also written as a process ends.
"""

from __future__ import annotations

import os

import torch.distributed.distributed_c10d as c10d

from ringcomm import _C
from ringcomm.environment import integer, switch, value_of

DEFAULT_RECORDS = 2000
MOST_RECORDS = 1_000_000  # the room for all is made at once: 224 bytes for each

# These say where torch's Flight Recorder writes; see docs/pages/reference/environment.md.
_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def start() -> None:
    """Begins to record, as the environment says; only the first call does anything.

    Raises:
        ValueError: an environment variable holds what it must not.
    """
    asked_for = any(map(value_of, _PREFIXES))
    records = integer("RINGCOMM_FLIGHT_RECORDS", DEFAULT_RECORDS, 0, MOST_RECORDS)
    digests = switch("RINGCOMM_FLIGHT_DIGESTS")
    if digests and records == 0:
        raise ValueError("RINGCOMM_FLIGHT_DIGESTS is set, and RINGCOMM_FLIGHT_RECORDS is 0")
    _C.start_flight_recorder(
        records,
        switch("RINGCOMM_FLIGHT_STACKS", digests),
        switch("RINGCOMM_FLIGHT_DUMP", asked_for),
        digests,
    )
    _notify_torch(records > 0)


def _notify_torch(is_recorded_here: bool) -> None:
    """From version 2.15 on, torch records every group whose backend does not record itself.

    That takes as long as a small call does, and its file has the same name as this one. torch's own
    backends say by this table that they record themselves. A torch without it records them, too.
    """
    table = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if isinstance(table, set):
        (table.add if is_recorded_here else table.discard)("ring")


def dump(path: str | os.PathLike[str] | None = None) -> str:
    """Writes what this process did last to a file that `torchfrtrace` reads.

    Any thread may call it at any time, while operations are under way, too. An existing file is
    replaced.

    Args:
        path: the file. If not given, the prefix in TORCH_FR_DUMP_TEMP_FILE, or that in
            TORCH_NCCL_DEBUG_INFO_TEMP_FILE, or ~/.cache/torch/comm_lib_trace_rank_, followed by the
            global rank.

    Returns:
        The path of the file.

    Raises:
        RuntimeError: nothing is recorded: no group has been made, or RINGCOMM_FLIGHT_RECORDS is 0.
        OSError: the file cannot be written.
    """
    written = _C.dump_flight_record(os.fsencode(path) if path is not None else b"")
    if not written:
        raise RuntimeError(
            'nothing is recorded: no group of the backend "ring" has been made, or '
            "RINGCOMM_FLIGHT_RECORDS is 0"
        )
    return os.fsdecode(written)
