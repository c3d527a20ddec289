#include "torch/links_bindings.h"

#include <string>

#include "hosts/ucx.h"
#include "torch/links.h"

namespace py = pybind11;

namespace ringcomm {

void bind_links(py::module_& parent) {
  py::module_ m = parent.def_submodule("links", "What carries bytes between hosts.");
  m.def("look_for_ucx_in", &links::look_for_ucx_in, py::arg("place"),
        "Where UCX's libraries are; empty: the system's.");
  m.def("describe", &describe_links, py::arg("wanted"), py::call_guard<py::gil_scoped_release>(),
        "The engine that \"auto\", \"ucx\" or \"gloo\" means here, and why it is not another.");
}

}  // namespace ringcomm
