// Collectives on tensors that peers can reach: every one against results computed from all inputs,
// and which way they went.
#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "core/spans.h"
#include "memory_store.h"
#include "one_mapping.h"

namespace {

using namespace ringcomm;
using cases::Case;
using ranks::kPatience;
using ranks::with_group;

constexpr std::uint64_t kAll = ~std::uint64_t{0};

// Counts the calls that went without a copy, of all ranks.
class Counter final : public SpanSink {
 public:
  void begin(const std::string& name) override { count_ += name == "zero copy"; }
  void end() override {}
  int take() { return count_.exchange(0); }

 private:
  std::atomic<int> count_{0};
};

Counter counter;

struct Counting {
  Counting() {
    counter.take();
    span_source = []() -> SpanSink* { return &counter; };
  }
  ~Counting() { span_source = nullptr; }
};

// Twice, as ranks learn in the first where the others' memory is.
void perform_twice(const std::vector<Case>& all, Communicator& communicator) {
  for (const Case& c : all) {
    cases::perform(c, communicator, kPatience);
    cases::perform(c, communicator, kPatience);
  }
}

TEST(every_collective_every_size) {
  std::mt19937_64 random(1);
  for (int n = 2; n <= 6; ++n) {
    const std::size_t eager = shm::Geometry(n).eager_nbytes;
    std::vector<Case> all;
    for (const Collective collective : cases::kCollectives) {
      for (const std::size_t nbytes :
           {std::size_t{0}, std::size_t{8}, eager / 2, eager, eager + 8, std::size_t{300'011}}) {
        for (int again = 0; again < 3; ++again) {
          all.push_back(cases::random_case(collective, n, nbytes, random));
          all.back().in_arena = kAll;
        }
      }
    }
    with_group(n, "auto", [&](Communicator& comm) { perform_twice(all, comm); });
  }
}

TEST(every_dtype_and_op) {
  std::mt19937_64 random(2);
  constexpr int n = 3;
  std::vector<Case> all;
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
        Case c;
        c.collective = collective;
        c.dtype = static_cast<DType>(d);
        c.op = static_cast<ReduceOp>(o);
        c.in_arena = kAll;
        if (collective == Collective::kReduce) c.root = 1;
        c.counts.assign(collective == Collective::kReduceScatter ? n : 1, 40'001);
        if (!supports(c.dtype, c.op)) continue;
        cases::make_data(c, n, random);
        all.push_back(c);
      }
    }
  }
  with_group(n, "auto", [&](Communicator& comm) { perform_twice(all, comm); });
}

// Each has another part of its tensors there in every call, from none to all.
TEST(only_some_ranks_can_be_reached) {
  std::mt19937_64 random(3);
  for (const int n : {2, 4}) {
    std::vector<Case> all;
    for (int i = 0; i < 200; ++i) {
      const Collective collective = cases::kCollectives[random() % cases::kCollectives.size()];
      const std::size_t most = i % 2 == 0 ? shm::Geometry(n).eager_nbytes : 200'000;
      all.push_back(cases::random_case(collective, n, most - random() % (most / 2), random));
      all.back().in_arena = random() % 2 == 0 ? kAll : random();
    }
    with_group(n, "auto", [&](Communicator& comm) {
      for (const Case& c : all) cases::perform(c, comm, kPatience);
    });
  }
}

// How many of the ranks' calls of a case, the second time, went without a copy.
int gone_without_copy(Case c, int n, const std::string& algorithm = "auto") {
  const Counting counting;
  with_group(n, algorithm, [&](Communicator& comm) {
    cases::perform(c, comm, kPatience);
    comm.barrier(kPatience);
    if (comm.rank() == 0) counter.take();
    comm.barrier(kPatience);
    cases::perform(c, comm, kPatience);
  });
  return counter.take();
}

TEST(which_calls_go_without_a_copy) {
  constexpr int n = 3;
  std::mt19937_64 random(4);
  for (const Collective collective : cases::kCollectives) {
    if (collective == Collective::kBarrier) continue;
    Case c;
    do {
      c = cases::random_case(collective, n, 400'000, random);
    } while (c.op == ReduceOp::kPremulSum || c.counts[0] == 0 || c.counts.back() == 0);
    c.counts.assign(c.counts.size(), 50'000);
    for (const bool in_place : {false, collective != Collective::kAllToAll}) {
      c.in_place = in_place;
      c.in_arena = kAll;
      CHECK_EQ(gone_without_copy(c, n), n);
      // Of a root's data nobody else needs to be reached.
      const bool from_root =
          collective == Collective::kBroadcast || collective == Collective::kScatter;
      c.in_arena = from_root ? std::uint64_t{1} << c.root : 5;
      CHECK_EQ(gone_without_copy(c, n), from_root ? n : 0);
      c.in_arena = 0;
      CHECK_EQ(gone_without_copy(c, n), 0);
      c.in_arena = kAll;
      CHECK_EQ(gone_without_copy(c, n, "direct"), 0);  // what the user has chosen is carried out
    }
  }
}

TEST(the_ranks_factors_are_not_known_to_others) {
  std::mt19937_64 random(5);
  Case c;
  c.op = ReduceOp::kPremulSum;
  c.counts = {100'000};
  c.in_arena = kAll;
  cases::make_data(c, 3, random);
  CHECK_EQ(gone_without_copy(c, 3), 0);
}

// A rank that is late is named, as by the other ways.
TEST(who_does_not_come_is_named) {
  std::mt19937_64 random(6);
  Case c;
  c.counts = {100'000};
  c.in_arena = kAll;
  cases::make_data(c, 2, random);
  with_group(2, "auto", [&](Communicator& comm) {
    cases::perform(c, comm, kPatience);
    if (comm.rank() == 1) return comm.close("it leaves");
    try {
      cases::perform(c, comm, kPatience);
      CHECK(false);
    } catch (const Error& error) {
      const std::string text = error.what();
      CHECK_WITH(text.find("rank 1") != std::string::npos, text);
    }
  });
}

}  // namespace
