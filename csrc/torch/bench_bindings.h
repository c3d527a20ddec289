// What Python cannot time without Python between the calls: ringcomm._C.repeat_all_reduce and
// line_round_trip.
#pragma once

#include <pybind11/pybind11.h>

namespace ringcomm {

void bind_bench(pybind11::module_& module);

}  // namespace ringcomm
