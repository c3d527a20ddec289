"""What one rank refuses of its environment, all raise, and the store stays until they have.

The ranks' store lives in rank 0's process, and ends with what rank 0 does.
"""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch.distributed as dist
from ranks import Rank, on_processes

import ringcomm
from ringcomm.environment import NAMES
from ringcomm.stores import local_store

BAD = {
    "RINGCOMM_ACROSS": "quick",
    "RINGCOMM_ALGORITHM": "none such",
    "RINGCOMM_ASYNC_ERRORS": "none such",
    "RINGCOMM_BLOCKING_WAIT": "perhaps",
    "RINGCOMM_DEBUG": "none such",
    "RINGCOMM_CHECK_FINITE": "perhaps",
    "RINGCOMM_EXECUTOR": "none such",
    "RINGCOMM_FLIGHT_DIGESTS": "perhaps",
    "RINGCOMM_FLIGHT_DUMP": "perhaps",
    "RINGCOMM_FLIGHT_RECORDS": "-1",
    "RINGCOMM_FLIGHT_STACKS": "perhaps",
    "RINGCOMM_HOSTID": "x" * 64,
    "RINGCOMM_HOST_SILENCE": "0",
    "RINGCOMM_LINKS": "string",
    "RINGCOMM_RANKS_PER_HOST": "0",
    "RINGCOMM_REPRODUCIBLE": "perhaps",
    "RINGCOMM_TUNING": "/none/such",
}


def test_every_variable_has_a_value_that_cannot_be() -> None:
    assert set(BAD) == set(NAMES)


def joins(rank: Rank, name: str, value: str, refusing: int) -> str:
    for each in NAMES:
        os.environ.pop(each, None)
    if rank.rank == refusing:
        os.environ[name] = value
    if rank.rank == 0:
        store = local_store(timeout=timedelta(minutes=5))
        rank.store.set("port", str(store.port))
    else:
        port = int(rank.store.get("port"))
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(minutes=5))
    try:
        dist.init_process_group("ring", store=store, rank=rank.rank, world_size=rank.world_size)
    except (ValueError, OSError, dist.DistBackendError) as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("refusing", [0, 1])
@pytest.mark.parametrize("name", BAD)
def test_all_ranks_say_what_one_refuses(name: str, refusing: int) -> None:
    said = on_processes(joins, 3, name, BAD[name], refusing)
    own = said.pop(refusing)
    assert name in own
    for text in said:
        assert f"rank {refusing}" in text and own in text


def differs_in_options(rank: Rank, refusing: int) -> str:
    options = ringcomm.Options(algorithm="none such") if rank.rank == refusing else None
    with pytest.raises((ValueError, dist.DistBackendError)) as caught:
        dist.init_process_group(
            "ring",
            store=rank.store,
            rank=rank.rank,
            world_size=rank.world_size,
            pg_options=options,
        )
    return str(caught.value)


@pytest.mark.parametrize("refusing", [0, 2])
def test_options_that_one_rank_refuses(refusing: int) -> None:
    said = on_processes(differs_in_options, 3, refusing)
    own = said.pop(refusing)
    assert "'none such'" in own
    for text in said:
        assert f"rank {refusing}" in text and own in text


def with_a_word(rank: Rank, word: str) -> None:
    os.environ["RINGCOMM_BLOCKING_WAIT"] = os.environ["RINGCOMM_FLIGHT_STACKS"] = word
    dist.init_process_group("ring", store=rank.store, rank=rank.rank, world_size=rank.world_size)
    dist.destroy_process_group()


@pytest.mark.parametrize("word", ["", "0", "False", "no", "1", "true", "T", "yes", "Y"])
def test_switches_have_the_words_that_torch_has(word: str) -> None:
    on_processes(with_a_word, 1, word)
