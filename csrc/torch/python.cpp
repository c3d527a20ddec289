#include "torch/python.h"

#include <pybind11/chrono.h>
#include <sys/syscall.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <string>

#include "core/status.h"

namespace py = pybind11;

namespace ringcomm {

void with_gil(const std::function<void()>& body) {
  const py::gil_scoped_acquire gil;
  body();
}

void without_gil(const std::function<void()>& body) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    const py::gil_scoped_release release;
    body();
  } else {
    body();
  }
}

void run_signal_handlers() {
  // gettid() is newer than the C library that wheels are built with.
  if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

c10::intrusive_ptr<c10d::Backend> make_gloo(std::chrono::milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  try {
    const py::module_ c10d = py::module_::import("torch._C._distributed_c10d");
    if (!py::hasattr(c10d, "ProcessGroupGloo")) {
      throw Error(ErrorKind::kLibrary, "this torch was built without gloo");
    }
    const py::object group =
        c10d.attr("ProcessGroupGloo")(c10d.attr("HashStore")(), 0, 1, py::cast(timeout));
    return group.cast<c10::intrusive_ptr<c10d::Backend>>();
  } catch (const py::error_already_set& error) {
    throw Error(ErrorKind::kLibrary, std::string("gloo cannot be used: ") + error.what());
  }
}

}  // namespace ringcomm
