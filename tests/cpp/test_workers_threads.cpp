// The pool of threads that do what may block: as many as there is to do, and few when it is done.
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "core/workers.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using ringcomm::Completions;

int num_threads() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                        std::filesystem::directory_iterator()));
}

// Until it is so; a minute is long enough for the busiest machine.
template <typename Condition>
bool comes_true(Condition condition) {
  for (int i = 0; i < 60'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

// Completions that all block at once, and how many threads there are meanwhile.
int threads_of_a_rush(Completions& completions, int number) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> began{0}, ended{0};
  for (int i = 0; i < number; ++i) {
    completions.run([&, released] {
      ++began;
      released.wait();
      ++ended;
    });
  }
  CHECK(comes_true([&] { return began == number; }));
  const int threads = num_threads();
  release.set_value();
  CHECK(comes_true([&] { return ended == number; }));
  return threads;
}

TEST(threads_of_a_rush_end_but_for_a_few) {
  const int before = num_threads();
  Completions completions;
  for (int rush = 0; rush < 2; ++rush) {
    CHECK(threads_of_a_rush(completions, 30) >= before + 30);
    // One more may be on its way out: the next that ends joins it.
    CHECK(comes_true([&] { return num_threads() <= before + Workers::kIdleThatStay + 1; }));
    std::atomic<bool> ran{false};
    completions.run([&] { ran = true; });
    CHECK(comes_true([&] { return ran.load(); }));
  }
}

TEST(what_is_left_ends_with_the_pool) {
  const int before = num_threads();
  std::atomic<int> ran{0};
  {
    Completions completions;
    for (int i = 0; i < 100; ++i) {
      completions.run([&] {
        std::this_thread::sleep_for(1ms);
        ++ran;
      });
    }
  }
  CHECK_EQ(ran.load(), 100);
  CHECK(comes_true([&] { return num_threads() <= before; }));
}

}  // namespace
