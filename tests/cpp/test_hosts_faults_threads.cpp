// What ranks learn of those on other hosts: calls that differ, and ranks that are late, have left,
// died or were cut off. Hosts are played by threads.
#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "hosts.h"
#include "hosts/streams.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using check::check_error;
using ranks::kPatience;
using ranks::MemoryNetwork;
using ranks::on_hosts;

TEST(different_calls_are_an_error_on_every_host) {
  on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
    std::vector<float> data(100);
    for (int i = 0; i < 5; ++i) {
      check_error(ErrorKind::kMismatch, {"rank 2 called all_reduce(count=50", "Nothing was sent"},
                  [&] {
                    c.all_reduce(data.data(), data.data(), c.rank() == 2 ? 50 : 100,
                                 {DType::kFloat32, ReduceOp::kSum}, kPatience);
                  });
      c.barrier(kPatience);
    }
  });
}

TEST(refused_arguments_are_announced_to_other_hosts) {
  on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
    for (int refuses = 0; refuses < 4; ++refuses) {
      if (c.rank() == refuses) {
        c.refuse("it is wrong", kPatience);
      } else {
        const std::string rank = "rank " + std::to_string(refuses) + "'s arguments were refused";
        check_error(ErrorKind::kMismatch, {rank, "it is wrong"}, [&] { c.barrier(kPatience); });
      }
    }
    c.barrier(kPatience);
  });
}

TEST(a_failure_that_is_too_long_is_cut_between_characters_on_every_host) {
  std::string text = "x";
  while (text.size() < 3000) text += "\xf0\x9f\x8f\x96";
  on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 0) c.group().fail(ErrorKind::kSystem, text);
    const std::string raised = check::error_of(ErrorKind::kSystem, [&] { c.barrier(kPatience); });
    CHECK_CONTAINS(raised, cut_at_character(text, sizeof(shm::FailureText) - 1));
    CHECK_EQ(raised, valid_utf8(raised));
  });
}

TEST(a_late_rank_is_named_on_every_host) {
  for (const int late : {1, 2, 3}) {
    on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
      if (c.rank() == late) {
        std::this_thread::sleep_for(1500ms);
        return;
      }
      const std::string rank = "waiting for rank " + std::to_string(late) + ":";
      check_error(ErrorKind::kTimeout, {rank}, [&] { c.barrier(c.rank() == 0 ? 500ms : 60s); });
    });
  }
}

TEST(a_rank_that_leaves_is_named_on_every_host) {
  for (const int leaves : {0, 1, 3}) {
    on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
      c.barrier(kPatience);
      if (c.rank() == leaves) return;
      const std::string rank = "rank " + std::to_string(leaves) + " will not answer";
      check_error(ErrorKind::kPeerDied, {rank}, [&] { c.barrier(kPatience); });
    });
  }
}

// As if the process of that rank had been killed.
void pretend_to_be_dead(Communicator& c) {
  c.group().segment().state(c.rank()).liveness.ended.store(1);
}

TEST(a_dead_rank_is_named_on_every_host) {
  std::barrier together(4);
  for (const int dies : {1, 2, 3}) {
    on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
      c.barrier(kPatience);
      together.arrive_and_wait();
      if (c.rank() == dies) {
        pretend_to_be_dead(c);
        std::this_thread::sleep_for(2s);
        return;
      }
      const std::string rank = "rank " + std::to_string(dies) + " will not answer, its process";
      check_error(ErrorKind::kPeerDied, {rank, "has ended (on host "},
                  [&] { c.barrier(kPatience); });
    });
  }
}

// The leader of this host is dead, and the peer that is waited for lives.
TEST(a_death_of_the_own_leader_ends_waiting_for_another_host) {
  std::barrier together(2);
  on_hosts({0, 0, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 0) CHECK_THROWS(c.barrier(kPatience), Error);
    if (c.rank() == 1) {
      std::this_thread::sleep_for(300ms);  // until rank 0 has announced its call
      c.group().segment().state(0).liveness.ended.store(1);
      check_error(ErrorKind::kPeerDied, {"rank 0 will not answer", "has ended (on host "},
                  [&] { c.barrier(10s); });
    }
    if (c.rank() != 0) together.arrive_and_wait();
  });
}

// The report that a rank has left may arrive before its last call.
TEST(a_call_counts_that_a_rank_announced_before_it_left) {
  const auto network =
      MemoryNetwork::make({.late_stream = hosts::kAnnouncements, .late_by = 1500ms});
  on_hosts({0, 1}, "auto", network, [&](Communicator& c) {
    if (c.rank() == 1) std::this_thread::sleep_for(1600ms);
    c.barrier(kPatience);
    if (c.rank() == 0) return;
    c.group().close("rank 1 has left");
    std::this_thread::sleep_for(1600ms);  // with its links goes what is late
  });
}

// Its leader, which has to send what it announced and that it left, gets no core for a while.
TEST(a_rank_that_has_left_is_not_lost_before_its_leader_spoke) {
  const auto network = MemoryNetwork::make();
  on_hosts({0, 1, 1}, "ring", network, [&](Communicator& c) {
    std::vector<std::int32_t> data(100'000);
    c.all_reduce(data.data(), data.data(), data.size(), {DType::kInt32, ReduceOp::kSum}, kPatience);
    if (c.rank() == 1) network->hold(1, 2500ms);
    c.barrier(kPatience);
    if (c.rank() == 1) std::this_thread::sleep_for(3s);
  });
}

TEST(hosts_may_take_longer_to_connect_than_they_may_be_silent) {
  const auto network = MemoryNetwork::make({.connects_after = kHeartbeatTimeout + 1s});
  on_hosts({0, 0, 1}, "auto", network, [&](Communicator& c) { c.barrier(kPatience); });
}

Clock::duration until_a_cut_host_is_named(std::chrono::milliseconds heartbeat_timeout) {
  const auto network = MemoryNetwork::make();
  std::barrier together(3);
  Clock::time_point cut;
  std::array<Clock::duration, 3> named;  // by rank
  const auto body = [&](Communicator& c) {
    c.barrier(kPatience);
    const auto& its_leader = c.group().segment().state(c.rank() == 2 ? 0 : 2);
    while (its_leader.liveness.has_spoken.load() == 0) std::this_thread::sleep_for(1ms);
    together.arrive_and_wait();
    if (c.rank() == 0) {
      cut = Clock::now();
      network->silence(0, 2);
      network->silence(2, 0);
    }
    together.arrive_and_wait();
    std::vector<std::int32_t> data(1'000'000);
    check_error(ErrorKind::kPeerDied, {"nothing has been heard of its host"}, [&] {
      for (;;) {
        c.all_reduce(data.data(), data.data(), data.size(), {DType::kInt32, ReduceOp::kSum},
                     kPatience);
      }
    });
    named[c.rank()] = Clock::now() - cut;
    together.arrive_and_wait();  // a rank that leaves is missed at once
  };
  on_hosts({0, 0, 1}, "auto", network, body, {}, heartbeat_timeout);
  return std::ranges::min(named);
}

TEST(a_host_that_is_cut_off_is_named_on_both_sides) {
  until_a_cut_host_is_named(kHeartbeatTimeout);
}

TEST(rank_0_says_how_long_a_host_may_be_silent) {
  CHECK(until_a_cut_host_is_named(2 * kHeartbeatTimeout) > kHeartbeatTimeout + 500ms);
}

TEST(a_lost_connection_raises) {
  const auto network = MemoryNetwork::make();
  std::barrier together(4);
  on_hosts({0, 0, 1, 1}, "ring", network, [&](Communicator& c) {
    c.barrier(kPatience);
    together.arrive_and_wait();
    if (c.rank() == 1) network->lose(1, 2, "the cable was pulled");
    if (c.rank() == 2) network->lose(2, 1, "the cable was pulled");
    std::vector<std::int32_t> data(1'000'000);
    check_error(ErrorKind::kPeerDied, {"the connection to it is lost", "the cable was pulled"},
                [&] {
                  c.all_reduce(data.data(), data.data(), data.size(),
                               {DType::kInt32, ReduceOp::kSum}, kPatience);
                });
  });
}

// Rank 1 exchanges nothing with rank 2, which speaks for the host of rank 3.
TEST(a_lost_leader_is_named_by_ranks_without_a_connection_to_it) {
  const auto network = MemoryNetwork::make();
  std::barrier together(4);
  on_hosts({0, 0, 1, 1}, "hierarchical", network, [&](Communicator& c) {
    c.barrier(kPatience);
    together.arrive_and_wait();
    if (c.rank() == 0) network->lose(0, 2, "the cable was pulled");
    if (c.rank() == 1) {
      const auto began = Clock::now();
      std::string how;
      while (!c.group().gone(3, &how) && Clock::now() - began < kPatience) {
        std::this_thread::sleep_for(1ms);
      }
      CHECK_CONTAINS(how, "because rank 2 will not answer: the connection to it is lost");
      CHECK_CONTAINS(how, "rank 0 has found out");
      CHECK(Clock::now() - began < kHeartbeatTimeout);
    }
    together.arrive_and_wait();
  });
}

}  // namespace
