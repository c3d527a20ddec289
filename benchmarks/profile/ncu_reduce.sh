#!/usr/bin/env bash
# Profiles the reduction kernels with Nsight Compute; see --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Profiles ringcomm's CUDA kernels with Nsight Compute, in one process without NCCL.

  benchmarks/profile/ncu_reduce.sh [options]
    --fused NAME     in place of the reductions, the fused kernel of the all-reduce algorithm with
                     this name, such as ring, without peers (fused_kernel.py)
    -o NAME          name of what is written: NAME.ncu-rep, NAME.csv (default: reduce)
    --dtypes LIST    as for reduce_kernels.py (default: float,bfloat16)
    --ops LIST       as for reduce_kernels.py (default: sum); fused kernels add
    --size NBYTES    of each buffer, from 4M on (default: 64M)
    --skip N         launches of our kernels to leave out as warm-up (default: 1)
    --count N        launches to profile after that (default: all)
    --dry-run        print the commands, run nothing
    -h, --help       this text

Needs a GPU, ncu on the PATH (it comes with the CUDA toolkit), ringcomm built with CUDA, and the
right to read the GPU's counters. roofline.py makes a table and a picture of NAME.csv, and says what
to do if that right is missing (ERR_NVGPUCTRPERM).

Nsight Compute runs each kernel several times over, once for each group of counters, with memory
restored in between (replay). That is right for our reductions, which depend on nothing but their
inputs, and for a fused kernel that waits for nobody. It must not be done to NCCL's kernels: they
wait for the kernels of other ranks, which have long ended when the second pass begins, so the
program hangs. Hence the filter on our namespace, as torch has a reduce_kernel of its own, and a
program that makes no collective call. For whole collectives, see nsys_ring.sh.

Clocks are left as they are (--clock-control none): by default ncu locks them to the base clock,
and the bandwidths would not be those of a run without it.
TEXT
}

die() {
  echo "ncu_reduce.sh: $*" >&2
  exit 2
}

name=reduce dtypes=float,bfloat16 ops=sum size=64M skip=1 count= dry_run= fused=
while (($# > 0)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --dry-run) dry_run=1 && shift && continue ;;
    -o | --fused | --dtypes | --ops | --size | --skip | --count)
      (($# > 1)) || die "$1 needs a value"
      ;;
    *) die "unknown option $1; --help lists them" ;;
  esac
  case $1 in
    -o) name=$2 ;;
    --fused) fused=$2 ;;
    --dtypes) dtypes=$2 ;;
    --ops) ops=$2 ;;
    --size) size=$2 ;;
    --skip) skip=$2 ;;
    --count) count=$2 ;;
  esac
  shift 2
done

scripts=$(cd "$(dirname "$0")/.." && pwd)
if [[ $fused ]]; then
  program=("$scripts/fused_kernel.py" --algorithms "$fused"
    --dtypes "$dtypes" --sizes "$size" --iters 1 --repeats 1)
else
  program=("$scripts/reduce_kernels.py" --devices cuda
    --dtypes "$dtypes" --ops "$ops" --sizes "$size" --iters 1 --repeats 1)
fi
profile=(
  ncu --force-overwrite --export "$name"
  --kernel-name-base demangled --kernel-name regex:ringcomm:: --launch-skip "$skip"
  ${count:+--launch-count "$count"}
  --clock-control none
  --section SpeedOfLight --section SpeedOfLight_RooflineChart
  --section MemoryWorkloadAnalysis --section MemoryWorkloadAnalysis_Tables
  --section LaunchStats --section Occupancy
  --metrics "gpu__time_duration.sum,dram__bytes.sum,dram__bytes.sum.per_second,dram__bytes.sum.peak_sustained,dram__cycles_elapsed.avg.per_second"
  "${PYTHON:-python3}" "${program[@]}"
)
export_csv=(ncu --import "$name.ncu-rep" --csv --page raw --print-units base)

if [[ $dry_run ]]; then
  printf '%q ' "${profile[@]}" && echo
  printf '%q ' "${export_csv[@]}" && printf '> %q\n' "$name.csv"
  exit 0
fi
command -v ncu >/dev/null || die "ncu is not on the PATH; it comes with the CUDA toolkit"
command -v nvidia-smi >/dev/null || die "there is no nvidia-smi on the PATH, so probably no GPU"
log=$name.log
status=0
"${profile[@]}" 2>&1 | tee "$log" || status=$?
if grep -q ERR_NVGPUCTRPERM "$log"; then
  "${PYTHON:-python3}" "$scripts/profile/roofline.py" "$log" # says what to do
  exit 1
fi
((status == 0)) || exit "$status"
"${export_csv[@]}" >"$name.csv"
echo "wrote $name.ncu-rep, for ncu-ui, and $name.csv, for roofline.py:"
echo "  python benchmarks/profile/roofline.py $name.csv --plot $name.png"
