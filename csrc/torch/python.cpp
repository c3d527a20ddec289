#include "torch/python.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <system_error>

#include "core/deadline.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

std::atomic<int> threads_inside{0};

}  // namespace

void rethrow_for_torch(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInvalidArgument) TORCH_CHECK_VALUE(false, "ring: ", e.what());
    C10_THROW_ERROR(DistBackendError, c10::str("ring: ", e.what()));
  }
}

void rethrow_from_call(std::exception_ptr error, const std::string& where) {
  const auto named = [&] { return c10::str("ring: ", where, ": ", what_of(error)); };
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    C10_THROW_ERROR(DistBackendError, named());
  } catch (const std::bad_alloc&) {
    C10_THROW_ERROR(DistBackendError, named());
  } catch (const std::system_error&) {
    C10_THROW_ERROR(DistBackendError, named());
  }
}

std::string reason_of(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (...) {
    return what_of(error);
  }
}

std::exception_ptr for_torch(std::exception_ptr error) {
  if (!error) return error;
  try {
    rethrow_for_torch(error);
  } catch (...) {
    return std::current_exception();
  }
}

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

void watch_signals() { interrupt_hook = run_signal_handlers; }

CallGuard::CallGuard() { threads_inside.fetch_add(1); }
CallGuard::~CallGuard() { threads_inside.fetch_sub(1); }
bool CallGuard::any() { return threads_inside > 0; }

}  // namespace ringcomm
