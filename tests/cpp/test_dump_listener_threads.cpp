// Requests for flight records: all ranks that can answer do, on one host and on several, and no
// rank waits for those that cannot.
#include <sched.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "hosts.h"
#include "shm/dump_listener.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using ranks::kPatience;
using ranks::MemoryNetwork;

void await_dumps(Communicator& communicator, std::uint32_t request) {
  const auto end = Clock::now() + kPatience;
  while (!communicator.group().has_dumps(request) && Clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(communicator.group().has_dumps(request));
}

// Until this rank knows that all have threads which answer.
void await_listeners(Communicator& communicator) {
  shm::Group& group = communicator.group();
  for (int r = 0; r < group.world_size; ++r) {
    while (group.segment().state(r).dump.listens.load() == 0) std::this_thread::sleep_for(1ms);
  }
}

TEST(every_rank_on_every_placement_answers_a_rank_that_asks) {
  for (const std::vector<int>& host_of : ranks::kPlacements) {
    const int n = static_cast<int>(host_of.size());
    std::vector<std::atomic<int>> written(n);
    std::barrier together(n);
    ranks::on_hosts(host_of, "auto", MemoryNetwork::make(), [&](Communicator& c) {
      c.group().answer_dump_requests([&] { ++written[c.rank()]; });
      await_listeners(c);
      together.arrive_and_wait();
      for (int asks = 0; asks < n; ++asks) {
        if (c.rank() == asks) {
          std::vector<int> before(written.begin(), written.end());
          await_dumps(c, c.group().request_dumps());
          for (int r = 0; r < n; ++r) CHECK(r == asks || written[r] > before[r]);
        }
        together.arrive_and_wait();
      }
    });
  }
}

// All count what they ask for, and what is written begins with a look at the counters.
TEST(what_answers_a_request_was_begun_after_it) {
  constexpr int kRanks = 4;
  std::atomic<int> asked[kRanks]{};
  struct Seen {
    std::atomic<int> of[kRanks]{};
  };
  Seen seen[kRanks];
  ranks::with_group(kRanks, "auto", [&](Communicator& c) {
    c.group().answer_dump_requests([&] {
      for (int r = 0; r < kRanks; ++r) seen[c.rank()].of[r] = asked[r].load();
    });
    c.barrier(kPatience);
    for (int i = 1; i <= 200; ++i) {
      asked[c.rank()] = i;
      await_dumps(c, c.group().request_dumps());
      for (int r = 0; r < kRanks; ++r) CHECK(r == c.rank() || seen[r].of[c.rank()] >= i);
    }
    c.barrier(kPatience);
  });
}

TEST(a_thread_answers_for_a_rank_that_makes_no_call) {
  std::atomic<bool> done = false;
  ranks::on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
    c.group().answer_dump_requests([] {});
    await_listeners(c);
    if (c.rank() == 0) {
      await_dumps(c, c.group().request_dumps());
      done = true;
    }
    while (!done) sched_yield();
  });
}

TEST(no_rank_waits_for_one_that_has_no_thread_has_left_or_has_ended) {
  std::barrier together(4);
  ranks::with_group(4, "auto", [&](Communicator& c) {
    if (c.rank() > 1) c.group().answer_dump_requests([] {});
    c.barrier(kPatience);
    if (c.rank() == 2) c.close("of a test");
    if (c.rank() == 3) {
      c.group().segment().state(3).dump.answered = 1;  // as if it had answered, and no more
      c.group().segment().state(3).liveness.ended = 1;
    }
    together.arrive_and_wait();
    if (c.rank() == 0) CHECK(c.group().has_dumps(c.group().request_dumps() + 1));
    together.arrive_and_wait();
  });
}

TEST(a_rank_that_does_not_answer_is_waited_for) {
  std::atomic<bool> may_write = false;
  ranks::with_group(2, "auto", [&](Communicator& c) {
    c.group().answer_dump_requests([&] {
      while (!may_write) sched_yield();
    });
    c.barrier(kPatience);
    if (c.rank() == 0) {
      const std::uint32_t request = c.group().request_dumps();
      std::this_thread::sleep_for(5ms);
      CHECK(!c.group().has_dumps(request));
      may_write = true;
      await_dumps(c, request);
    }
    c.barrier(kPatience);
  });
}

TEST(a_request_that_was_there_before_is_answered) {
  ranks::with_group(2, "auto", [&](Communicator& c) {
    if (c.rank() == 0) c.group().request_dumps();
    c.barrier(kPatience);
    if (c.rank() == 1) c.group().answer_dump_requests([] {});
    c.barrier(kPatience);
    if (c.rank() == 0) await_dumps(c, 1);
    c.barrier(kPatience);
  });
}

TEST(a_thread_that_is_to_end_does_so_at_any_moment) {
  ranks::with_group(2, "auto", [&](Communicator& c) {
    c.barrier(kPatience);
    for (int i = 0; i < 500; ++i) {
      if (c.rank() == 0) c.group().request_dumps();
      if (c.rank() == 1) shm::DumpListener listener(c.group(), [] {});
    }
    c.barrier(kPatience);
  });
}

// What has failed is known where the request is.
TEST(the_reason_comes_before_the_request) {
  for (int round = 0; round < 20; ++round) {
    std::barrier together(4);
    ranks::on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
      shm::Group& group = c.group();
      group.answer_dump_requests([&] { CHECK(group.failure() == ErrorKind::kTimeout); });
      await_listeners(c);
      together.arrive_and_wait();
      if (c.rank() == 3) {
        group.fail(ErrorKind::kTimeout, "of a test");
        await_dumps(c, group.request_dumps());
      }
      together.arrive_and_wait();
    });
  }
}

}  // namespace
