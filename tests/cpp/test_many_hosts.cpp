// Hundreds of ranks on dozens of hosts, which are played by threads.
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "hosts.h"
#include "plans.h"

namespace {

using namespace ringcomm;
using cases::Case;
using ranks::kPatience;
using ranks::MemoryNetwork;

void check_all(int num_hosts, int ranks_per_host) {
  const int n = num_hosts * ranks_per_host;
  const std::vector<int> host_of = equal_hosts(n, ranks_per_host);
  std::mt19937_64 random(n);
  std::vector<Case> all;
  for (const Collective collective : cases::kCollectives) {
    all.push_back(cases::random_case(collective, n, 64, random));
  }
  all.push_back(cases::random_case(Collective::kAllReduce, n, std::size_t{1} << 20, random));
  const auto body = [&](Communicator& communicator) {
    for (const Case& c : all) cases::perform(c, communicator, kPatience);
  };
  // A leader gets its core, and the network's lock, once in a while.
  ranks::on_hosts(host_of, "auto", MemoryNetwork::make(), body, {}, kPatience);
}

// Rank 0's algorithm is set to what the others choose; otherwise they would disagree.
void check_chosen(const std::string& algorithm, int num_hosts, int ranks_per_host) {
  const int n = num_hosts * ranks_per_host;
  const Placement placement = Placement::of(equal_hosts(n, ranks_per_host));
  const auto network = MemoryNetwork::make();
  ranks::MemoryStore store;
  ranks::on_threads(n, [&](int r) {
    Selection selection = Selection::named(r == 0 ? algorithm : "auto");
    selection.link = {.latency = 50e-6, .overhead = 0, .bandwidth = 1.25e9};
    Communicator c(store, ranks::group_config(r, placement), selection, network->connect_hosts());
    std::vector<std::uint16_t> data(1'000'000);
    c.all_reduce(data.data(), data.data(), data.size(), {DType::kBFloat16, ReduceOp::kSum},
                 kPatience);
  });
}

TEST(low_precision_is_exchanged_inside_hosts) { check_chosen("hierarchical_direct", 3, 11); }
TEST(low_precision_goes_around_rings_where_that_is_too_much) {
  check_chosen("hierarchical", 3, 12);
}

TEST(many_hosts_of_one_rank) { check_all(24, 1); }
TEST(many_hosts_of_several_ranks) { check_all(12, 4); }

}  // namespace
