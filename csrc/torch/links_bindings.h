// ringcomm._C.links: the engines between hosts, for the doctor and the tests.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ringcomm {

void bind_links(pybind11::module_& module);

}  // namespace ringcomm
