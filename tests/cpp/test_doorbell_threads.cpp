// Waiting: that a ring ends a sleep, in other processes too, that ranks ring when they are to, and
// which ranks will not come.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "errors.h"
#include "hosts.h"
#include "messages.h"

namespace {

using namespace messages;
using shm::Doorbell;
using shm::DoorbellWaiter;

constexpr std::chrono::microseconds kTooLong = 60s;  // a test that sleeps so long has failed
constexpr std::chrono::microseconds kMoment = 1ms;

void ring_once_heard(Doorbell& bell) {
  while (bell.listeners.load() == 0) sched_yield();
  bell.ring();
}

TEST(a_ring_ends_a_sleep) {
  Doorbell bell{};
  std::thread ringer(ring_once_heard, std::ref(bell));
  {
    DoorbellWaiter listening(bell);
    CHECK(listening.sleep(kTooLong));
  }
  ringer.join();
  CHECK_EQ(bell.listeners.load(), 0u);
}

TEST(what_has_rung_since_the_last_sleep_ends_the_next_one) {
  Doorbell bell{};
  DoorbellWaiter listening(bell);
  CHECK(!listening.sleep(kMoment));
  bell.ring();
  bell.ring();
  CHECK(listening.sleep(kTooLong));
  CHECK(!listening.sleep(kMoment));
}

TEST(no_rank_is_woken_if_none_listens) {
  Doorbell bell{};
  bell.ring();
  CHECK_EQ(bell.rings.load(), 0u);
}

TEST(a_ring_ends_the_sleep_of_another_process) {
  void* const memory =
      mmap(nullptr, sizeof(Doorbell), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  Doorbell& bell = *new (memory) Doorbell{};
  const pid_t child = fork();
  if (child == 0) {
    DoorbellWaiter listening(bell);
    _exit(listening.sleep(kTooLong) ? 0 : 1);
  }
  ring_once_heard(bell);
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  munmap(memory, sizeof(Doorbell));
}

// How often a rank's bells ring while it does something that another one could wait for.
struct Rings {
  std::uint32_t progress, mail;
};
Rings rings_of(shm::RankState& state, const std::function<void()>& body) {
  DoorbellWaiter to_progress(state.progress_bell), to_mail(state.mail_bell);
  const Rings before{state.progress_bell.rings.load(), state.mail_bell.rings.load()};
  body();
  return {state.progress_bell.rings.load() - before.progress,
          state.mail_bell.rings.load() - before.mail};
}

// By each of the ways that a call takes: announcements alone; announcements and an action for each
// slice, of which there are two; tensors in shared memory, announced and then done with.
TEST(every_rank_rings_in_every_collective) {
  std::mt19937_64 random(1);
  for (const std::uint64_t in_arena : {0u, 3u}) {
    for (const std::size_t nbytes : {8u, 400'000u}) {
      cases::Case c;
      c.counts = {nbytes / sizeof(float)};
      c.in_arena = in_arena;
      cases::make_data(c, 2, random);
      ranks::with_group(2, "auto", [&](Communicator& communicator) {
        shm::RankState& own = communicator.group().segment().state(communicator.rank());
        cases::perform(c, communicator, kPatience);  // in which ranks learn where memory is
        const Rings rings = rings_of(own, [&] { cases::perform(c, communicator, kPatience); });
        communicator.barrier(kPatience);  // a rank that closes the group rings, too
        CHECK_EQ(rings.progress, nbytes == 8 ? 1u : in_arena == 0 ? 3u : 2u);
      });
    }
  }
}

TEST(a_rank_that_waits_long_listens_to_late_ranks) {
  ranks::with_group(3, "auto", [&](Communicator& c) {
    shm::Doorbell& late = c.group().segment().state(2).progress_bell;
    if (c.rank() == 2) {
      while (late.listeners.load() < 2) sched_yield();
    }
    c.barrier(kPatience);
    c.barrier(kPatience);
    while (late.listeners.load() != 0) sched_yield();  // until the last one has seen it
  });
}

// Ranks of a host listen to each other, and for other hosts to their leader.
TEST(a_rank_that_waits_long_for_another_host_is_woken) {
  std::atomic<shm::Doorbell*> of_leader = nullptr;
  ranks::on_hosts({0, 0, 1, 1}, "auto", ranks::MemoryNetwork::make(), [&](Communicator& c) {
    shm::Doorbell& own = c.group().segment().state(c.rank()).progress_bell;
    c.barrier(kPatience);
    const std::uint32_t before = own.rings.load();
    if (c.rank() == 0) of_leader = &own;
    if (c.rank() == 3) {
      while (of_leader == nullptr) sched_yield();
      while (own.listeners.load() == 0) sched_yield();
      while (of_leader.load()->listeners.load() == 0) sched_yield();
      std::this_thread::sleep_for(20ms);  // until they listen to no rank that comes before
    }
    c.barrier(kPatience);
    if (c.rank() == 0 || c.rank() == 3) CHECK(own.rings.load() > before);
    c.barrier(kPatience);  // no rank leaves what others look at
  });
}

TEST(what_breaks_the_group_rings_all_bells) {
  ranks::with_group(3, "auto", [&](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() != 1) return;
    shm::Group& group = c.group();
    shm::Doorbell& first = group.segment().state(0).progress_bell;
    shm::Doorbell& last = group.segment().state(2).progress_bell;
    std::this_thread::sleep_for(20ms);  // the others have rung for the barrier
    DoorbellWaiter to_first(first), to_last(last);
    group.fail(ErrorKind::kSystem, "of a test");
    CHECK(to_first.sleep(kMoment) && to_last.sleep(kMoment));
    group.close("of a test");
    CHECK(to_first.sleep(kMoment) && to_last.sleep(kMoment));
  });
}

TEST(a_message_wakes_its_receiver_and_its_release_the_sender) {
  ranks::with_group(2, "auto", [&](Communicator& c) {
    shm::RankState& own = c.group().segment().state(c.rank());
    const std::size_t count = 6 * slot_count(2);  // more than a mail box holds
    const Rings rings = rings_of(own, [&] {
      c.barrier(kPatience);  // both listen
      wait(c, c.rank() == 0 ? send(c, 1, 0, numbers(count, 1)) : recv(c, 0, 0, count));
    });
    CHECK(rings.mail >= (c.rank() == 0 ? 2u : 6u));
  });
}

TEST(a_refusal_wakes_the_sender) {
  ranks::with_group(2, "auto", [&](Communicator& c) {
    shm::RankState& own = c.group().segment().state(c.rank());
    const std::size_t count = 6 * slot_count(2);
    const Rings rings = rings_of(own, [&] {
      c.barrier(kPatience);
      const Pending message =
          c.rank() == 0 ? send(c, 1, 0, numbers(count, 1)) : recv(c, 0, 0, count - 1);
      try {
        wait(c, message);
        CHECK(false);
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kMismatch);
      }
    });
    CHECK(rings.mail >= 1);
  });
}

constexpr std::chrono::milliseconds kSlice = 4ms;  // what a process takes to which a rank yields

TEST(after_a_yield_that_took_a_time_slice_waits_sleep_for_a_while) {
  shm::Contention contention;
  Clock::time_point now = Clock::now();
  const auto yields_for = [&](Clock::duration took) {
    contention.record_yield(now, now + took);
    now += took;
  };
  const auto lasts = [&] {
    const Clock::time_point start = now;
    for (; contention.is_likely(now); now += 1ms) {
    }
    return now - start;
  };
  for (int i = 0; i < 10; ++i) yields_for(900us);
  CHECK(!contention.is_likely(now));
  for (int round = 0; round < 2; ++round) {
    for (const auto expected : {50ms, 100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
      yields_for(kSlice);
      CHECK(lasts() == expected);
      for (int i = 0; i < 40; ++i) yields_for(1us);
    }
    now += 2s;  // in which no yield takes long
  }
}

TEST(a_wait_beside_other_processes_sleeps_at_once) {
  ranks::with_group(2, "auto", [&](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 0) {
      const Clock::time_point now = Clock::now();
      c.group().contention().record_yield(now - kSlice, now);
      const Deadline deadline = Deadline::in(kPatience);
      shm::Backoff idle(c.group(), deadline);
      int asked = 0;  // for the ranks whose bells would end a sleep
      const auto explain = [&] {
        ++asked;
        return shm::WaitInfo{{1}, "a test"};
      };
      for (int i = 0; i < c.group().spins(); ++i) idle.pause(explain);
      CHECK_EQ(asked, 0);
      idle.pause(explain);
      CHECK_EQ(asked, 1);
      CHECK_EQ(c.group().segment().state(1).progress_bell.listeners.load(), 1u);
    }
    c.barrier(kPatience);
  });
}

TEST(collectives_and_messages_beside_other_processes) {
  std::mt19937_64 random(2);
  std::vector<cases::Case> all;
  for (const Collective collective : cases::kCollectives) {
    for (const std::size_t nbytes : {8u, 4711u, 400'000u}) {
      all.push_back(cases::random_case(collective, 3, nbytes, random));
    }
  }
  ranks::with_group(3, "auto", [&](Communicator& communicator) {
    const auto see_others = [&] {
      const Clock::time_point now = Clock::now();
      communicator.group().contention().record_yield(now - kSlice, now);
    };
    for (const cases::Case& c : all) {
      see_others();
      cases::perform(c, communicator, kPatience);
    }
    const std::size_t count = 6 * slot_count(3);
    for (int to = 1; to < 3; ++to) {
      see_others();
      if (communicator.rank() == 0)
        wait(communicator, send(communicator, to, 0, numbers(count, to)));
      if (communicator.rank() == to) wait(communicator, recv(communicator, 0, 0, count));
    }
  });
}

// Some of the awaited ranks come and leave between two looks of the rank that waits.
TEST(a_rank_that_has_done_its_part_may_leave_while_others_are_late) {
  std::atomic<bool> is_over{false};
  ranks::with_group(3, "auto", [&](Communicator& c) {
    c.barrier(kPatience);
    shm::Group& group = c.group();
    if (c.rank() == 1) group.close("of a test");
    if (c.rank() == 2) {
      while (!is_over && !group.broken()) std::this_thread::sleep_for(1ms);
    }
    if (c.rank() != 0) return;
    std::string how;
    while (!group.gone(1, &how)) sched_yield();
    const Deadline deadline = Deadline::in(kPatience);
    shm::Backoff idle(group, deadline);
    int looks = 0;
    const auto explain = [&] {
      return shm::WaitInfo{++looks == 1 ? std::vector{1, 2} : std::vector{2}, "a test"};
    };
    const Clock::time_point start = Clock::now();
    while (Clock::now() - start < 3 * kLookEvery) idle.pause(explain);
    CHECK(looks > 2);
    const std::string text = check::error_of(ErrorKind::kPeerDied, [&] {
      while (true) idle.pause([] { return shm::WaitInfo{{1, 2}, "a test"}; });
    });
    CHECK_CONTAINS(text, "rank 1 will not answer, it has closed the group");
    is_over = true;
  });
}

}  // namespace
