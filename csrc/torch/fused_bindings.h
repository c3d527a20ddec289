// A fused kernel without peers, for Python: for profilers, and to see one run at all.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ringcomm {

void bind_fused(pybind11::module_& module);

}  // namespace ringcomm
