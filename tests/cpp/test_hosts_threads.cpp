// The collectives of groups that span hosts, played by threads, against results computed from all
// inputs; and what ranks learn of other hosts.
#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "errors.h"
#include "hosts.h"
#include "shm/streams.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using cases::Case;
using check::check_error;
using ranks::kPatience;
using ranks::kPlacements;
using ranks::MemoryNetwork;
using ranks::on_hosts;

void perform_all(const std::vector<int>& host_of, const std::string& algorithm,
                 const std::vector<Case>& all, ranks::NetworkOptions options = {}) {
  on_hosts(host_of, algorithm, MemoryNetwork::make(options), [&](Communicator& communicator) {
    for (const Case& c : all) cases::perform(c, communicator, kPatience);
  });
}

TEST(every_collective_on_every_placement) {
  std::mt19937_64 random(1);
  for (const std::vector<int>& host_of : kPlacements) {
    const int n = static_cast<int>(host_of.size());
    const std::size_t eager = shm::Geometry(n).eager_nbytes;
    for (const char* algorithm : {"auto", "ring", "direct", "hierarchical", "hierarchical_direct",
                                  "hierarchical_doubling"}) {
      std::vector<Case> all;
      for (const Collective collective : cases::kCollectives) {
        for (const std::size_t nbytes :
             {std::size_t{0}, std::size_t{8}, eager, eager + 8, std::size_t{100'000}}) {
          all.push_back(cases::random_case(collective, n, nbytes, random));
        }
      }
      perform_all(host_of, algorithm, all, {.seed = static_cast<unsigned>(random())});
    }
  }
}

// What crosses with its announcement waits for nothing; of a far network that is more, of a slow
// one less.
TEST(what_is_small_for_the_network_crosses_at_once) {
  const Link far{.latency = 10e-3, .overhead = 0, .bandwidth = 1.25e9};
  const Link slow{.latency = 50e-6, .overhead = 0, .bandwidth = 1e6};
  std::mt19937_64 random(8);
  for (const std::vector<int>& host_of : kPlacements) {
    const int n = static_cast<int>(host_of.size());
    const std::size_t usual = shm::Geometry(n).small_nbytes;
    for (const Link& across : {far, slow}) {
      const auto network = MemoryNetwork::make({.seed = static_cast<unsigned>(random())});
      const unsigned seed = static_cast<unsigned>(random());
      std::barrier all_here(n);
      const auto body = [&](Communicator& c) {
        const std::size_t most = c.group().geometry().small_nbytes;
        CHECK(across.latency == far.latency ? most > usual : most < usual);
        std::mt19937_64 draw(seed);
        const auto perform = [&](Collective collective, std::size_t nbytes) {
          cases::perform(cases::random_case(collective, n, nbytes, draw), c, kPatience);
        };
        for (const Collective collective : cases::kCollectives) perform(collective, most / n / n);
        for (int i = 0; i < 3; ++i) perform(Collective::kAllReduce, most);
        all_here.arrive_and_wait();
        CHECK_EQ(network->num_sent_from(shm::kFirstLane), 0u);
        all_here.arrive_and_wait();
        perform(Collective::kAllReduce, most + 8);
        for (const Collective collective : cases::kCollectives) perform(collective, most * n);
        all_here.arrive_and_wait();
        CHECK(network->num_sent_from(shm::kFirstLane) > 0);
      };
      on_hosts(host_of, "auto", network, body, across);
    }
  }
}

TEST(several_rounds_of_slices) {
  std::mt19937_64 random(2);
  for (const std::vector<int>& host_of : {kPlacements[0], kPlacements[2]}) {
    const int n = static_cast<int>(host_of.size());
    for (const char* algorithm : {"auto", "ring"}) {
      const std::size_t nbytes = shm::Geometry(n).slots_nbytes / 2 * n * 3 + 1000;
      std::vector<Case> all;
      for (const Collective collective : cases::kCollectives) {
        all.push_back(cases::random_case(collective, n, nbytes, random));
      }
      perform_all(host_of, algorithm, all, {.longest_delay = 200us, .eager_limit = 4096});
    }
  }
}

TEST(hundreds_of_collectives_in_a_row) {
  std::mt19937_64 random(6);
  for (const bool in_order : {false, true}) {
    const std::vector<int>& host_of = kPlacements[2];
    const int n = static_cast<int>(host_of.size());
    std::vector<Case> all;
    for (int i = 0; i < 200; ++i) {
      const Collective collective = cases::kCollectives[random() % cases::kCollectives.size()];
      const std::size_t most = random() % 20 == 0 ? 400'000 : random() % 4 == 0 ? 80'000 : 3000;
      all.push_back(cases::random_case(collective, n, random() % most, random));
    }
    on_hosts(host_of, "auto", MemoryNetwork::make({.longest_delay = 50us, .in_order = in_order}),
             [&](Communicator& communicator) {
               std::mt19937 pauses(communicator.rank());
               for (const Case& c : all) {
                 if (pauses() % 20 == 0) std::this_thread::sleep_for(1us * (pauses() % 2000));
                 cases::perform(c, communicator, kPatience);
               }
               CHECK_EQ(communicator.sequence(), all.size());
             });
  }
}

// Rank 0 is told which all-reduce the others find out, so that they disagree where it is not that.
// They go by the network that it is told of.
TEST(latency_and_bandwidth_choose_an_all_reduce) {
  const Placement placement = Placement::of(std::vector<int>{0, 1, 2, 3});
  const Link across{.latency = 50e-6, .overhead = 0, .bandwidth = 1.25e9};
  const auto network = MemoryNetwork::make();
  ranks::MemoryStore store;
  ranks::on_threads(4, [&](int r) {
    Selection selection = Selection::named(r == 0 ? "hierarchical_doubling" : "auto");
    if (r == 0) selection.across = across;
    Communicator c(store, ranks::invite(r, placement), selection, network->maker());
    std::vector<float> data(70'000, 1);
    const auto all_reduce = [&](std::size_t count) {
      c.all_reduce(data.data(), data.data(), count, {DType::kFloat32, ReduceOp::kSum}, kPatience);
    };
    all_reduce(65'536);
    CHECK_EQ(data[65'535], 4.0F);
    check_error(ErrorKind::kMismatch, {"with another algorithm"}, [&] { all_reduce(65'537); });
    all_reduce(65'536);
    CHECK_EQ(data[0], 16.0F);
  });
}

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

TEST(refused_arguments_are_told_to_other_hosts) {
  on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
    for (int refuses = 0; refuses < 4; ++refuses) {
      if (c.rank() == refuses) {
        c.refuse("it is wrong", kPatience);
      } else {
        const std::string who = "rank " + std::to_string(refuses) + "'s arguments were refused";
        check_error(ErrorKind::kMismatch, {who, "it is wrong"}, [&] { c.barrier(kPatience); });
      }
    }
    c.barrier(kPatience);
  });
}

TEST(who_is_late_is_named_on_every_host) {
  for (const int late : {1, 2, 3}) {
    on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
      if (c.rank() == late) {
        std::this_thread::sleep_for(1500ms);
        return;
      }
      const std::string who = "waiting for rank " + std::to_string(late) + ":";
      check_error(ErrorKind::kTimeout, {who}, [&] { c.barrier(c.rank() == 0 ? 500ms : 60s); });
    });
  }
}

TEST(who_leaves_is_named_on_every_host) {
  for (const int leaves : {0, 1, 3}) {
    on_hosts({0, 0, 1, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
      c.barrier(kPatience);
      if (c.rank() == leaves) return;
      const std::string who = "rank " + std::to_string(leaves) + " will not answer";
      check_error(ErrorKind::kPeerDied, {who}, [&] { c.barrier(kPatience); });
    });
  }
}

// As if the process of that rank had been killed.
void pretend_to_be_dead(Communicator& c) { c.group().segment().state(c.rank()).ended.store(1); }

TEST(who_died_is_named_on_every_host) {
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
      const std::string who = "rank " + std::to_string(dies) + " will not answer, its process";
      check_error(ErrorKind::kPeerDied, {who, "has ended (on host "},
                  [&] { c.barrier(kPatience); });
    });
  }
}

// Who speaks for this host is dead, and the peer that is waited for lives.
TEST(a_death_of_the_own_leader_ends_waiting_for_another_host) {
  std::barrier together(2);
  on_hosts({0, 0, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 0) CHECK_THROWS(c.barrier(kPatience), Error);
    if (c.rank() == 1) {
      std::this_thread::sleep_for(300ms);  // until rank 0 has announced its call
      c.group().segment().state(0).ended.store(1);
      check_error(ErrorKind::kPeerDied, {"rank 0 will not answer", "has ended (on host "},
                  [&] { c.barrier(10s); });
    }
    if (c.rank() != 0) together.arrive_and_wait();
  });
}

// That a rank has left may be heard before its last call is.
TEST(a_call_counts_that_a_rank_announced_before_it_left) {
  const auto network = MemoryNetwork::make({.late_stream = shm::kAnnouncements, .late_by = 1500ms});
  on_hosts({0, 1}, "auto", network, [&](Communicator& c) {
    if (c.rank() == 1) std::this_thread::sleep_for(1600ms);
    c.barrier(kPatience);
    if (c.rank() == 0) return;
    c.group().close("rank 1 has left");
    std::this_thread::sleep_for(1600ms);  // with its links goes what is late
  });
}

// Its leader, which has to tell what it announced and that it left, gets no core for a while.
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
  const auto network = MemoryNetwork::make({.connects_after = kSilence + 1s});
  on_hosts({0, 0, 1}, "auto", network, [&](Communicator& c) { c.barrier(kPatience); });
}

Clock::duration until_a_cut_host_is_named(std::chrono::milliseconds silence) {
  const auto network = MemoryNetwork::make();
  std::barrier together(3);
  Clock::time_point cut;
  std::array<Clock::duration, 3> named;  // by rank
  const auto body = [&](Communicator& c) {
    c.barrier(kPatience);
    const auto& its_leader = c.group().segment().state(c.rank() == 2 ? 0 : 2);
    while (its_leader.has_spoken.load() == 0) std::this_thread::sleep_for(1ms);
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
    together.arrive_and_wait();  // whoever leaves is missed at once
  };
  on_hosts({0, 0, 1}, "auto", network, body, {}, silence);
  return std::ranges::min(named);
}

TEST(a_host_that_is_cut_off_is_named_on_both_sides) { until_a_cut_host_is_named(kSilence); }

TEST(rank_0_says_how_long_a_host_may_be_silent) {
  CHECK(until_a_cut_host_is_named(2 * kSilence) > kSilence + 500ms);
}

TEST(a_lost_connection_is_told) {
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
TEST(a_lost_leader_is_named_by_those_who_have_no_connection_to_it) {
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
      CHECK(Clock::now() - began < kSilence);
    }
    together.arrive_and_wait();
  });
}

TEST(monitored_barriers_cross_hosts) {
  on_hosts({0, 1, 0, 1}, "auto", MemoryNetwork::make(), [&](Communicator& c) {
    for (int i = 0; i < 5; ++i) c.monitored_barrier(i % 2 == 0, kPatience);
    if (c.rank() == 3) return std::this_thread::sleep_for(1s);
    check_error(ErrorKind::kTimeout,
                {c.rank() == 0 ? "Rank 3 failed to pass monitoredBarrier" : "rank 0"},
                [&] { c.monitored_barrier(true, c.rank() == 0 ? 500ms : 60s); });
  });
}

}  // namespace
