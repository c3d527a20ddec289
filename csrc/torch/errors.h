// From the core's errors to the exceptions torch's users expect.
#pragma once

#include <exception>
#include <string>

#include "core/status.h"

namespace ringcomm {

// Rethrows `error` as torch knows it: an Error of kind kInvalidArgument as ValueError, of any other
// kind as DistBackendError (a RuntimeError); everything else as it is.
[[noreturn]] void rethrow_for_torch(std::exception_ptr error);

std::exception_ptr for_torch(std::exception_ptr error);

// Rethrows what could not be done, by the rank and the call that `where` names: an error of the
// core or the system, such as a lack of memory, as DistBackendError, and everything else as it is.
[[noreturn]] void rethrow_from_call(std::exception_ptr error, const std::string& where);

// What the error says, without torch's backtrace.
std::string reason_of(std::exception_ptr error);

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
