// How calls go, as a table: at each limit of the policy, the last call on one side of it and the
// first one on the other.
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "core/policy.h"
#include "errors.h"
#include "plan/bitwise.h"
#include "plans.h"

namespace {

using namespace ringcomm;
using enum Collective;
using enum DType;

constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr auto kShm = ExecutorKind::kShm;
constexpr auto kMessages = ExecutorKind::kMessages;
constexpr auto kFused = ExecutorKind::kFused;
const Link kEthernet{.latency = 50e-6, .bandwidth = 1.25e9};

Call call_of(Collective collective, DType dtype, std::size_t nbytes, ReduceOp op = ReduceOp::kSum) {
  Call call;
  call.collective = collective;
  call.dtype = dtype;
  call.count = nbytes / element_size(dtype);
  call.reduces = is_reduction(collective);
  call.op = op;
  return call;
}

GroupFacts one_host(int world_size) {
  return {.world_size = world_size, .with_call_nbytes = with_call_nbytes(world_size)};
}

GroupFacts on_hosts(std::vector<int> host_of) {
  const int world_size = static_cast<int>(host_of.size());
  const std::size_t with_call = with_call_nbytes(host_of, kEthernet, "ucx");
  return {.world_size = world_size,
          .host_of = std::move(host_of),
          .link = kEthernet,
          .with_call_nbytes = with_call};
}

// "with call", "with call, zero copy", "ring" or "ring, zero copy"
std::string said(const Policy& policy, ExecutorKind executor, const Call& call,
                 std::size_t payload_nbytes) {
  const Decision chosen = policy.choose(call, executor, payload_nbytes);
  const std::string algorithm = name_of(policy.choices(), call.collective, chosen.algorithm);
  return (chosen.path == Path::kWithCall ? "with call" : algorithm) +
         (chosen.zero_copy ? ", zero copy" : "");
}

struct Line {
  Collective collective;
  DType dtype;
  std::size_t nbytes;
  std::string expected;
};

void check_lines(const GroupFacts& facts, ExecutorKind executor, const std::vector<Line>& lines) {
  const Policy policy(facts);
  for (const Line& line : lines) {
    Call call = call_of(line.collective, line.dtype, line.nbytes);
    const bool is_parts = line.collective == kAllGather;
    const std::size_t payload = is_parts ? line.nbytes / facts.world_size : line.nbytes;
    const std::string found = said(policy, executor, call, payload);
    CHECK_WITH(found == line.expected, std::string(to_string(line.collective)) + " of " +
                                           std::to_string(line.nbytes) + " bytes among " +
                                           std::to_string(facts.world_size) + ": " + found +
                                           ", not " + line.expected);
  }
}

}  // namespace

TEST(one_host_by_shared_memory) {
  check_lines(one_host(1), kShm,
              {{kAllReduce, kFloat32, 64 * kKiB, "with call"},
               {kAllReduce, kFloat32, 64 * kKiB + 4, "direct"}});
  check_lines(one_host(2), kShm,
              {{kAllReduce, kFloat32, 16 * kKiB - 4, "with call"},
               {kAllReduce, kFloat32, 16 * kKiB, "with call, zero copy"},
               {kAllReduce, kFloat32, 64 * kKiB, "with call, zero copy"},
               {kAllReduce, kFloat32, 64 * kKiB + 4, "one_shot, zero copy"},
               {kAllReduce, kFloat32, 512 * kKiB, "one_shot, zero copy"},
               {kAllReduce, kFloat32, 512 * kKiB + 4, "direct, zero copy"},
               {kAllReduce, kBFloat16, 512 * kKiB, "one_shot, zero copy"},
               {kAllGather, kFloat32, 128 * kKiB, "with call, zero copy"},
               {kAllGather, kFloat32, 128 * kKiB + 8, "direct, zero copy"},
               {kReduce, kFloat32, 1 * kMiB, "chain, zero copy"},
               {kReduce, kBFloat16, 1 * kMiB, "direct, zero copy"}});
  check_lines(one_host(4), kShm,
              {{kAllReduce, kFloat32, 32 * kKiB - 4, "with call"},
               {kAllReduce, kFloat32, 32 * kKiB, "with call, zero copy"},
               {kAllReduce, kFloat32, 32 * kKiB + 4, "direct, zero copy"},
               {kReduceScatter, kFloat32, 1 * kMiB, "direct, zero copy"},
               {kBroadcast, kFloat32, 1 * kMiB, "direct, zero copy"},
               {kReduce, kFloat32, 1 * kMiB, "double_tree, zero copy"}});
  check_lines(one_host(16), kShm, {{kAllReduce, kFloat32, 1 * kMiB, "direct, zero copy"}});
  check_lines(one_host(17), kShm,
              {{kAllReduce, kFloat32, 16 * kKiB, "with call"},
               {kAllReduce, kFloat32, 16 * kKiB + 4, "ring, zero copy"},
               {kAllReduce, kBFloat16, 1 * kMiB, "direct, zero copy"},
               {kBroadcast, kFloat32, 1 * kMiB, "chain, zero copy"}});
}

TEST(several_hosts_by_shared_memory_and_links) {
  // The network's two crossings take as long as 62.5 kB of each of two ranks.
  check_lines(on_hosts({0, 0, 1, 1}), kShm,
              {{kAllReduce, kFloat32, 62'500, "with call"},
               {kAllReduce, kFloat32, 62'504, "hierarchical_doubling"},
               {kAllReduce, kFloat32, 1024 * kMiB, "hierarchical_doubling"},
               {kReduceScatter, kFloat32, 1 * kMiB, "hierarchical"},
               {kReduceScatter, kBFloat16, 1 * kMiB, "hierarchical_direct"},
               {kBroadcast, kFloat32, 1 * kMiB, "chain"},
               {kReduce, kFloat32, 1 * kMiB, "chain"}});
  check_lines(on_hosts({0, 1, 2, 3}), kShm,
              {{kAllReduce, kFloat32, 256 * kKiB, "hierarchical_doubling"},
               {kAllReduce, kFloat32, 256 * kKiB + 4, "hierarchical"}});
  // Direct exchange among more than 16 ranks of each of two hosts would make small slices.
  for (const int ranks : {17, 18}) {
    std::vector<int> host_of(ranks, 0);
    host_of.resize(2 * ranks, 1);
    check_lines(on_hosts(host_of), kShm,
                {{kReduceScatter, kBFloat16, 1 * kMiB,
                  ranks == 17 ? "hierarchical_direct" : "hierarchical"}});
  }
}

TEST(devices) {
  check_lines({.world_size = 4}, kMessages,
              {{kAllReduce, kFloat32, 20'000'000 - 4, "direct"},
               {kAllReduce, kFloat32, 20'000'000, "ring"},
               {kAllReduce, kBFloat16, 1024 * kMiB, "direct"},
               {kBroadcast, kFloat32, 10'000'000 - 4, "direct"},
               {kBroadcast, kFloat32, 10'000'000, "chain"}});
  check_lines({.world_size = 4, .with_call_nbytes = 300 * kKiB}, kFused,
              {{kAllReduce, kFloat32, 300 * kKiB, "with call"},
               {kAllReduce, kFloat32, 300 * kKiB + 4, "one_shot"},
               {kAllReduce, kFloat32, 1 * kMiB + 4, "recursive_doubling"},
               {kAllReduce, kFloat32, 8 * kMiB + 4, "ring"},
               {kBroadcast, kFloat32, 4, "direct"},
               {kReduce, kFloat32, 4, "chain"}});
  CHECK_EQ(why_no_kernels(16, false, 16), "");
  CHECK_EQ(why_no_kernels(1, false, 16), "there is but one rank");
  CHECK_EQ(why_no_kernels(17, false, 16), "there are more than 16 ranks");
  CHECK_EQ(why_no_kernels(16, true, 16), "the ranks are on several hosts");
}

TEST(what_a_user_has_selected_comes_first_and_then_what_was_measured) {
  const auto ring = id_of(*find_algorithm(kAllReduce, "ring"));
  GroupFacts facts = one_host(4);
  facts.tuned = {{1 * kMiB, 4, kAllReduce, ring}};
  check_lines(facts, kShm,
              {{kAllReduce, kFloat32, 1 * kMiB, "ring, zero copy"},
               {kAllReduce, kFloat32, 1 * kMiB + 4, "direct, zero copy"},
               {kAllReduce, kBFloat16, 1 * kMiB, "direct, zero copy"}});
  facts.choices[kAllReduce] = {"double_tree"};
  check_lines(facts, kShm,
              {{kAllReduce, kFloat32, 4, "with call"},
               {kAllReduce, kFloat32, 1 * kMiB, "double_tree"},
               {kBroadcast, kFloat32, 1 * kMiB, "direct, zero copy"}});
  facts.choices[kAllReduce] = {"mine", [](int, int) { return std::vector<Plan>(); }};
  check_lines(facts, kShm, {{kAllReduce, kFloat32, 4, "mine"}});
  facts.choices[kAllReduce] = {"chain"};
  CHECK_EQ(check::error_of(ErrorKind::kInvalidArgument, [&] { const Policy refused(facts); }),
           "all_reduce has no algorithm \"chain\"");
}

TEST(reproducible_sums_are_added_at_once) {
  GroupFacts facts = one_host(17);
  facts.reproducible = true;
  facts.tuned = {{1 * kMiB, 17, kAllReduce, id_of(*find_algorithm(kAllReduce, "ring"))}};
  check_lines(facts, kShm,
              {{kAllReduce, kFloat32, 16 * kKiB, "with call"},
               {kAllReduce, kFloat32, 1 * kMiB, "direct, zero copy"},
               {kAllReduce, DType::kInt32, 1 * kMiB, "ring, zero copy"},
               {kReduceScatter, kFloat32, 1 * kMiB, "direct, zero copy"},
               {kReduce, kFloat32, 1 * kMiB, "direct, zero copy"},
               {kBroadcast, kFloat32, 1 * kMiB, "chain, zero copy"}});
  for (const ExecutorKind executor : {kMessages, kFused}) {
    check_lines(facts, executor, {{kAllReduce, kFloat32, 64 * kMiB, "direct"}});
  }
  const auto across = [](std::vector<int> host_of) {
    GroupFacts hosts = on_hosts(std::move(host_of));
    hosts.reproducible = true;
    return hosts;
  };
  check_lines(across({0, 0, 1, 1}), kShm,
              {{kAllReduce, kFloat32, 16, "with call"},
               {kAllReduce, kFloat32, 1 * kMiB, "hierarchical_doubling"},
               {kReduceScatter, kFloat32, 1 * kMiB, "hierarchical_direct"},
               {kReduce, kFloat32, 1 * kMiB, "direct"},
               {kAllReduce, kBFloat16, 1 * kMiB, "direct"}});
  check_lines(across({0, 0, 1, 1, 2, 2, 3, 3}), kShm,
              {{kAllReduce, kFloat32, 1 * kMiB, "hierarchical_doubling"},
               {kReduceScatter, kFloat32, 1 * kMiB, "direct"}});
  check_lines(across({0, 0, 0, 1}), kShm, {{kAllReduce, kFloat32, 1 * kMiB, "direct"}});
  GroupFacts others = across({0, 0, 1, 1});  // than where the ranks are
  others.host_of_plans = {0, 0, 0, 1};
  check_lines(others, kShm, {{kAllReduce, kFloat32, 1 * kMiB, "direct"}});
  GroupFacts two = one_host(2);
  two.reproducible = true;
  check_lines(two, kShm, {{kAllReduce, kFloat32, 512 * kKiB, "one_shot, zero copy"}});
}

// On one host, what is chosen without being asked for is reproducible, too.
TEST(sums_of_up_to_16_ranks_of_a_host_are_in_pairs) {
  for (const int world_size : {2, 3, 4, 5, 7, 8, 11, 16}) {
    const Policy policy(one_host(world_size));
    for (const Collective collective : {kAllReduce, kReduceScatter}) {
      for (const DType dtype : {kFloat32, kBFloat16}) {
        const Rounding rounding =
            dtype == kBFloat16 ? Rounding::kEveryStep : Rounding::kEveryAddition;
        for (std::size_t nbytes = 4 * world_size; nbytes <= 1024 * kMiB; nbytes *= 4) {
          const Call call = call_of(collective, dtype, nbytes);
          const Algorithm& chosen = algorithms()[policy.algorithm(call, kShm)];
          const std::string difference = association_difference(
              collective, plans_of(chosen, {.world_size = world_size}), rounding);
          CHECK_WITH(difference.empty(), std::string(to_string(collective)) + " of " +
                                             std::to_string(nbytes) + " bytes by " +
                                             std::string(chosen.name));
        }
      }
    }
  }
}

TEST(the_operation_counts) {
  GroupFacts facts = one_host(17);
  facts.choices[kAllReduce] = {"ring"};
  const auto goes = [&](const Policy& policy, DType dtype, ReduceOp op) {
    return said(policy, kShm, call_of(kAllReduce, dtype, kMiB, op), kMiB);
  };
  CHECK_EQ(goes(Policy(facts), kInt32, ReduceOp::kAvg), "direct");
  CHECK_EQ(goes(Policy(facts), kFloat32, ReduceOp::kAvg), "ring");
  CHECK_EQ(goes(Policy(one_host(3)), kFloat32, ReduceOp::kPremulSum), "direct");
  CHECK_EQ(goes(Policy(one_host(3)), kFloat32, ReduceOp::kAvg), "direct, zero copy");
}

TEST(an_all_to_all_is_not_zero_copy_if_it_goes_with_the_call) {
  const Policy policy(one_host(2));
  CHECK_EQ(said(policy, kShm, call_of(kAllToAll, kUInt8, 64 * kKiB), 64 * kKiB), "with call");
  CHECK_EQ(said(policy, kShm, call_of(kAllToAll, kUInt8, 65 * kKiB), 65 * kKiB),
           "direct, zero copy");
}

TEST(what_is_sent_with_the_call) {
  const std::vector<std::pair<int, std::size_t>> by_ranks = {
      {1, 64}, {2, 64}, {3, 32}, {8, 32}, {9, 16}, {32, 16}, {33, 8}, {512, 8}, {513, 12}};
  for (const auto& [ranks, kib] : by_ranks) CHECK_EQ(with_call_nbytes(ranks), kib * kKiB);
  const auto between = [](std::vector<int> host_of, const Link& link, const char* engine) {
    return with_call_nbytes(host_of, link, engine);
  };
  const Link slow{.latency = 1e-6, .bandwidth = 1e6}, fast{.latency = 1e-3, .bandwidth = 1e10};
  CHECK_EQ(between({0, 0}, kEthernet, "ucx"), 64 * kKiB);
  CHECK_EQ(between({0, 1}, Link{}, "ucx"), 64 * kKiB);
  CHECK_EQ(between({0, 1}, kEthernet, "ucx"), std::size_t{125'000});
  CHECK_EQ(between({0, 1}, slow, "ucx"), std::size_t{256});
  CHECK_EQ(between({0, 1}, slow, "gloo"), std::size_t{1024});
  CHECK_EQ(between({0, 1}, fast, "ucx"), kMostBetweenHosts);
  CHECK_EQ(between({0, 0, 0, 1}, fast, "ucx"), 84 * kKiB);
  CHECK(!goes_in_rotation(2 * kKiB - 1, false) && goes_in_rotation(2 * kKiB, false));
  CHECK(!goes_in_rotation(8 * kKiB - 1, true) && goes_in_rotation(8 * kKiB, true));
}

TEST(slices) {
  CHECK_EQ(slice_nbytes(kAllReduce, 256 * kKiB, 64 * kKiB, 0), 256 * kKiB);
  CHECK_EQ(slice_nbytes(kBroadcast, 256 * kKiB, 40 * kKiB, 0), 32 * kKiB);
  CHECK_EQ(slice_nbytes(kBroadcast, 256 * kKiB, 200 * kKiB, 0), 100 * kKiB);
  CHECK_EQ(slice_nbytes(kReduce, 256 * kKiB, 2 * kMiB, 0), 256 * kKiB);
  CHECK_EQ(slice_nbytes(kBroadcast, 512 * kKiB, 64 * kKiB, 256 * kKiB), 512 * kKiB);
  CHECK_EQ(slice_nbytes(kAllReduce, 512 * kKiB, 64 * kKiB, 256 * kKiB), 256 * kKiB);

  CHECK_EQ(kernel_slice_nbytes(256 * kKiB - 16, 64 * kKiB, 64, 16), 8 * kKiB);
  CHECK_EQ(kernel_slice_nbytes(256 * kKiB - 16, 64 * kMiB, 64, 16), std::size_t{209'728});
  CHECK_EQ(kernel_slice_nbytes(4 * kKiB, 64 * kKiB, 64, 16), 4 * kKiB);
  CHECK(!looks_ahead(64 * kKiB - 16) && looks_ahead(64 * kKiB));
}

TEST(parts_out_of_other_processes) {
  CHECK(!is_worth_taking(3 * 512 * kKiB - 1, 3) && is_worth_taking(3 * 512 * kKiB, 3));
  CHECK(!is_worth_reading(3 * 128 * kKiB - 1, 3) && is_worth_reading(3 * 128 * kKiB, 3));
}

// On both sides of each of its limits a class says what is chosen there.
TEST(size_classes_are_the_choices) {
  for (const auto& facts : {one_host(2), one_host(4), one_host(17), on_hosts({0, 0, 1, 1})}) {
    const Policy policy(facts);
    for (const Collective collective :
         {kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce}) {
      const std::size_t step = facts.world_size * 4;
      const bool is_parts = collective == kAllGather;
      const auto goes = [&](std::size_t nbytes) {
        const std::size_t payload = is_parts ? nbytes / facts.world_size : nbytes;
        return policy.choose(call_of(collective, kFloat32, nbytes), kShm, payload);
      };
      const auto classes = size_classes(policy, kShm, collective, kFloat32);
      for (std::size_t i = 0; i < classes.size(); ++i) {
        const SizeClass& one = classes[i];
        const bool is_last = one.most_nbytes == SizeClass::kNoLimit;
        CHECK_EQ(is_last, i + 1 == classes.size());
        const std::size_t nbytes = (is_last ? kMiB << 10 : one.most_nbytes) / step * step;
        CHECK(goes(nbytes).path == one.path);
        if (!is_last) {
          const Decision next = goes(nbytes + step);
          CHECK(next.path == classes[i + 1].path);
          CHECK(next.path != one.path ||
                name_of({}, collective, next.algorithm) == classes[i + 1].algorithm.str());
        }
        if (one.zero_copy_from == SizeClass::kNoLimit) {
          CHECK(!goes(nbytes).zero_copy);
        } else {
          CHECK(goes(one.zero_copy_from).zero_copy);
          CHECK(!goes(one.zero_copy_from - step).zero_copy);
        }
      }
    }
  }
}
