"""Builds, tests and measures what needs a GPU; `benchmarks/gpu_suite.sh --help` is the way in."""
