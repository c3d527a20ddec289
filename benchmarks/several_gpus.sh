#!/usr/bin/env bash
# Builds ringcomm on a machine with 2 to 8 GPUs or more, looks whether they reach each other's
# memory, tests and measures it beside NCCL, in about 10 minutes: the results are one folder to send
# back. gpu_suite.sh does the work, and --help says what is written.
exec "$(dirname "$0")/gpu_suite.sh" --several "$@"
