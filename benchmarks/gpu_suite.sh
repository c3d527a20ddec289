#!/usr/bin/env bash
# Builds, tests and measures everything that needs a GPU; see --help.
set -uo pipefail

usage() {
  cat <<'TEXT'
Builds ringcomm, runs the tests that need a GPU, and measures it against NCCL.

  benchmarks/gpu_suite.sh [DIRECTORY]

Needs a GPU, torch with CUDA and nvcc, and no network. The results go to DIRECTORY, by default
benchmarks/results/gpu-DATE:

  environment.txt    date, GPU, driver, torch, the NCCL that is loaded, commit
  build.log          the build, with what ptxas says of registers and spills
  tests.log          the tests in tests/gpu, and the reduction kernels under compute-sanitizer
  all_reduce.csv     ring against NCCL: 2, 4, 8 ranks, 1 KiB to 1 GiB, float32 and bfloat16
  channels.csv       the same for 2 ranks and several numbers of channels
  kernels.csv        the reduction kernels against torch's operations and a copy
  reduce.csv         one kernel under Nsight Compute, with roofline.png drawn from it
  timeline.json      one all-reduce of 64 MiB, for Perfetto or chrome://tracing

Several ranks share GPU 0, as threads of one process. That needs NCCL 2.30 or newer; where torch
brings an older one, name the newer library in RINGCOMM_NCCL=/path/to/libnccl.so.2, and it is loaded
in its place. It takes about 9 minutes. Phases that fail are named at the end, the others go on.
TEXT
}

case ${1:-} in
  -h | --help) usage && exit 0 ;;
esac
cd "$(dirname "$0")/.."
results=${1:-benchmarks/results/gpu-$(date +%F)}
mkdir -p "$results"
failed=()

phase() { # phase NAME SECONDS LOG COMMAND...
  local name=$1 seconds=$2 log=$3 began=$SECONDS
  shift 3
  printf '== %s\n' "$name"
  if ! timeout "$seconds" "$@" >>"$results/$log" 2>&1; then
    failed+=("$name (see $log)")
    tail -n 5 "$results/$log"
  fi
  printf '   %d s\n' $((SECONDS - began))
}

# What ranks that share a GPU need: no kernel may be loaded, and no connection made, while another
# rank's kernel already waits for it; and all of them must fit on the GPU together.
export CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32 NCCL_MULTI_RANK_GPU_ENABLE=1
preload=${RINGCOMM_NCCL:+LD_PRELOAD=$RINGCOMM_NCCL}

with_ranks() { # with_ranks NUMBER CHANNELS COMMAND...
  local ctas=$((64 / $1 / $2))
  env $preload NCCL_MAX_CTAS=$((ctas > 0 ? ctas : 1)) "${@:3}"
}

environment() {
  date -u +%FT%TZ
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  git rev-parse HEAD
  env $preload python -c '
import ctypes, torch
print("torch", torch.__version__, "CUDA", torch.version.cuda)
number = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
print("NCCL loaded:", number.value)'
  nvcc --version | tail -n 2
}

sanitize() {
  local program
  program=$(mktemp -d)/test_reduce_device
  nvcc -O3 -std=c++20 -lineinfo -arch=native -Icsrc -Itests/cpp -o "$program" \
    tests/cpp/test_reduce_device.cu csrc/reduce/*.cu csrc/reduce/*.cpp
  "$program"
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 1 "$program" device_equals_host
  done
}

measure() {
  for ranks in 2 4 8; do
    with_ranks "$ranks" 4 python benchmarks/gpu_all_reduce.py --nproc "$ranks" \
      --csv "$results/all_reduce.csv"
  done
  for channels in 1 2 8 16; do
    with_ranks 2 "$channels" python benchmarks/gpu_all_reduce.py --nproc 2 \
      --channels "$channels" --dtypes float32 --sizes 1M,64M,256M --csv "$results/channels.csv"
  done
}

environment >"$results/environment.txt" 2>&1
phase build 240 build.log pip install --no-build-isolation --no-deps -e .
phase 'reduction kernels' 180 tests.log sanitize
phase 'tests of 2 ranks' 120 tests.log with_ranks 2 4 python -m pytest -q tests/gpu -k 'not 4 and not 8'
phase 'tests of 4 and 8 ranks' 120 tests.log with_ranks 8 4 python -m pytest -q tests/gpu -k '4 or 8'
phase 'all-reduce' 200 all_reduce.log measure
phase 'kernels and copies' 60 kernels.log python benchmarks/reduce_kernels.py \
  --dtypes float,bfloat16,half --ops sum,max --sizes 64K,1M,64M,256M --csv "$results/kernels.csv"
phase 'Nsight Compute' 60 ncu.log benchmarks/profile/ncu_reduce.sh -o "$results/reduce" --count 1
phase roofline 30 ncu.log python benchmarks/profile/roofline.py "$results/reduce.csv" \
  --plot "$results/roofline.png"
phase timeline 60 timeline.log with_ranks 2 4 python benchmarks/gpu_all_reduce.py --nproc 2 \
  --sizes 64M --dtypes float32 --trace "$results/timeline.json"

if ((${#failed[@]} > 0)); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
printf 'All is in %s\n' "$results"
