// Python's view of plans: the submodule ringcomm._C.plan.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

void bind_plan(pybind11::module_& module);

// The type of Python's PlanError, for functions that pybind11 does not translate errors of.
PyObject* plan_error_type();

}  // namespace ringcomm
