import torch

from ringcomm._C.plan import Collective

MAX_CTAS: int
CALL_SECONDS: float
LAUNCH_SECONDS: float
REDUCTION_SECONDS: float
COPY_SECONDS: float
EVENT_SECONDS: float
WIRE_BANDWIDTH: float

class Layout:
    def __init__(self, num_channels: int = ..., slice_nbytes: int = ...) -> None: ...
    @property
    def num_channels(self) -> int: ...
    @property
    def slices_in_flight(self) -> int: ...
    @property
    def slice_nbytes(self) -> int: ...
    @property
    def min_slice_nbytes(self) -> int: ...

class Calls:
    @property
    def groups(self) -> int: ...
    @property
    def launches(self) -> int: ...
    @property
    def sends(self) -> int: ...
    @property
    def recvs(self) -> int: ...
    @property
    def reductions(self) -> int: ...
    @property
    def copies(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def waits(self) -> int: ...
    @property
    def host_seconds(self) -> float: ...

def describe_executor(name: str) -> str: ...
def count_calls(
    collective: Collective,
    algorithm: str,
    world_size: int,
    rank: int,
    root: int,
    nbytes: int,
    dtype: torch.dtype,
    layout: Layout,
) -> Calls: ...
