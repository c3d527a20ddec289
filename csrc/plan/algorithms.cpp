#include "plan/algorithms.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "plan/barrier.h"
#include "plan/bidirectional_ring.h"
#include "plan/bruck.h"
#include "plan/chain.h"
#include "plan/direct.h"
#include "plan/double_tree.h"
#include "plan/halving_doubling.h"
#include "plan/hierarchical.h"
#include "plan/hierarchical_doubling.h"
#include "plan/recursive_doubling.h"
#include "plan/ring.h"

namespace ringcomm {
namespace {

// What a page declares, as what the table holds: of all ranks alike, of a root, of hosts.

template <auto kFunction>
auto alike(int rank, const Setting& setting) {
  check_rank(rank, setting.world_size);
  return kFunction(rank, setting.world_size);
}

template <auto kFunction>
auto rooted(int rank, const Setting& setting) {
  check_rank(rank, setting.world_size);
  check_root(setting.root, setting.world_size);
  return kFunction(rank, setting.world_size, setting.root);
}

template <auto kFunction, auto... kMore>
auto on_hosts(int rank, const Setting& setting) {
  check_rank(rank, setting.world_size);
  return kFunction(rank, setting.world_size, setting.host_of, kMore...);
}

template <auto kPhases>
std::vector<Phase> phases(const Setting& setting) {
  return kPhases(setting.world_size);
}

template <auto kPhases, auto... kMore>
std::vector<Phase> phases_on_hosts(const Setting& setting) {
  return kPhases(setting.world_size, setting.host_of, kMore...);
}

using enum Collective;

constexpr Algorithm kAlgorithms[] = {
    {kAllReduce, "ring", "reduce-scatter, then all-gather around the ring, 2(n-1) steps",
     alike<ring_all_reduce>, phases<ring_all_reduce_phases>},
    {kAllReduce, "direct", "the same two halves as one exchange each, 2 steps",
     alike<direct_all_reduce>, phases<direct_all_reduce_phases>},
    {kAllReduce, "one_shot", "everyone sends the whole buffer to everyone, 1 step",
     alike<one_shot_all_reduce>},
    {kAllReduce, "hierarchical", "rings inside hosts and rings across them, 2(H+L-2) steps",
     on_hosts<hierarchical_all_reduce, Inside::kRing>,
     phases_on_hosts<hierarchical_all_reduce_phases, Inside::kRing>,
     /*two_level=*/true},
    {kAllReduce, "hierarchical_direct",
     "direct exchange inside hosts and rings across them, 2H steps",
     on_hosts<hierarchical_all_reduce, Inside::kDirect>,
     phases_on_hosts<hierarchical_all_reduce_phases, Inside::kDirect>, /*two_level=*/true},
    {kAllReduce, "hierarchical_doubling",
     "direct exchange inside hosts, recursive doubling across them, 2 + log2 H steps",
     on_hosts<hierarchical_doubling_all_reduce>,
     phases_on_hosts<hierarchical_doubling_all_reduce_phases>, /*two_level=*/true},
    {kAllReduce, "bidirectional_ring",
     "a ring each way around, for half of the buffer each, 2(n-1) steps",
     alike<bidirectional_ring_all_reduce>, phases<bidirectional_ring_all_reduce_phases>},
    {kAllReduce, "halving_doubling", "recursive halving, then doubling, 2 log2 n steps",
     alike<halving_doubling_all_reduce>, phases<halving_doubling_all_reduce_phases>},
    {kAllReduce, "recursive_doubling", "the whole buffer in each of log2 n steps",
     alike<recursive_doubling_all_reduce>, phases<recursive_doubling_all_reduce_phases>},
    {kAllReduce, "double_tree",
     "up and down two binary trees, each for half of the buffer, 2 log2 n steps",
     alike<double_tree_all_reduce>, phases<double_tree_all_reduce_phases>},
    {kReduceScatter, "ring", "around the ring, n-1 steps", alike<ring_reduce_scatter>},
    {kReduceScatter, "direct", "one exchange", alike<direct_reduce_scatter>},
    {kReduceScatter, "hierarchical", "rings inside hosts, then rings across them, H+L-2 steps",
     on_hosts<hierarchical_reduce_scatter, Inside::kRing>,
     phases_on_hosts<hierarchical_reduce_scatter_phases, Inside::kRing>,
     /*two_level=*/true},
    {kReduceScatter, "hierarchical_direct",
     "direct exchange inside hosts, then rings across them, H steps",
     on_hosts<hierarchical_reduce_scatter, Inside::kDirect>,
     phases_on_hosts<hierarchical_reduce_scatter_phases, Inside::kDirect>, /*two_level=*/true},
    {kReduceScatter, "bidirectional_ring",
     "a ring each way around, for half of each chunk, n-1 steps",
     alike<bidirectional_ring_reduce_scatter>},
    {kReduceScatter, "halving_doubling", "recursive halving, log2 n steps",
     alike<halving_reduce_scatter>, phases<halving_reduce_scatter_phases>},
    {kAllGather, "ring", "around the ring, n-1 steps", alike<ring_all_gather>},
    {kAllGather, "direct", "one exchange", alike<direct_all_gather>},
    {kAllGather, "hierarchical", "rings across hosts, then rings inside them, H+L-2 steps",
     on_hosts<hierarchical_all_gather, Inside::kRing>,
     phases_on_hosts<hierarchical_all_gather_phases, Inside::kRing>,
     /*two_level=*/true},
    {kAllGather, "hierarchical_direct",
     "rings across hosts, then direct exchange inside them, H steps",
     on_hosts<hierarchical_all_gather, Inside::kDirect>,
     phases_on_hosts<hierarchical_all_gather_phases, Inside::kDirect>, /*two_level=*/true},
    {kAllGather, "bidirectional_ring", "a ring each way around, for half of each chunk, n-1 steps",
     alike<bidirectional_ring_all_gather>},
    {kAllGather, "halving_doubling", "recursive doubling, log2 n steps", alike<doubling_all_gather>,
     phases<doubling_all_gather_phases>},
    {kAllGather, "bruck", "what ranks have doubles with each of log2 n steps, for any n",
     alike<bruck_all_gather>},
    {kBroadcast, "chain", "from rank to next rank, pipelined slice by slice, n-1 steps",
     rooted<chain_broadcast>},
    {kBroadcast, "direct", "the root sends to everyone, 1 step", rooted<direct_broadcast>},
    {kBroadcast, "double_tree", "down two binary trees, each for half of the buffer, log2 n steps",
     rooted<double_tree_broadcast>},
    {kReduce, "chain", "from rank to next rank up to the root, pipelined slice by slice, n-1 steps",
     rooted<chain_reduce>},
    {kReduce, "direct", "a direct reduce-scatter, then a gather, 2 steps", rooted<direct_reduce>,
     phases<direct_reduce_phases>},
    {kReduce, "double_tree", "up two binary trees, each for half of the buffer, log2 n steps",
     rooted<double_tree_reduce>},
    {kGather, "direct", "everyone sends to the root, 1 step", rooted<gather>},
    {kScatter, "direct", "the root sends to everyone, 1 step", rooted<scatter>},
    {kAllToAll, "direct", "one exchange", alike<all_to_all>},
    {kAllToAll, "bruck", "ranks pass chunks on, to one peer in each of log2 n steps",
     alike<bruck_all_to_all>, /*phases=*/nullptr, /*two_level=*/false,
     /*needs_all_counts=*/true},
    {kBarrier, "dissemination", "log2 n steps that carry no data", alike<barrier>},
};

}  // namespace

std::span<const Algorithm> algorithms() { return kAlgorithms; }

AlgorithmId id_of(const Algorithm& algorithm) {
  return static_cast<AlgorithmId>(&algorithm - kAlgorithms);
}

const Algorithm& default_algorithm(Collective collective) {
  return *std::ranges::find(kAlgorithms, collective, &Algorithm::collective);
}

const Algorithm* find_algorithm(Collective collective, std::string_view name) {
  const auto found = std::ranges::find_if(kAlgorithms, [&](const Algorithm& algorithm) {
    return algorithm.collective == collective && algorithm.name == name;
  });
  return found == std::end(kAlgorithms) ? nullptr : &*found;
}

}  // namespace ringcomm
