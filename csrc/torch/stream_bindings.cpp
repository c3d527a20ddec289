#include "torch/stream_bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "gpu/streams/count.h"
#include "gpu/streams/device_collectives.h"
#include "gpu/streams/device_options.h"
#include "torch/errors.h"
#include "torch/tensors.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

using streams::Calls;
using streams::Layout;

void bind_layout(py::module_& m) {
  const Layout layout;
  m.attr("MAX_CTAS") = streams::DeviceOptions{}.max_ctas;
  m.def(
      "describe_executor",
      [](const std::string& name) {
        return with_torch_errors([&] {
          return streams::describe(streams::executor_named(name), streams::kAutoIsFused);
        });
      },
      py::arg("name"));
  py::class_<Layout>(m, "Layout")
      .def(py::init(&Layout::with), py::arg("num_channels") = layout.num_channels,
           py::arg("slice_nbytes") = layout.slice_nbytes)
      .def_readonly("num_channels", &Layout::num_channels)
      .def_readonly("slices_in_flight", &Layout::slices_in_flight)
      .def_readonly("slice_nbytes", &Layout::slice_nbytes)
      .def_readonly("min_slice_nbytes", &Layout::min_slice_nbytes);
}

void bind_calls(py::module_& m) {
  py::class_<Calls>(m, "Calls")
      .def_readonly("groups", &Calls::groups)
      .def_readonly("launches", &Calls::launches)
      .def_readonly("sends", &Calls::sends)
      .def_readonly("recvs", &Calls::recvs)
      .def_readonly("reductions", &Calls::reductions)
      .def_readonly("copies", &Calls::copies)
      .def_readonly("records", &Calls::records)
      .def_readonly("waits", &Calls::waits)
      .def_property_readonly("host_seconds", &streams::host_seconds);
}

Calls count_calls(Collective collective, const std::string& algorithm, int world_size, int rank,
                  int root, std::size_t nbytes, at::ScalarType dtype, const Layout& layout) {
  const DType core = elements_to_move(dtype).dtype;
  return streams::count_calls({.collective = collective,
                               .algorithm = algorithm,
                               .world_size = world_size,
                               .rank = rank,
                               .root = root,
                               .count = nbytes / element_size(core),
                               .dtype = core},
                              layout);
}

}  // namespace

void bind_streams(py::module_& module) {
  py::module_ m = module.def_submodule("streams", "Collectives on device streams: what they call.");
  bind_layout(m);
  bind_calls(m);
  m.def("count_calls", &count_calls, py::arg("collective"), py::arg("algorithm"),
        py::arg("world_size"), py::arg("rank"), py::arg("root"), py::arg("nbytes"),
        py::arg("dtype"), py::arg("layout"));
}

}  // namespace ringcomm
