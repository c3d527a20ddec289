// ringcomm._C.plan.compile: what a rank does of a plan.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

// Into the submodule "plan".
void bind_program(pybind11::module_& m);

}  // namespace ringcomm
