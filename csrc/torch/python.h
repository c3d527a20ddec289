// Where C++ meets Python: the exceptions that torch's users expect, Python's lock, its signals, and
// its end. Sources that call these do without pybind11, which takes the compiler longer than most
// of them.
#pragma once

#include <exception>
#include <functional>
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

// body(), holding Python's lock.
void with_gil(const std::function<void()>& body);

// body(), without Python's lock: threads that end in it may be running a user's callback, which
// needs it.
void without_gil(const std::function<void()>& body);

// Runs the handlers of signals that have come, if this is the main thread: no other may. Throws
// what they raise.
void run_signal_handlers();

// Waits on Python's main thread run the handlers of signals from now on.
void watch_signals();

// A thread that is in a call of the library, and will need Python when it comes back.
class CallGuard {
 public:
  CallGuard();
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;

  // Whether there is such a thread.
  static bool any();
};

}  // namespace ringcomm
