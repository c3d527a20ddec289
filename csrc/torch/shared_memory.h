// Tensors in memory that the peers' processes can map (shm/arena.h).
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

void bind_shared_memory(pybind11::module_& m);

}  // namespace ringcomm
