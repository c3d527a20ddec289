// What C++ asks of Python. Sources that call these do without pybind11, which takes the compiler
// longer than most of them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ringcomm {

// body(), holding Python's lock.
void with_gil(const std::function<void()>& body);

// body(), without Python's lock: threads that end in it may be running a user's callback, which
// needs it.
void without_gil(const std::function<void()>& body);

// Runs the handlers of signals that have come, if this is the main thread: no other may. Throws
// what they raise.
void run_signal_handlers();

// A group of gloo's with this rank alone: it has gloo's devices, on the interfaces that the user
// has chosen, and makes others. C++ code outside of torch can make none, as gloo's headers are not
// installed. Throws Error. `timeout`: of its calls.
c10::intrusive_ptr<c10d::Backend> make_gloo(std::chrono::milliseconds timeout);

}  // namespace ringcomm
