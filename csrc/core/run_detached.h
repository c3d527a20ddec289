// For a call that may never return, such as one to a store on a host that was cut off.
#pragma once

#include <future>
#include <memory>
#include <utility>

#include "core/thread.h"

namespace ringcomm {

// Calls it on a thread of its own. Unlike that of std::async, the future does not wait for it: who
// gives up leaves the thread behind, with all that `function` holds.
template <typename Function>
auto run_detached(Function function) {
  auto task = std::make_shared<std::packaged_task<decltype(function())()>>(std::move(function));
  auto result = task->get_future();
  start_thread([task] { (*task)(); }).detach();
  return result;
}

}  // namespace ringcomm
