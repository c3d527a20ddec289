// The simulation against times worked out by hand, and simulated representatives against simulated
// groups, which must take the same time to the last bit.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "plan/barrier.h"
#include "plan/chain.h"
#include "plan/direct.h"
#include "plan/hierarchical.h"
#include "plan/plan.h"
#include "plan/ring.h"
#include "plan/simulate.h"
#include "plans.h"

namespace {

using namespace ringcomm;

using PlanOf = std::function<Plan(int rank)>;

// Powers of two, so that sums of them are exact.
constexpr double kLatency = 0x1p-20, kOverhead = 0x1p-22;
constexpr double kBandwidth = 0x1p30, kReduceBandwidth = 0x1p31;

Network one_host(int world_size) {
  return {.ranks_per_host = world_size,
          .nics_per_host = 1,
          .inside = {.latency = kLatency, .overhead = 0, .bandwidth = kBandwidth},
          .across = {},
          .reduce_bandwidth = std::numeric_limits<double>::infinity()};
}

Network hosts_of(int ranks_per_host, int nics_per_host) {
  return {.ranks_per_host = ranks_per_host,
          .nics_per_host = nics_per_host,
          .inside = {.latency = kLatency, .overhead = kOverhead, .bandwidth = 0x1p33},
          .across = {.latency = 16 * kLatency, .overhead = kOverhead / 2, .bandwidth = kBandwidth},
          .reduce_bandwidth = kReduceBandwidth};
}

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Simulator simulator(int world_size, const PlanOf& plan_of, const Network& network) {
  return Simulator(world_size, plan_of, network, all_ranks(world_size));
}

double seconds(int world_size, const PlanOf& plan_of, const Network& network, double nbytes,
               double slice_nbytes = std::numeric_limits<double>::infinity()) {
  return simulator(world_size, plan_of, network).run(nbytes, slice_nbytes).seconds;
}

// The same plans, but that the last rank ends with an empty step: no rank stands for another.
PlanOf without_symmetry(int world_size, const PlanOf& plan_of) {
  return [=](int rank) {
    Plan plan = plan_of(rank);
    if (rank == world_size - 1) plan.steps.push_back({});
    return plan;
  };
}

struct Generator {
  const char* name;
  std::function<PlanOf(int world_size, int ranks_per_host)> plans;
};

Generator flat(const char* name, Plan (*plan)(int, int)) {
  return {name, [=](int n, int) { return [=](int rank) { return plan(rank, n); }; }};
}

Generator two_level(const char* name, Plan (*plan)(int, int, const std::vector<int>&, Inside)) {
  return {name, [=](int n, int local) {
            return [=, host_of = equal_hosts(n, local)](int rank) {
              return plan(rank, n, host_of, Inside::kRing);
            };
          }};
}

const std::vector<Generator>& generators() {
  static const std::vector<Generator> all = {
      flat("ring_all_reduce", ring_all_reduce),
      flat("direct_all_reduce", direct_all_reduce),
      flat("one_shot_all_reduce", one_shot_all_reduce),
      flat("barrier", barrier),
      two_level("hierarchical_all_reduce", hierarchical_all_reduce),
      two_level("hierarchical_reduce_scatter", hierarchical_reduce_scatter),
      two_level("hierarchical_all_gather", hierarchical_all_gather),
  };
  return all;
}

}  // namespace

TEST(a_ring_meets_its_closed_form) {
  for (const int n : {1, 2, 4, 16, 64}) {
    const auto plan_of = [=](int rank) { return ring_all_reduce(rank, n); };
    Network network = one_host(n);
    const double nbytes = 0x1p24;
    CHECK_EQ(seconds(n, plan_of, network, nbytes),
             2 * (n - 1) * kLatency + 2.0 * (n - 1) / n * nbytes / kBandwidth);
    network.inside.overhead = kOverhead;
    network.reduce_bandwidth = kReduceBandwidth;
    CHECK_EQ(seconds(n, plan_of, network, nbytes),
             2 * (n - 1) * (kLatency + kOverhead) + 2.0 * (n - 1) / n * nbytes / kBandwidth +
                 1.0 * (n - 1) / n * nbytes / kReduceBandwidth);
  }
}

TEST(direct_plans_have_one_latency_a_step) {
  const int n = 16;
  const double nbytes = 0x1p20;
  CHECK_EQ(seconds(
               n, [](int rank) { return direct_all_reduce(rank, n); }, one_host(n), nbytes),
           2 * kLatency + 2.0 * (n - 1) / n * nbytes / kBandwidth);
  CHECK_EQ(seconds(
               n, [](int rank) { return one_shot_all_reduce(rank, n); }, one_host(n), nbytes),
           kLatency + (n - 1) * nbytes / kBandwidth);
}

TEST(a_chain_is_pipelined_by_slices) {
  const int n = 5, slices = 8;
  const double nbytes = 0x1p23;
  const auto broadcast = [](int rank) { return chain_broadcast(rank, n, 2); };
  const double slice_seconds = nbytes / slices / kBandwidth;
  CHECK_EQ(seconds(n, broadcast, one_host(n), nbytes, nbytes / slices),
           (n - 1) * kLatency + (n - 2 + slices) * slice_seconds);
  CHECK_EQ(seconds(n, broadcast, one_host(n), nbytes), (n - 1) * (kLatency + nbytes / kBandwidth));
}

TEST(slices_overlap_transfer_and_reduction) {
  // Two ranks, the sum of one chunk; the reduction is as fast as the link. Slice k is reduced while
  // slice k+1 arrives.
  const auto plan_of = [](int rank) { return one_shot_all_reduce(rank, 2); };
  Network network = one_host(2);
  network.inside.latency = 0;
  network.reduce_bandwidth = kBandwidth;
  const double nbytes = 0x1p20;
  CHECK_EQ(seconds(2, plan_of, network, nbytes), 2 * nbytes / kBandwidth);
  CHECK_EQ(seconds(2, plan_of, network, nbytes, nbytes / 4), 1.25 * nbytes / kBandwidth);
  // Slices of 3/8, 3/8 and 2/8: the engine is busy from the arrival of the first one on.
  CHECK_EQ(seconds(2, plan_of, network, nbytes, nbytes * 3 / 8),
           (1 + 3.0 / 8) * nbytes / kBandwidth);
}

TEST(a_barrier_costs_latencies) {
  const auto plan_of = [](int rank) { return barrier(rank, 9); };
  CHECK_EQ(seconds(9, plan_of, one_host(9), 0), 4 * kLatency);
}

TEST(a_hierarchy_meets_its_closed_form) {
  const double nbytes = 0x1p26;
  for (const int hosts : {1, 2, 8}) {
    for (const int local : {1, 2, 4}) {
      const int n = hosts * local;
      Network network = hosts_of(local, local);
      network.inside.overhead = network.across.overhead = 0;
      network.reduce_bandwidth = std::numeric_limits<double>::infinity();
      CHECK_EQ(
          seconds(
              n, [=](int rank) { return hierarchical_all_reduce(rank, n, equal_hosts(n, local)); },
              network, nbytes),
          2 * (local - 1) * network.inside.latency + 2 * (hosts - 1) * network.across.latency +
              2.0 * (local - 1) / local * nbytes / network.inside.bandwidth +
              2.0 * (hosts - 1) / hosts * (nbytes / local) / network.across.bandwidth);
    }
  }
}

TEST(ranks_that_share_a_card_share_its_bandwidth) {
  // All-gather across 2 hosts of 4 ranks: each rank sends its chunk to its counterpart, then three
  // steps of two chunks inside the host.
  const double nbytes = 0x1p26;
  const auto plan_of = [](int rank) { return hierarchical_all_gather(rank, 8, equal_hosts(8, 4)); };
  const auto with_nics = [&](int nics) {
    Network network = hosts_of(4, nics);
    network.inside = {};
    network.across.overhead = 0;
    return seconds(8, plan_of, network, nbytes);
  };
  CHECK_EQ(with_nics(4), 16 * kLatency + nbytes / 8 / kBandwidth);
  CHECK_EQ(with_nics(2), 16 * kLatency + 2 * nbytes / 8 / kBandwidth);
  CHECK_EQ(with_nics(1), 16 * kLatency + 4 * nbytes / 8 / kBandwidth);
}

TEST(representatives_take_as_long_as_the_group) {
  for (const Generator& generator : generators()) {
    for (const auto& [hosts, local, nics] :
         {std::tuple(1, 6, 1), {1, 6, 6}, {5, 1, 1}, {2, 3, 3}, {3, 4, 2}, {4, 4, 4}, {3, 2, 1}}) {
      const int n = hosts * local;
      const PlanOf plan_of = generator.plans(n, local);
      const Network network = hosts_of(local, nics);
      const Simulator small = simulator(n, plan_of, network);
      const Simulator full = simulator(n, without_symmetry(n, plan_of), network);
      for (const double slice : {0x1p10, 3000.0, 0x1p30}) {
        const Simulation representatives = small.run(100'003, slice);
        const Simulation group = full.run(100'003, slice);
        CHECK_WITH(representatives.seconds == group.seconds, std::string(generator.name));
        CHECK_EQ(representatives.num_messages, group.num_messages);
        CHECK_EQ(group.ranks_simulated, n);
        CHECK(representatives.ranks_simulated <= local);
      }
    }
  }
}

Network limited(int world_size, double egress, double ingress) {
  Network network = one_host(world_size);
  network.inside = {};
  network.egress = egress;
  network.ingress = ingress;
  return network;
}

// Every rank sends to every other one, beginning with rank 0.
PlanOf in_rank_order(int world_size) {
  return [=](int rank) {
    Plan plan = direct_all_gather(rank, world_size);
    std::ranges::sort(plan.steps[0].sends, {}, &Transfer::peer);
    return plan;
  };
}

TEST(ranks_that_begin_with_the_same_peer_share_its_ingress) {
  for (const int n : {2, 3, 4, 8}) {
    const Network network = limited(n, 1, 1);
    CHECK_EQ(seconds(n, [=](int rank) { return direct_all_gather(rank, n); }, network, n), n - 1);
    CHECK(std::abs(seconds(n, in_rank_order(n), network, n) - n * (n - 1) / 2.0) < 1e-9);
  }
}

TEST(slices_share_what_their_rank_can_send) {
  const auto ring = [](int rank) { return ring_all_gather(rank, 4); };
  Network network = limited(4, 4, 8);
  CHECK_EQ(seconds(4, ring, network, 16, 1), 3);
  network.inside.bandwidth = 0.5;  // of each of four slices
  CHECK_EQ(seconds(4, ring, network, 16, 1), 6);
}

TEST(an_uncontended_message_takes_as_long_with_limits) {
  for (const double slice_nbytes : {0x1p20, 0x1p19}) {
    Network network = one_host(2);
    network.inside.overhead = kOverhead;
    const auto chain = [](int rank) { return chain_broadcast(rank, 2, 0); };
    network.inside.bandwidth = kBandwidth * slice_nbytes / 0x1p20;
    const double alone = kLatency + kOverhead + 0x1p20 / kBandwidth;
    network.ingress = kBandwidth;
    CHECK_EQ(seconds(2, chain, network, 0x1p20, slice_nbytes), alone);
  }
}

TEST(representatives_share_limits_as_their_group_does) {
  Network network = hosts_of(4, 4);
  network.egress = network.ingress = 0x1p31;
  for (const double slice_nbytes : {0x1p20, 0x1p14}) {
    const auto plan_of = [](int rank) {
      return hierarchical_all_reduce(rank, 8, equal_hosts(8, 4), Inside::kDirect);
    };
    const Simulator symmetric = simulator(8, plan_of, network);
    // An empty step takes no time, and as only one rank has it, all ranks are simulated.
    const auto differs = [&](int rank) {
      Plan plan = plan_of(rank);
      if (rank == 0) plan.steps.push_back({});
      return plan;
    };
    const Simulator whole = simulator(8, differs, network);
    const double expected = whole.run(0x1p20, slice_nbytes).seconds;
    const Simulation found = symmetric.run(0x1p20, slice_nbytes);
    CHECK(found.ranks_simulated < 8 && whole.run(1).ranks_simulated == 8);
    CHECK(std::abs(found.seconds - expected) < 1e-9 * expected);
  }
}

TEST(as_few_ranks_are_simulated_as_symmetry_allows) {
  const auto ranks_simulated = [](int n, const PlanOf& plan_of, const Network& network) {
    return simulator(n, plan_of, network).run(1).ranks_simulated;
  };
  const auto ring = [](int rank) { return ring_all_reduce(rank, 12); };
  const auto hierarchy = [](int rank) {
    return hierarchical_all_reduce(rank, 12, equal_hosts(12, 4));
  };
  CHECK_EQ(ranks_simulated(12, ring, one_host(12)), 1);
  CHECK_EQ(ranks_simulated(12, ring, hosts_of(1, 1)), 1);
  CHECK_EQ(ranks_simulated(12, ring, hosts_of(4, 4)), 4);
  CHECK_EQ(ranks_simulated(12, hierarchy, hosts_of(4, 4)), 1);
  CHECK_EQ(ranks_simulated(12, hierarchy, hosts_of(4, 2)), 4);
  CHECK_EQ(ranks_simulated(12, hierarchy, hosts_of(6, 6)), 12);
  CHECK_EQ(
      ranks_simulated(12, [](int rank) { return chain_broadcast(rank, 12, 0); }, one_host(12)), 12);
  // In symmetric plans that receive a step late, a message is not received in step.
  const auto late = [](int rank) {
    const int next = (rank + 1) % 3, prev = (rank + 2) % 3;
    return Plan{1, {{{{next, 0, 1, false}}, {}}, {{}, {{prev, 0, 1, false}}}}};
  };
  CHECK_EQ(ranks_simulated(3, late, one_host(3)), 3);
}

TEST(one_rank_that_differs_is_seen) {
  const int n = 8;
  // Rank 5 alone receives its second chunk before it sends.
  const auto plan_of = [](int rank) {
    Plan plan = ring_all_gather(rank, n);
    if (rank == 5) {
      Step& step = plan.steps[1];
      plan.steps.insert(plan.steps.begin() + 1, Step{{}, step.recvs});
      plan.steps[2].recvs.clear();
    }
    return plan;
  };
  CHECK_EQ(simulator(n, plan_of, one_host(n)).run(1).ranks_simulated, n);
  CHECK(seconds(n, plan_of, one_host(n), 0x1p20) >
        seconds(n, [](int rank) { return ring_all_gather(rank, n); }, one_host(n), 0x1p20));
}

TEST(plans_that_do_not_match_are_refused) {
  const auto error = [](const PlanOf& plan_of) {
    return message_of<PlanError>([&] { seconds(2, plan_of, one_host(2), 1); });
  };
  const auto plan = [](std::vector<Transfer> sends, std::vector<Transfer> recvs) {
    return Plan{1, {{std::move(sends), std::move(recvs)}}};
  };
  CHECK_EQ(error([&](int rank) { return rank == 0 ? plan({{1, 0, 1, false}}, {}) : plan({}, {}); }),
           "rank 0, step 0: rank 1 does not receive what it is sent; verify says more");
  CHECK_EQ(error([&](int rank) { return rank == 0 ? plan({}, {{1, 0, 1, false}}) : plan({}, {}); }),
           "rank 0, step 0: nobody sends what it receives; verify says more");
  CHECK_EQ(error([&](int) { return plan({{2, 0, 1, false}}, {}); }),
           "rank 0, step 0: sends chunk 0 to rank 2, in a group of 2");
  // Each waits for the other's chunk before it sends its own.
  CHECK_EQ(error([&](int rank) {
             return Plan{1, {{{}, {{1 - rank, 0, 1, false}}}, {{{1 - rank, 0, 1, false}}, {}}}};
           }),
           "deadlock: some ranks wait for ever; verify says which");
}

TEST(more_transfers_than_are_simulated_are_refused) {
  const auto plan_of = [](int rank) {
    const std::vector<Transfer> recvs(rank == 0 ? (1 << 22) + 1 : 0, {1, 0, 1, false});
    return Plan{1, {{{}, recvs}}};
  };
  CHECK_EQ(message_of<std::invalid_argument>([&] { seconds(2, plan_of, one_host(2), 1); }),
           "plans of differing ranks are simulated up to 4194304 transfers, and these have more");
}

TEST(wrong_arguments_are_refused) {
  const auto ring = [](int rank) { return ring_all_reduce(rank, 4); };
  const auto error = [&](const Network& network, double nbytes = 1, double slice_nbytes = 1) {
    return message_of<std::invalid_argument>(
        [&] { seconds(4, ring, network, nbytes, slice_nbytes); });
  };
  Network network = one_host(4);
  network.inside.latency = -1;
  CHECK_EQ(error(network), "inside.latency must be finite and at least 0, got -1.000000");
  network = one_host(4);
  network.across.bandwidth = 0;
  CHECK_EQ(error(network), "across.bandwidth must be above 0, got 0.000000");
  network = one_host(4);
  network.reduce_bandwidth = std::numeric_limits<double>::quiet_NaN();
  CHECK(error(network).starts_with("reduce_bandwidth must be above 0, got"));
  network = one_host(4);
  network.egress = 0;
  CHECK_EQ(error(network), "egress must be above 0, got 0.000000");
  CHECK_EQ(error(limited(4, 1, -1)), "ingress must be above 0, got -1.000000");
  CHECK_EQ(error(one_host(3)), "ranks_per_host must divide world_size, which is 4, got 3");
  CHECK_EQ(error(hosts_of(4, 3)), "nics_per_host must divide ranks_per_host, which is 4, got 3");
  CHECK(error(one_host(4), -1).starts_with("nbytes must be a number from 0"));
  CHECK(error(one_host(4), 1, 0).starts_with("slice_nbytes must be above 0"));
  CHECK_EQ(error(one_host(4), 0x1p32, 1),
           "the simulated ranks have 6 steps of 1073741824 slices, at most 67108864 slices can be "
           "simulated; larger slices are fewer");
}
