// Threads of the library. The system may refuse one: ulimit -u, a container's pids limit.
#pragma once

#include <signal.h>

#include <future>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/status.h"

namespace ringcomm {

// The system makes no further thread for this process, which may be otherwise in a moment.
struct NoThread : Error {
  explicit NoThread(const std::string& why)
      : Error(ErrorKind::kSystem, "the system makes no further thread for this process: " + why +
                                      " (see ulimit -u and the container's pids limit)" + kAgain) {}
  // The same of what cannot be made again by this rank alone.
  Error for_good() const {
    const std::string_view text = what();
    return {kind(), text.substr(0, text.size() - std::string_view(kAgain).size())};
  }

 private:
  static constexpr const char* kAgain = ". The call was not made, and may be made again";
};

// body(), which this rank alone cannot make again, whatever it fails by.
template <typename Body>
auto once_for_all(Body&& body) {
  try {
    return body();
  } catch (const NoThread& error) {
    throw error.for_good();
  }
}

// A std::thread that runs body(). Throws NoThread.
template <typename Body>
std::thread start_thread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw NoThread(error.what());
  }
}

// Blocks all signals on this thread, and on those that it starts meanwhile.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Calls it on a thread of its own, as it may never return: a call to a store on a host that was cut
// off, for example. Unlike that of std::async, the future does not wait for it: a caller that gives
// up leaves the thread behind, with all that `function` holds.
template <typename Function>
auto run_detached(Function function) {
  auto task = std::make_shared<std::packaged_task<decltype(function())()>>(std::move(function));
  auto result = task->get_future();
  start_thread([task] { (*task)(); }).detach();
  return result;
}

}  // namespace ringcomm
