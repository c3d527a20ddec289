// From the core's errors to the exceptions torch's users expect.
#pragma once

#include <exception>

#include "core/status.h"

namespace ringcomm {

// Rethrows `error` as torch knows it: an Error of kind kInvalidArgument as ValueError, of any other
// kind as DistBackendError (a RuntimeError); everything else as it is.
[[noreturn]] void rethrow_for_torch(std::exception_ptr error);

std::exception_ptr for_torch(std::exception_ptr error);

// What body() throws, or null.
template <typename Body>
std::exception_ptr error_of(Body&& body) {
  try {
    body();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// body(), with the core's errors thrown as torch's.
template <typename Body>
auto with_torch_errors(Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    rethrow_for_torch(std::current_exception());
  }
}

}  // namespace ringcomm
