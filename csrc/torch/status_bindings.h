// Groups as others see them, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

void bind_status(pybind11::module_& m);

}  // namespace ringcomm
