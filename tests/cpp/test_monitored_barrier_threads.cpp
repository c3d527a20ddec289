// A monitored barrier whose ranks have died or left says so at once, not when its time is over.
#include <chrono>
#include <latch>
#include <string>
#include <thread>

#include "check.h"
#include "errors.h"
#include "memory_store.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using check::error_of;
using ranks::kPatience;
using ranks::with_group;

// All ranks go on when the process of this one is as if it had been killed: no process has a number
// beyond Linux's largest.
void let_die(Communicator& c, int rank, std::latch& dead) {
  if (c.rank() == rank) {
    c.group().segment().state(rank).process.pid = (1 << 22) + 1;
    dead.count_down();
  }
  dead.wait();
}

// Those that come raise the same kind of error; rank 0 names `missing`, and why.
void check_raises(Communicator& c, bool all, const std::string& missing,
                  const std::vector<std::string>& reasons) {
  const std::string text = error_of(c.rank() == 0 ? ErrorKind::kPeerDied : ErrorKind::kTimeout,
                                    [&] { c.monitored_barrier(all, kPatience / 2); });
  if (c.rank() != 0) return CHECK_CONTAINS(text, "other ranks failed to pass the barrier");
  CHECK_CONTAINS(text, "[Rank 0]: " + missing + " failed to pass monitoredBarrier in ");
  for (const std::string& reason : reasons) CHECK_CONTAINS(text, reason);
}

TEST(a_rank_that_died_is_named_while_others_may_still_come) {
  std::latch dead(1);
  with_group(4, "auto", [&](Communicator& c) {
    const auto start = std::chrono::steady_clock::now();
    let_die(c, 2, dead);
    if (c.rank() == 1) std::this_thread::sleep_for(1s);  // alive, and late
    if (c.rank() != 2) check_raises(c, false, "Rank 2", {"rank 2 will not come, its process"});
    CHECK(std::chrono::steady_clock::now() - start < kPatience / 4);
    c.barrier(kPatience);
  });
}

TEST(all_missing_ranks_are_named_without_waiting_for_the_dead) {
  std::latch dead(1);
  with_group(4, "auto", [&](Communicator& c) {
    const auto start = std::chrono::steady_clock::now();
    let_die(c, 2, dead);
    if (c.rank() == 2) return std::this_thread::sleep_for(2s);
    if (c.rank() == 3) return c.close("done");
    if (c.rank() == 1) std::this_thread::sleep_for(300ms);
    check_raises(c, true, "Ranks 2, 3", {"rank 2 will not come, its process", "rank 3 will not"});
    CHECK(std::chrono::steady_clock::now() - start < kPatience / 4);
  });
}

TEST(the_others_notice_that_rank_0_is_gone) {
  with_group(3, "auto", [](Communicator& c) {
    if (c.rank() == 0) return c.close("done");
    const std::string text =
        error_of(ErrorKind::kPeerDied, [&] { c.monitored_barrier(true, kPatience / 2); });
    CHECK_CONTAINS(text, "waiting for send/recv from rank 0: it will not answer, it has closed");
  });
}

}  // namespace
