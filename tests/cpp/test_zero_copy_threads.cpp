// Collectives on tensors that peers can reach, and all-to-alls that the kernel may read: every one
// against results computed from all inputs, and which way they went.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "core/spans.h"
#include "memory_store.h"

namespace {

using namespace ringcomm;
using cases::Case;
using ranks::kPatience;
using ranks::with_group;

constexpr std::uint64_t kAll = ~std::uint64_t{0};

// Counts the calls that went without a copy, of all ranks.
class Counter final : public SpanSink {
 public:
  void begin(const std::string& name) override {
    count_ += name == "zero copy";
    by_kernel_ += name == "one copy";
  }
  void end() override {}
  int take() { return count_.exchange(0); }
  int take_by_kernel() { return by_kernel_.exchange(0); }

 private:
  std::atomic<int> count_{0};
  std::atomic<int> by_kernel_{0};
};

Counter counter;

struct Counting {
  Counting() {
    counter.take();
    counter.take_by_kernel();
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
      // Other ranks' memory is not needed for a root's data.
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
TEST(a_rank_that_does_not_come_is_named) {
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

// ---- All-to-alls of tensors that lie elsewhere

constexpr std::size_t kLarge = (512 << 10) / 4 + 17;  // float32 elements, for the kernel to read
// The first publishes where all tensors are, then both ways are tried.
constexpr int kUntilTried = 1 + shm::CopyChoice::kCalls + 1;

Case exchange(int n, std::size_t count, std::mt19937_64& random) {
  Case c;
  c.collective = Collective::kAllToAll;
  c.counts.assign(n * n, count);
  cases::make_data(c, n, random);
  return c;
}

// How many of the ranks' calls the kernel has read.
int read_by_kernel(const std::vector<Case>& all, int n, const std::string& algorithm = "auto") {
  const Counting counting;
  with_group(n, algorithm, [&](Communicator& comm) {
    for (const Case& c : all) cases::perform(c, comm, kPatience);
  });
  CHECK_EQ(counter.take(), 0);
  return counter.take_by_kernel();
}

TEST(the_kernel_reads_large_exchanges) {
  std::mt19937_64 random(7);
  for (const int n : {2, 3}) {
    std::vector<Case> all;
    for (int i = 0; i < kUntilTried; ++i) all.push_back(exchange(n, kLarge, random));
    const int count = read_by_kernel(all, n);
    CHECK_WITH(count >= n && count % n == 0, std::to_string(count));
    CHECK_EQ(read_by_kernel(all, n, "direct"), 0);  // what the user has chosen is carried out
    for (Case& c : all) c = exchange(n, kLarge / 2, random);
    CHECK_EQ(read_by_kernel(all, n), 0);
  }
}

// Rank 0 takes much; others much, little, or nothing, so that some of the inputs travel with
// announcements, and some of these calls go by plan.
TEST(exchanges_of_unequal_parts) {
  std::mt19937_64 random(8);
  constexpr int n = 3;
  std::vector<Case> all;
  for (int i = 0; i < 40; ++i) {
    Case c = exchange(n, kLarge, random);
    for (int from = 0; from < n; ++from) {
      for (int to = 0; to < n; ++to) {
        if (to > 0 && i % 2 == 1) c.counts[from * n + to] = random() % 3 * random() % 300'000;
      }
    }
    if (i % 8 == 7) std::fill_n(c.counts.begin() + n, n, random() % 100);
    all.push_back(c);
  }
  CHECK(read_by_kernel(all, n) >= n);
}

// One rank's would have to be read, the others' mapped.
TEST(tensors_in_memory_of_both_kinds_are_copied) {
  std::mt19937_64 random(9);
  std::vector<Case> all;
  for (int i = 0; i < kUntilTried; ++i) {
    all.push_back(exchange(3, kLarge, random));
    all.back().in_arena = 5;
  }
  CHECK_EQ(read_by_kernel(all, 3), 0);
}

// The tests below write into a segment that other ranks read: a data race, and meant to be one.
#ifndef __SANITIZE_THREAD__
TEST(a_rank_that_cannot_be_read_is_sent_copies) {
  std::mt19937_64 random(10);
  const Case c = exchange(3, kLarge, random);
  const Counting counting;
  with_group(3, "auto", [&](Communicator& comm) {
    comm.barrier(kPatience);
    if (comm.rank() == 1) ++comm.group().segment().state(1).process.pid_namespace;
    comm.barrier(kPatience);
    for (int i = 0; i < 2 * kUntilTried; ++i) cases::perform(c, comm, kPatience);
  });
  CHECK_EQ(counter.take_by_kernel(), 0);
}

// A rank whose memory is gone, here as its announcements are overwritten: it is named, with what
// the kernel has said, and no rank hangs.
TEST(what_the_kernel_cannot_read_is_an_error) {
  std::mt19937_64 random(11);
  const Case c = exchange(2, kLarge, random);
  // Behind the four counts of an all-to-all, and what stands before a rank's two places.
  const std::size_t at =
      4 * 8 + shm::ZeroCopy(Collective::kAllToAll, 2, 4, 0, 1).most_nbytes() - 2 * 8;
  std::atomic<bool> is_over = false;
  with_group(2, "auto", [&](Communicator& comm) {
    cases::perform(c, comm, kPatience);
    comm.barrier(kPatience);
    std::thread other;
    if (comm.rank() == 1) {
      other = std::thread([&] {
        const std::uint64_t nowhere = 1;
        while (!is_over) {
          for (const std::uint64_t sequence : {0, 1}) {
            std::byte* const payload = comm.group().segment().announcement(1, sequence).payload();
            std::memcpy(payload + at, &nowhere, sizeof(nowhere));
          }
        }
      });
    }
    try {
      for (int i = 0; i < 1000; ++i) cases::perform(c, comm, kPatience);
      CHECK(false);
    } catch (const Error& error) {
      const std::string text = error.what();
      CHECK(error.kind() == ErrorKind::kSystem);
      CHECK_WITH(text.find("rank 0 in all_to_all") != std::string::npos, text);
      CHECK_WITH(text.find("bytes of rank 1: Bad address") != std::string::npos, text);
    }
    is_over = true;
    if (other.joinable()) other.join();
  });
}
#endif

}  // namespace
