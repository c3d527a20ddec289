from collections.abc import Callable, Sequence
from typing import ClassVar

class PlanError(RuntimeError):
    """A plan is wrong, or the plans of the ranks do not fit together."""

class Transfer:
    """One message of a step: these chunks, to or from this peer.

    `reduce`, on what is received, adds it to what is there instead of replacing it.
    """

    def __init__(
        self, peer: int, first_chunk: int, num_chunks: int = 1, reduce: bool = False
    ) -> None: ...
    @property
    def peer(self) -> int: ...
    @property
    def first_chunk(self) -> int: ...
    @property
    def num_chunks(self) -> int: ...
    @property
    def reduce(self) -> bool: ...

class Step:
    """What a rank sends and receives at once. It begins when the step before it is done."""

    def __init__(
        self, sends: Sequence[Transfer] = ..., recvs: Sequence[Transfer] = ...
    ) -> None: ...
    @property
    def sends(self) -> list[Transfer]: ...
    @property
    def recvs(self) -> list[Transfer]: ...

class Plan:
    """What one rank does in a collective: its steps, over a buffer that is cut into chunks."""

    def __init__(self, num_chunks: int, steps: Sequence[Step]) -> None: ...
    @property
    def num_chunks(self) -> int: ...
    @property
    def steps(self) -> list[Step]: ...

class Collective:
    ALL_REDUCE: ClassVar[Collective]
    REDUCE_SCATTER: ClassVar[Collective]
    REDUCE: ClassVar[Collective]
    ALL_GATHER: ClassVar[Collective]
    GATHER: ClassVar[Collective]
    SCATTER: ClassVar[Collective]
    BROADCAST: ClassVar[Collective]
    ALL_TO_ALL: ClassVar[Collective]
    BARRIER: ClassVar[Collective]
    @property
    def name(self) -> str: ...

class Setting:
    def __init__(self, world_size: int, root: int = 0, host_of: Sequence[int] = ...) -> None: ...

# collective, name, two_level, needs_all_counts
def algorithms() -> list[tuple[Collective, str, str, bool, bool]]: ...
def generate(collective: Collective, name: str, rank: int, setting: Setting) -> Plan: ...
def phases(collective: Collective, name: str, setting: Setting) -> list[tuple[str, int]]: ...
def verify(collective: Collective, plans: Sequence[Plan], root: int = 0) -> None: ...
def verify_chunks(
    collective: Collective,
    world_size: int,
    plan_of: Callable[[int], Plan],
    chunks: Sequence[int],
    root: int = 0,
) -> None: ...

class Link:
    def __init__(self, latency: float, overhead: float, bandwidth: float) -> None: ...

class Network:
    def __init__(
        self,
        ranks_per_host: int,
        nics_per_host: int,
        inside: Link,
        across: Link,
        reduce_bandwidth: float,
    ) -> None: ...

class Simulation:
    @property
    def seconds(self) -> float: ...
    @property
    def num_messages(self) -> int: ...
    @property
    def ranks_simulated(self) -> int: ...

class Simulator:
    def __init__(
        self,
        world_size: int,
        plan_of: Callable[[int], Plan],
        network: Network,
        compared: Sequence[int],
    ) -> None: ...
    def run(self, nbytes: float, slice_nbytes: float) -> Simulation: ...

class LocationKind:
    NOWHERE: ClassVar[LocationKind]
    INPUT: ClassVar[LocationKind]
    OUTPUT: ClassVar[LocationKind]
    SCRATCH: ClassVar[LocationKind]
    @property
    def name(self) -> str: ...

class Location:
    @property
    def kind(self) -> LocationKind: ...
    @property
    def index(self) -> int: ...

class Action:
    @property
    def chunk(self) -> int: ...
    @property
    def sources(self) -> list[int]: ...
    @property
    def readers(self) -> list[int]: ...
    @property
    def reduce(self) -> bool: ...
    @property
    def own(self) -> Location: ...
    @property
    def store(self) -> Location: ...
    @property
    def finish(self) -> bool: ...
    @property
    def slot(self) -> int: ...
    @property
    def recv_step(self) -> int: ...
    @property
    def send_step(self) -> int: ...

class CompiledProgram:
    @property
    def num_chunks(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def num_scratch(self) -> int: ...
    @property
    def in_lockstep(self) -> bool: ...
    @property
    def actions(self) -> list[Action]: ...

def compile(
    collective: Collective, plans: Sequence[Plan], rank: int, root: int = 0
) -> CompiledProgram: ...
