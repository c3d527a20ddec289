// The collectives of groups that span hosts, played by threads, against results computed from all
// inputs.
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
#include "hosts/streams.h"

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
    for (const Link& link : {far, slow}) {
      const auto network = MemoryNetwork::make({.seed = static_cast<unsigned>(random())});
      const unsigned seed = static_cast<unsigned>(random());
      std::barrier all_here(n);
      const auto body = [&](Communicator& c) {
        const std::size_t most = c.group().geometry().small_nbytes;
        CHECK(link.latency == far.latency ? most > usual : most < usual);
        std::mt19937_64 draw(seed);
        const auto perform = [&](Collective collective, std::size_t nbytes) {
          cases::perform(cases::random_case(collective, n, nbytes, draw), c, kPatience);
        };
        for (const Collective collective : cases::kCollectives) perform(collective, most / n / n);
        for (int i = 0; i < 3; ++i) perform(Collective::kAllReduce, most);
        all_here.arrive_and_wait();
        CHECK_EQ(network->num_sent_from(hosts::kFirstLane), 0u);
        all_here.arrive_and_wait();
        perform(Collective::kAllReduce, most + 8);
        for (const Collective collective : cases::kCollectives) perform(collective, most * n);
        all_here.arrive_and_wait();
        CHECK(network->num_sent_from(hosts::kFirstLane) > 0);
      };
      on_hosts(host_of, "auto", network, body, link);
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

// Rank 0's algorithm is set to the all-reduce that the others are to choose, so that they disagree
// if they choose another one. They use rank 0's network.
TEST(latency_and_bandwidth_choose_an_all_reduce) {
  const Placement placement = Placement::of(std::vector<int>{0, 1, 2, 3});
  const Link link{.latency = 50e-6, .overhead = 0, .bandwidth = 1.25e9};
  const auto network = MemoryNetwork::make();
  ranks::MemoryStore store;
  ranks::on_threads(4, [&](int r) {
    Selection selection = Selection::named(r == 0 ? "hierarchical_doubling" : "auto");
    if (r == 0) selection.link = link;
    Communicator c(store, ranks::group_config(r, placement), selection, network->connect_hosts());
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
