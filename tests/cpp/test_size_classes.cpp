// What a group says of how its calls go is how they go, at every limit that it names.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "check.h"
#include "core/policy.h"
#include "errors.h"
#include "memory_store.h"
#include "shm/view.h"

namespace {

using namespace ringcomm;
using namespace ranks;

constexpr std::uint64_t kMostCalled = 4 << 20;  // bytes

void call(Communicator& c, Collective collective, DType dtype, std::size_t count) {
  const Reduce sum{dtype, ReduceOp::kSum};
  const std::size_t n = c.world_size(), each = count / n;
  std::vector<std::byte> in(count * element_size(dtype)), out(in);
  std::vector<Input> inputs(n, {in.data(), each});
  std::vector<Output> outputs;
  for (std::size_t r = 0; r < n; ++r) {
    outputs.push_back({out.data() + r * each * element_size(dtype), each});
  }
  switch (collective) {
    case Collective::kAllReduce:
      return c.all_reduce(in.data(), out.data(), count, sum, kPatience);
    case Collective::kReduceScatter:
      return c.reduce_scatter(inputs, out.data(), sum, kPatience);
    case Collective::kAllGather:
      return c.all_gather(in.data(), outputs, {dtype}, kPatience);
    case Collective::kBroadcast:
      return c.broadcast(in.data(), count, {dtype}, 0, kPatience);
    case Collective::kReduce:
      return c.reduce(in.data(), out.data(), count, sum, 0, kPatience);
    default:
      CHECK(false);
  }
}

// The algorithm of the last call; empty if the data came with it. Rank 0, which is the root, has
// data in every collective.
std::string seen_of_last(Communicator& c) {
  const std::uint64_t sequence = c.sequence();
  shm::Announcement& last = c.group().segment().announcement(0, sequence);
  CHECK_EQ(last.sequence.load(), sequence);
  if (last.payload_nbytes > 0) return "";
  return std::string(algorithms()[last.call.algorithm].name);
}

void check_classes(Communicator& c) {
  const std::vector<SizeClass> classes = c.size_classes();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const SizeClass& one = classes[i];
    const std::string expected = one.algorithm.str();
    CHECK_EQ(expected.empty(), one.path == Path::kWithCall);
    const bool is_last = one.most_nbytes == SizeClass::kNoLimit;
    const bool goes_on = i + 1 < classes.size() && classes[i + 1].collective == one.collective &&
                         classes[i + 1].dtype == one.dtype;
    CHECK_EQ(is_last, !goes_on);
    if (!is_last && one.most_nbytes > kMostCalled) continue;
    const std::uint64_t nbytes = is_last ? kMostCalled : one.most_nbytes;
    const std::size_t count = nbytes / element_size(one.dtype) / c.world_size() * c.world_size();
    call(c, one.collective, one.dtype, count);
    CHECK_EQ(seen_of_last(c), expected);
    c.barrier(kPatience);
    if (is_last) continue;
    call(c, one.collective, one.dtype, count + c.world_size());
    CHECK_EQ(seen_of_last(c), classes[i + 1].algorithm.str());
    c.barrier(kPatience);
  }
}

void check_group(int n, const Selection& selection) {
  MemoryStore store;
  on_threads(n, [&](int r) {
    Communicator communicator(store, group_config(r, Placement::one_host(n)), selection);
    check_classes(communicator);
  });
}

TEST(calls_go_as_the_group_says) {
  for (const int n : {1, 2, 3, 4}) check_group(n, {});
  check_group(3, Selection::named("ring"));
  check_group(17, {});
}

TEST(calls_go_as_the_group_says_where_it_is_tuned) {
  const auto id = [](const char* name) {
    return id_of(*find_algorithm(Collective::kAllReduce, name));
  };
  Selection selection;
  selection.tuned = {{100'000, 2, Collective::kAllReduce, id("ring")},
                     {300'000, 2, Collective::kAllReduce, id("direct")},
                     {900'000, 2, Collective::kAllReduce, id("ring")}};
  check_group(2, selection);
}

SizeClass first_of(const std::vector<SizeClass>& classes, Collective collective) {
  return *std::ranges::find(classes, collective, &SizeClass::collective);
}

TEST(the_limits_of_two_ranks) {
  with_group(2, "auto", [](Communicator& c) {
    const std::vector<SizeClass> classes = c.size_classes();
    const SizeClass& first = classes[0];
    CHECK_EQ(first.most_nbytes, c.group().geometry().small_nbytes);
    CHECK_EQ(first.zero_copy_from, std::uint64_t{16 << 10});
    CHECK_EQ(first_of(classes, Collective::kAllGather).most_nbytes,
             2 * c.group().geometry().small_nbytes);
  });
  with_group(2, "direct", [](Communicator& c) {
    CHECK_EQ(c.size_classes()[0].zero_copy_from, SizeClass::kNoLimit);
  });
}

TEST(others_see_what_the_first_rank_of_the_host_has_chosen) {
  with_group(2, "ring", [](Communicator& c) {
    c.barrier(kPatience);
    const shm::GroupView seen = shm::view(c.group().segment().descriptor());
    const std::vector<SizeClass> own = c.size_classes();
    CHECK_EQ(seen.size_classes.size(), own.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      CHECK_EQ(seen.size_classes[i].algorithm.str(), own[i].algorithm.str());
      CHECK_EQ(seen.size_classes[i].most_nbytes, own[i].most_nbytes);
    }
    CHECK(seen.tuned_by.empty());
    CHECK_EQ(seen.host_of, std::vector<int>(2, 0));
    c.barrier(kPatience);
  });
}

TEST(the_file_of_a_tuning_is_named_if_its_rules_count) {
  for (const int of_size : {2, 3}) {
    MemoryStore store;
    on_threads(2, [&](int r) {
      Selection selection;
      selection.tuned = {{1 << 20, of_size, Collective::kBroadcast,
                          id_of(*find_algorithm(Collective::kBroadcast, "direct"))}};
      selection.tuned_by = "/home/somebody/tuning.json";
      Communicator c(store, group_config(r, Placement::one_host(2)), selection);
      c.barrier(kPatience);
      const shm::GroupView seen = shm::view(c.group().segment().descriptor());
      CHECK_EQ(seen.tuned_by, of_size == 2 ? selection.tuned_by : "");
      c.barrier(kPatience);
    });
  }
}

// In damaged memory there may be more than there is room for, and no such collectives.
TEST(damaged_size_classes_are_left_out) {
  with_group(2, "auto", [](Communicator& c) {
    c.barrier(kPatience);
    if (c.rank() == 0) {
      shm::GroupHeader& header = c.group().segment().header();
      header.num_size_classes.store(~std::uint32_t{0});
      header.size_classes[0].collective = static_cast<Collective>(99);
      header.size_classes[1].dtype = static_cast<DType>(99);
      header.size_classes[2].path = static_cast<Path>(99);
      const shm::GroupView seen = shm::view(c.group().segment().descriptor());
      CHECK_EQ(seen.size_classes.size(), std::size_t{kMostSizeClasses - 3});
    }
    c.barrier(kPatience);
  });
}

}  // namespace
