// Python's way to the reductions alone, without a collective: ringcomm._C.reduce_local.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

void bind_reduce(pybind11::module_& module);

}  // namespace ringcomm
