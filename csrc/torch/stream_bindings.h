// Python's view of what runs on device streams, and of what it costs: ringcomm._C.streams.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

void bind_streams(pybind11::module_& module);

}  // namespace ringcomm
