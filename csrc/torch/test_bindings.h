// ringcomm._C.testing: what only the tests and the benchmarks call. Built with
// RINGCOMM_WITH_TESTS=1.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

// Time loops without Python between the calls.
void bind_bench(pybind11::module_& module);

// Engines between hosts, without a group.
void bind_engines(pybind11::module_& module);

// A fused kernel without peers, for profilers.
void bind_fused(pybind11::module_& module);

// The reductions alone, without a collective.
void bind_reduce(pybind11::module_& module);

// All of it.
void bind_tests(pybind11::module_& parent);

}  // namespace ringcomm
