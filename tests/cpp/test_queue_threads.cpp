// The queue of collectives: order, which thread runs what, and callbacks that wait for later
// operations.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/queue.h"

namespace {

using ringcomm::Queue;
using namespace std::chrono_literals;

constexpr auto kPatience = 60s;

template <typename Future>
void check_ready(Future&& future) {
  const bool ready = future.wait_for(kPatience) == std::future_status::ready;
  CHECK(ready);
  if (!ready) throw std::runtime_error("an operation was never run");
}

// Submits an operation; the future is ready when it has been run.
std::shared_future<void> submit(
    Queue& queue, std::function<void()> run = [] {}, std::function<void()> complete = [] {}) {
  auto done = std::make_shared<std::promise<void>>();
  queue.submit({[run, done] {
                  run();
                  done->set_value();
                },
                std::move(complete)});
  return done->get_future().share();
}

// A thread that waits until `held` is gone finds nothing of the operation left.
TEST(what_is_held_goes_last) {
  struct PayloadKind {
    ~PayloadKind() { gone.push_back(name); }
    std::vector<std::string>& gone;
    const std::string name;
  };
  for (const bool helps : {false, true}) {
    std::vector<std::string> gone;
    {
      Queue queue;
      const auto make = [&](const char* name) { return std::make_shared<PayloadKind>(gone, name); };
      const bool entered = queue.try_enter();  // so that no other thread runs it
      CHECK(entered);
      queue.submit(
          {[a = make("run")] {}, [b = make("complete")] {}, std::shared_ptr<void>(make("held"))});
      CHECK(gone.empty());
      queue.leave();
      if (helps) queue.help();
    }
    CHECK_EQ(gone.size(), 3u);
    CHECK_EQ(gone.back(), "held");
  }
}

TEST(operations_run_in_order_and_one_at_a_time) {
  std::vector<int> order;  // unguarded: the turn is the lock
  std::atomic<int> running{0};
  std::atomic<int> completed{0};
  {
    Queue queue;
    for (int i = 0; i < 500; ++i) {
      submit(
          queue,
          [&, i] {
            CHECK_EQ(++running, 1);
            order.push_back(i);
            --running;
          },
          [&] { ++completed; });
      if (i % 50 == 0) std::this_thread::sleep_for(100us);
      if (i % 7 == 0) queue.help();
    }
  }
  CHECK_EQ(order.size(), 500u);
  CHECK_EQ(completed.load(), 500);
  for (int i = 0; i < static_cast<int>(order.size()); ++i) CHECK_EQ(order[i], i);
}

TEST(an_idle_queue_is_entered_and_a_busy_one_is_not) {
  Queue queue;
  CHECK(queue.try_enter());
  CHECK(!queue.try_enter());
  CHECK(!queue.help());
  std::atomic<bool> ran{false};
  const auto done = submit(queue, [&] { ran = true; });
  std::this_thread::sleep_for(5ms);
  CHECK(!ran.load());
  queue.leave();
  check_ready(done);
  while (!queue.try_enter()) std::this_thread::yield();
  queue.leave();
}

TEST(what_is_handed_over_runs_before_what_came_meanwhile) {
  for (const bool helps : {false, true}) {
    std::vector<std::string> order;  // unguarded: the turn is the lock
    Queue queue;
    CHECK(queue.try_enter());
    Queue::Turn turn(queue);
    const auto queued = submit(queue, [&] { order.push_back("queued"); });
    turn.hand_over({[&] { order.push_back("handed over"); }, [] {}});
    turn.leave();  // which it has done
    while (helps && queue.help()) {
    }
    check_ready(queued);
    CHECK_EQ(order.size(), 2u);
    CHECK_EQ(order.front(), "handed over");
  }
}

TEST(entering_and_submitting_from_many_threads) {
  int counter = 0;  // unguarded: the turn is the lock
  std::atomic<int> entered{0};
  {
    Queue queue;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          if (queue.try_enter()) {
            ++counter;
            ++entered;
            queue.leave();
          } else {
            submit(queue, [&] { ++counter; });
            queue.help();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK_EQ(counter, 2000);
  CHECK(entered > 0);
}

// Queued ones come and go while others take the turn, so that the queue is idle again and again.
TEST(the_turn_is_one_threads_while_operations_come_and_go) {
  constexpr int kThreads = 4, kTimes = 20'000;
  int counter = 0;  // unguarded, as above
  std::atomic<int> done{0};
  {
    Queue queue;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kTimes; ++i) {
          if (t % 2 == 0 && i % 8 == 0) {
            submit(queue, [&] {
              ++counter;
              ++done;
            });
          } else if (queue.try_enter()) {
            ++counter;
            ++done;
            queue.leave();
          } else {
            queue.help();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK_EQ(counter, done.load());
}

// Unless a worker is faster: then it is tried again.
TEST(help_runs_what_is_ahead_on_the_calling_thread) {
  std::ptrdiff_t helped = 0;
  for (int attempt = 0; helped == 0 && attempt < 1000; ++attempt) {
    Queue queue;
    CHECK(queue.try_enter());
    std::vector<std::thread::id> ran_on;
    std::vector<std::shared_future<void>> done;
    for (int i = 0; i < 3; ++i) {
      done.push_back(submit(queue, [&] { ran_on.push_back(std::this_thread::get_id()); }));
    }
    queue.leave();
    while (queue.help()) ++helped;
    for (const auto& each : done) check_ready(each);
    CHECK_EQ(ran_on.size(), 3u);
    CHECK_EQ(std::count(ran_on.begin(), ran_on.end(), std::this_thread::get_id()), helped);
    CHECK(!queue.help());
  }
  CHECK(helped > 0);
}

// Each callback helps until the operation submitted after it has been run, and only the last ends.
TEST(callbacks_may_help_later_operations) {
  constexpr int kNested = 8;
  std::atomic<int> completed{0};
  {
    Queue queue;
    CHECK(queue.try_enter());
    std::vector<std::atomic<bool>> ran(kNested + 1);
    for (int i = 0; i <= kNested; ++i) {
      queue.submit({[&, i] { ran[i] = true; },
                    [&, i] {
                      while (i < kNested && !ran[i + 1] && queue.help()) {
                      }
                      CHECK(i == kNested || ran[i + 1]);
                      ++completed;
                    }});
    }
    queue.leave();
    while (completed <= kNested) std::this_thread::sleep_for(1ms);
  }
  CHECK_EQ(completed.load(), kNested + 1);
}

// Ranks differ in when callbacks run, and must not differ in the order of operations.
TEST(what_callbacks_submit_runs_before_what_was_queued_behind) {
  for (int i = 0; i < 200; ++i) {
    std::vector<std::string> order;  // unguarded: the turn is the lock
    {
      Queue queue;
      auto log = [&](const char* name) { return [&order, name] { order.push_back(name); }; };
      auto pause = [&](int often) {
        if (i % often == 0) std::this_thread::sleep_for(50us);
      };
      queue.submit({log("1"), [&] {
                      pause(2);
                      const auto waited_for = submit(queue, log("1.1"), [&] {
                        pause(3);
                        submit(queue, log("1.1.1"));
                      });
                      if (i % 5 == 0) check_ready(waited_for);
                      submit(queue, log("1.2"));
                    }});
      pause(7);
      queue.submit({log("2"), [&] { submit(queue, log("2.1")); }});
      queue.submit({log("3"), [] {}});
      if (i % 4 == 0) queue.help();
    }
    const std::vector<std::string> expected{"1", "1.1", "1.1.1", "1.2", "2", "2.1", "3"};
    CHECK(order == expected);
  }
}

TEST(a_callback_enters_a_queue_in_which_others_wait) {
  for (int i = 0; i < 50; ++i) {
    std::vector<int> order;  // unguarded: the turn is the lock
    {
      Queue queue;
      submit(
          queue, [&] { order.push_back(1); },
          [&] {
            std::this_thread::sleep_for(100us);
            CHECK(queue.try_enter());
            order.push_back(2);
            queue.leave();
          });
      submit(queue, [&] { order.push_back(3); });
    }
    CHECK(order == (std::vector<int>{1, 2, 3}));
  }
}

TEST(what_a_callback_has_submitted_has_the_turn_when_the_callback_is_over) {
  std::promise<void> begun, may_end, over;
  Queue queue;
  const auto long_one = [&] {
    begun.set_value();
    check_ready(may_end.get_future());
  };
  const auto callback = [&] {
    submit(queue, long_one);
    check_ready(begun.get_future());
  };
  queue.submit({[] {}, callback, std::shared_ptr<void>(nullptr, [&](void*) { over.set_value(); })});
  check_ready(over.get_future());
  CHECK(!queue.is_idle());
  CHECK(!queue.try_enter());
  may_end.set_value();
}

TEST(callbacks_may_submit_and_wait) {
  Queue queue;
  std::promise<void> all;
  std::function<void(int)> nest = [&](int depth) {
    if (depth == 0) return all.set_value();
    submit(
        queue, [] {},
        [&, depth] {
          check_ready(submit(queue));
          nest(depth - 1);
        });
  };
  nest(10);
  check_ready(all.get_future());
}

// While the queue is destroyed too, there must be a thread to run what a callback waits for.
TEST(the_destructor_runs_what_is_queued_and_what_callbacks_wait_for) {
  for (int i = 0; i < 50; ++i) {
    std::atomic<int> completed{0};
    {
      Queue queue;
      auto waits = [&] {
        std::this_thread::sleep_for(100us);
        const auto later = submit(queue);
        if (completed++ % 2 == 0) check_ready(later);
      };
      submit(queue, [] { std::this_thread::sleep_for(100us); }, waits);
      submit(queue, [] {}, waits);
      if (i % 2 == 0) std::this_thread::sleep_for(200us);
    }
    CHECK_EQ(completed.load(), 2);
  }
}

// As a Work does, which holds the queue it is in.
TEST(an_operation_may_be_the_last_to_hold_its_queue) {
  for (int i = 0; i < 50; ++i) {
    auto gone = std::make_shared<std::promise<void>>();
    {
      const std::shared_ptr<Queue> queue(new Queue, [gone](Queue* last) {
        delete last;
        gone->set_value();
      });
      queue->submit({[] { std::this_thread::sleep_for(100us); }, [queue] {}});
      if (i % 2 == 0) queue->submit({[] {}, [queue] {}});
      if (i % 3 == 0) queue->help();
    }
    check_ready(gone->get_future());
  }
}

}  // namespace
