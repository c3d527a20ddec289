// Calls that come from Python right to the backend, by none of torch.distributed's layers.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

void bind_fast_path(pybind11::module_& m);

}  // namespace ringcomm
