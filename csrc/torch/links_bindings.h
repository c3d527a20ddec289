// ringcomm._C.links: which engine carries bytes between hosts.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ringcomm {

void bind_links(pybind11::module_& module);

}  // namespace ringcomm
