#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "core/deadline.h"
#include "core/poll.h"
#include "torch/backend.h"
#include "torch/call_guard.h"
#include "torch/python.h"

namespace ringcomm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPatience{5000};
// A thread that has left a call still has to take the GIL.
constexpr milliseconds kToTakeTheGil{20};

std::atomic<int> inside{0};

// Never destroyed: threads may outlive the statics of the library.
struct Backends {
  std::mutex mutex;
  std::vector<RingBackend*> all;
};
Backends& backends() {
  static auto& backends = *new Backends;
  return backends;
}

}  // namespace

CallGuard::CallGuard() { inside.fetch_add(1); }
CallGuard::~CallGuard() { inside.fetch_sub(1); }

void add_backend(RingBackend* backend) {
  const std::lock_guard lock(backends().mutex);
  backends().all.push_back(backend);
}

void remove_backend(RingBackend* backend) {
  const std::lock_guard lock(backends().mutex);
  std::erase(backends().all, backend);
}

void close_all() {
  std::vector<std::weak_ptr<Queue>> queues;
  {
    const std::lock_guard lock(backends().mutex);
    for (RingBackend* backend : backends().all) queues.push_back(backend->leave());
  }
  const auto busy = [&] {
    return inside > 0 || std::any_of(queues.begin(), queues.end(), [](const auto& held) {
             const std::shared_ptr<Queue> queue = held.lock();
             return queue && !queue->is_idle();
           });
  };
  const bool was_busy = busy();
  poll_for(kPatience, Poll(kPollEvery), [&] { return !busy(); });
  if (was_busy) std::this_thread::sleep_for(kToTakeTheGil);
}

void watch_signals() { interrupt_hook = run_signal_handlers; }

}  // namespace ringcomm
