// Rules of a tuning: which one counts, and that all ranks go by those of the first.
#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/policy.h"
#include "errors.h"
#include "memory_store.h"

namespace {

using namespace ringcomm;
using namespace ranks;
using check::check_error;

AlgorithmId id(Collective collective, const char* name) {
  return id_of(*find_algorithm(collective, name));
}

const AlgorithmId kRing = id(Collective::kAllReduce, "ring");
const AlgorithmId kDirect = id(Collective::kAllReduce, "direct");
const AlgorithmId kTree = id(Collective::kAllReduce, "double_tree");

TEST(the_rule_of_the_fewest_sufficient_bytes_counts) {
  const std::vector<TunedRule> rules = {{4096, 2, Collective::kAllReduce, kRing},
                                        {1024, 2, Collective::kAllReduce, kDirect}};
  const Tuning tuning(rules);
  CHECK_EQ(*tuning.find(Collective::kAllReduce, 0), kDirect);
  CHECK_EQ(*tuning.find(Collective::kAllReduce, 1024), kDirect);
  CHECK_EQ(*tuning.find(Collective::kAllReduce, 1025), kRing);
  CHECK_EQ(*tuning.find(Collective::kAllReduce, 4096), kRing);
  CHECK(tuning.find(Collective::kAllReduce, 4097) == nullptr);
  CHECK(tuning.find(Collective::kBroadcast, 1) == nullptr);
}

TEST(rules_that_name_no_algorithm_of_their_collective_are_left_out) {
  const std::vector<TunedRule> rules = {{4096, 2, Collective::kBroadcast, kRing},
                                        {4096, 2, Collective::kAllReduce, 254}};
  const Tuning tuning(rules);
  CHECK(tuning.find(Collective::kBroadcast, 1) == nullptr);
  CHECK(tuning.find(Collective::kAllReduce, 1) == nullptr);
}

TEST(a_group_has_rules_of_its_own_size_and_not_too_many) {
  std::vector<TunedRule> rules = {{1, 2, Collective::kAllReduce, kRing},
                                  {1, 3, Collective::kAllReduce, kRing}};
  CHECK_EQ(tuned_for(3, rules).size(), 1u);
  CHECK_EQ(tuned_for(4, rules).size(), 0u);
  rules.assign(kMostTuned + 1, {1, 2, Collective::kAllReduce, kRing});
  check_error(ErrorKind::kInvalidArgument, {"65 rules for groups of 2 ranks"},
              [&] { tuned_for(2, rules); });
}

// All-reduces numbers whose sums depend on the order in which they are added.
std::vector<float> sums_of(Communicator& c) {
  std::mt19937 random(static_cast<unsigned>(c.rank()));
  std::vector<float> data(100'000);
  for (float& number : data) number = std::normal_distribution<float>()(random);
  c.all_reduce(data.data(), data.data(), data.size(), {DType::kFloat32, ReduceOp::kSum}, kPatience);
  return data;
}

std::vector<float> sums_by(const std::string& algorithm) {
  std::vector<float> sums;
  with_group(3, algorithm, [&](Communicator& c) {
    const std::vector<float> found = sums_of(c);
    if (c.rank() == 0) sums = found;
  });
  return sums;
}

TEST(all_ranks_go_by_what_the_first_has_read) {
  const std::vector<float> by_ring = sums_by("ring");
  CHECK(by_ring != sums_by("auto"));
  MemoryStore store;
  on_threads(3, [&](int r) {
    Selection selection;
    if (r != 1) selection.tuned = {{1 << 20, 3, Collective::kAllReduce, r == 0 ? kRing : kTree}};
    Communicator communicator(store, group_config(r, Placement::one_host(3)), selection);
    CHECK(sums_of(communicator) == by_ring);
  });
}

// The algorithm of a group's first call, whose announcement is in the second place.
std::string chosen(Communicator& c) {
  return std::string(
      algorithms()[c.group().segment().announcement(c.rank(), 1).call.algorithm].name);
}

TEST(what_was_not_measured_goes_by_what_is_fast_on_most_machines) {
  const auto all_reduce = [](int n, std::size_t nbytes, DType dtype, const char* expected) {
    with_group(n, "auto", [&](Communicator& c) {
      std::vector<std::byte> data(nbytes);
      c.all_reduce(data.data(), data.data(), nbytes / element_size(dtype), {dtype, ReduceOp::kSum},
                   kPatience);
      CHECK_EQ(chosen(c), expected);
    });
  };
  const auto reduce = [](int n, DType dtype, const char* expected) {
    with_group(n, "auto", [&](Communicator& c) {
      std::vector<std::byte> data(400'000);
      c.reduce(data.data(), data.data(), data.size() / element_size(dtype), {dtype, ReduceOp::kSum},
               0, kPatience);
      CHECK_EQ(chosen(c), expected);
    });
  };
  all_reduce(2, 512 << 10, DType::kFloat32, "one_shot");
  all_reduce(2, 1 << 20, DType::kFloat32, "direct");
  all_reduce(3, 1 << 20, DType::kFloat32, "direct");
  all_reduce(17, 1 << 20, DType::kFloat32, "ring");
  all_reduce(17, 1 << 20, DType::kBFloat16, "direct");
  reduce(2, DType::kFloat32, "chain");
  reduce(3, DType::kFloat32, "double_tree");
  reduce(3, DType::kBFloat16, "direct");
}

TEST(what_is_selected_counts_more_than_what_was_measured) {
  const std::vector<float> by_direct = sums_by("direct");
  MemoryStore store;
  on_threads(3, [&](int r) {
    Selection selection = Selection::named("direct");
    selection.tuned = {{1 << 20, 3, Collective::kAllReduce, kRing}};
    Communicator communicator(store, group_config(r, Placement::one_host(3)), selection);
    CHECK(sums_of(communicator) == by_direct);
  });
}

// A ring would round at every rank.
TEST(sums_of_few_bits_are_rounded_once_whatever_was_measured) {
  MemoryStore store;
  on_threads(3, [&](int r) {
    Selection selection;
    selection.tuned = {{1 << 20, 3, Collective::kAllReduce, kRing}};
    Communicator communicator(store, group_config(r, Placement::one_host(3)), selection);
    // 256 + 1 + 1: 258 at once, and 256 if it is rounded in between.
    std::vector<std::uint16_t> data(100'000, r == 0 ? 0x4380 : 0x3f80);
    communicator.all_reduce(data.data(), data.data(), data.size(),
                            {DType::kBFloat16, ReduceOp::kSum}, kPatience);
    CHECK(std::ranges::count(data, 0x4381) == std::ssize(data));
  });
}

}  // namespace
