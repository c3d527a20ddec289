#include "torch/test_bindings.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "gpu/streams/cost.h"
#include "plan/verify.h"

namespace ringcomm {

void bind_tests(pybind11::module_& parent) {
  namespace py = pybind11;
  py::module_ m = parent.def_submodule("testing", "What only tests and benchmarks call.");
  bind_bench(m);
  bind_engines(m);
  bind_fused(m);
  bind_reduce(m);
  m.def("verify_chunks", verify_chunks, py::arg("collective"), py::arg("world_size"),
        py::arg("plan_of"), py::arg("chunks"), py::arg("root") = 0);
  m.attr("CALL_SECONDS") = streams::kCallSeconds;
  m.attr("LAUNCH_SECONDS") = streams::kLaunchSeconds;
  m.attr("REDUCTION_SECONDS") = streams::kReductionSeconds;
  m.attr("COPY_SECONDS") = streams::kCopySeconds;
  m.attr("EVENT_SECONDS") = streams::kEventSeconds;
  m.attr("WIRE_BANDWIDTH") = streams::kWireBandwidth;
}

}  // namespace ringcomm
