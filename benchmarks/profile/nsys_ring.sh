#!/usr/bin/env bash
# Profiles collectives over the ring with Nsight Systems; see --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Records collectives over the ring with Nsight Systems: kernels, copies, and NVTX ranges.

  benchmarks/profile/nsys_ring.sh [options]
    -o NAME          name of what is written: NAME.nsys-rep, NAME.sqlite (default: ring)
    --nproc N        ranks (default: 2)
    --size NBYTES    of the tensor (default: 64M)
    --iters N        all-reduces to record (default: 5)
    --device DEVICE  cuda or cpu (default: cuda)
    --dry-run        print the commands, run nothing
    -h, --help       this text

Needs a GPU and nsys on the PATH (Nsight Systems; it comes with the CUDA toolkit).

The ranges: "ring:all_reduce" around each collective, and in it "step S slice K" around each slice's
part in a step of the plan. Only what lies between cudaProfilerStart and cudaProfilerStop is
recorded, which trace.py calls after its warm-up.

Afterwards it prints how often each range occurs, and how long it takes. In nsys-ui, the rows "NVTX"
above the streams show the slices overlap.
TEXT
}

die() {
  echo "nsys_ring.sh: $*" >&2
  exit 2
}

name=ring nproc=2 size=64M iters=5 device=cuda dry_run=
while (($# > 0)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --dry-run) dry_run=1 && shift && continue ;;
    -o | --nproc | --size | --iters | --device) (($# > 1)) || die "$1 needs a value" ;;
    *) die "unknown option $1; --help lists them" ;;
  esac
  case $1 in
    -o) name=$2 ;;
    --nproc) nproc=$2 ;;
    --size) size=$2 ;;
    --iters) iters=$2 ;;
    --device) device=$2 ;;
  esac
  shift 2
done

scripts=$(cd "$(dirname "$0")" && pwd)
profile=(
  nsys profile --force-overwrite true --output "$name"
  --trace cuda,nvtx,osrt --sample none
  --capture-range cudaProfilerApi --capture-range-end stop
  "${PYTHON:-python3}" "$scripts/trace.py" --nsys
  --nproc "$nproc" --size "$size" --iters "$iters" --device "$device"
)
statistics=(nsys stats --report nvtx_pushpop_sum --report cuda_gpu_kern_sum "$name.nsys-rep")

if [[ $dry_run ]]; then
  printf '%q ' "${profile[@]}" && echo
  printf '%q ' "${statistics[@]}" && echo
  exit 0
fi
command -v nsys >/dev/null || die "nsys is not on the PATH; it comes with the CUDA toolkit"
command -v nvidia-smi >/dev/null || die "there is no nvidia-smi on the PATH, so probably no GPU"
"${profile[@]}"
"${statistics[@]}"
