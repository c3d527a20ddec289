// What the Python module ringcomm._C is made of.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "core/selection.h"
#include "plan/collective.h"

namespace ringcomm {

struct SizeClass;

// A function that runs without Python's lock.
using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;

// Calls that come from Python right to the backend, by none of torch.distributed's layers.
void bind_fast_path(pybind11::module_& m);

// The submodule "plan": plans, and what a rank does of one.
void bind_plan(pybind11::module_& module);

// The type of Python's PlanError, for functions that pybind11 does not translate errors of.
PyObject* plan_error_type();

// A part of it: how the calls of any group go.
void bind_policy(pybind11::module_& plan);

// World size, collective, algorithm, and the most bytes of a call.
using Tuned = std::tuple<int, Collective, std::string, std::uint64_t>;
// Throws py::value_error if one names an algorithm that its collective does not have.
std::vector<TunedRule> rules_of(const std::vector<Tuned>& tuned);

// The arguments of ringcomm.chosen.SizeClass.
pybind11::dict to_dict(const SizeClass& one);

// The submodule "streams": what runs on device streams, and what it costs.
void bind_streams(pybind11::module_& module);

// The submodule "testing": what only tests and benchmarks call. Built with RINGCOMM_WITH_TESTS=1.
void bind_tests(pybind11::module_& parent);

}  // namespace ringcomm
