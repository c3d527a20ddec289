#!/usr/bin/env bash
# Builds, tests and measures everything that needs a GPU; see --help.
set -euo pipefail

folder=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$folder:${folder%/*}${PYTHONPATH:+:$PYTHONPATH}
export RINGCOMM_WITH_TESTS=1 # some benchmarks call functions that users do not get
export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 NCCL_DEBUG=${NCCL_DEBUG:-WARN}
export PATH=$PATH:/usr/local/cuda/bin

gpus=1
for argument in "$@"; do
  if [[ $argument == --several ]]; then gpus=2; fi
done
for argument in "$@"; do
  if [[ $argument == --rehearse ]]; then
    export RINGCOMM_REHEARSE=$gpus PATH=$folder/gpu_suite/stand_ins:$PATH
  fi
done
PYTHON=${PYTHON:-python3}
export PYTHON
exec "$PYTHON" -m gpu_suite "$@"
