// The collectives of a communicator: every way of carrying them out against results computed from
// all inputs, and what holds between ranks and between calls.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "memory_store.h"

namespace {

using namespace ringcomm;
using cases::Case;
using ranks::kPatience;
using ranks::with_group;

void perform_all(int world_size, const std::string& algorithm, const std::vector<Case>& all) {
  with_group(world_size, algorithm, [&](Communicator& communicator) {
    for (const Case& c : all) cases::perform(c, communicator, kPatience);
  });
}

std::vector<std::size_t> interesting_nbytes(int n) {
  const std::size_t eager = shm::Geometry(n).eager_nbytes;
  return {0, 8, 8u * (n - 1), 8u * (n + 1), 4711, eager - 8, eager, eager + 8, 100'000};
}

TEST(every_collective_every_algorithm) {
  std::mt19937_64 random(1);
  for (int n = 1; n <= 9; ++n) {
    for (const char* algorithm : {"auto", "ring", "direct"}) {
      std::vector<Case> all;
      for (const Collective collective : cases::kCollectives) {
        for (const std::size_t nbytes : interesting_nbytes(n)) {
          all.push_back(cases::random_case(collective, n, nbytes, random));
        }
      }
      perform_all(n, algorithm, all);
    }
  }
}

TEST(several_rounds_of_slices) {
  std::mt19937_64 random(2);
  for (const int n : {2, 3, 7}) {
    for (const char* algorithm : {"ring", "direct"}) {
      // A ring's slices are half an outbox, and the two lanes take turns: three rounds and a bit.
      const std::size_t nbytes = shm::Geometry(n).slots_nbytes / 2 * n * 3 + 1000;
      std::vector<Case> all;
      for (const Collective collective : cases::kCollectives) {
        all.push_back(cases::random_case(collective, n, nbytes, random));
      }
      perform_all(n, algorithm, all);
    }
  }
}

// Payloads and slices of all sizes follow each other often enough for their memory to end.
TEST(memory_in_rotation) {
  std::mt19937_64 random(10);
  for (const int n : {2, 3, 8}) {
    const std::size_t eager = shm::Geometry(n).eager_nbytes;
    std::vector<Case> all;
    for (int i = 0; i < 150; ++i) {
      const Collective collective = cases::kCollectives[random() % cases::kCollectives.size()];
      const std::size_t most = i % 4 == 0 ? 12 * eager : eager;
      all.push_back(cases::random_case(collective, n, most - random() % (most / 2), random));
    }
    perform_all(n, "auto", all);
  }
}

TEST(large_groups) {
  std::mt19937_64 random(3);
  for (const int n : {16, 33}) {
    for (const char* algorithm : {"ring", "direct"}) {
      std::vector<Case> all;
      for (const Collective collective : cases::kCollectives) {
        for (const std::size_t nbytes : {2000, 50'000}) {
          all.push_back(cases::random_case(collective, n, nbytes, random));
        }
      }
      perform_all(n, algorithm, all);
    }
  }
}

// One rank among many has much for one other: what the other actions would write to their slots is
// left out, and all slots hold slices for the same reader.
TEST(much_for_one_of_many) {
  std::mt19937_64 random(4);
  constexpr int n = 16;
  std::vector<Case> all;
  for (const Collective collective :
       {Collective::kReduceScatter, Collective::kAllGather, Collective::kAllToAll}) {
    Case c = cases::random_case(collective, n, 0, random);
    std::fill(c.counts.begin(), c.counts.end(), 0);
    c.counts[5] = 2'000'000 / element_size(c.dtype);
    all.push_back(c);
  }
  for (const char* algorithm : {"ring", "direct", "halving_doubling", "bruck"}) {
    perform_all(n, algorithm, all);
  }
}

TEST(every_dtype_and_op) {
  std::mt19937_64 random(5);
  for (const int n : {3, 4}) {
    std::vector<Case> all;
    for (int d = 0; d < kNumDTypes; ++d) {
      for (int o = 0; o < kNumReduceOps; ++o) {
        for (const std::size_t count : {std::size_t{1001}, std::size_t{40'001}}) {
          Case c;
          c.dtype = static_cast<DType>(d);
          c.op = static_cast<ReduceOp>(o);
          c.counts = {count};
          if (!supports(c.dtype, c.op)) continue;
          cases::make_data(c, n, random);
          all.push_back(c);
        }
      }
    }
    for (const char* algorithm : {"ring", "direct"}) {
      perform_all(n, algorithm, all);
    }
  }
}

TEST(hundreds_of_collectives_in_a_row) {
  std::mt19937_64 random(6);
  for (const int n : {2, 5}) {
    std::vector<Case> all;
    for (int i = 0; i < 400; ++i) {
      const Collective collective = cases::kCollectives[random() % cases::kCollectives.size()];
      const std::size_t most = random() % 20 == 0 ? 400'000 : random() % 4 == 0 ? 80'000 : 3000;
      all.push_back(cases::random_case(collective, n, random() % most, random));
    }
    with_group(n, "auto", [&](Communicator& communicator) {
      std::mt19937 pauses(communicator.rank());
      for (const Case& c : all) {
        if (pauses() % 20 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 2000));
        }
        cases::perform(c, communicator, kPatience);
      }
      CHECK_EQ(communicator.sequence(), all.size());
    });
  }
}

// Sums that depend on the order of addition: the same bits on every rank, and in every repetition.
TEST(all_ranks_get_the_same_bits_every_time) {
  for (const int n : {3, 6}) {
    for (const char* algorithm : {"auto", "ring", "direct"}) {
      for (const std::size_t count : {100u, 50'001u}) {
        std::vector<std::vector<float>> results(n);
        with_group(n, algorithm, [&](Communicator& communicator) {
          std::mt19937 random(communicator.rank());
          std::vector<float> input(count), first(count), again(count);
          for (float& x : input) {
            x = std::ldexp(static_cast<float>(random() % 9999) - 5000, random() % 30);
          }
          const Reduce sum{DType::kFloat32, ReduceOp::kSum};
          communicator.all_reduce(input.data(), first.data(), count, sum, kPatience);
          for (int i = 0; i < 3; ++i) {
            communicator.all_reduce(input.data(), again.data(), count, sum, kPatience);
            CHECK(again == first);
          }
          communicator.all_reduce(input.data(), input.data(), count, sum, kPatience);
          CHECK(input == first);
          results[communicator.rank()] = first;
        });
        for (int r = 1; r < n; ++r) CHECK(results[r] == results[0]);
      }
    }
  }
}

TEST(direct_plans_and_small_inputs_are_added_in_pairs) {
  constexpr int n = 5;
  auto input_of = [](int rank, std::size_t count) {
    std::mt19937 random(rank);
    std::vector<float> input(count);
    for (float& x : input)
      x = std::ldexp(static_cast<float>(random() % 9999) - 5000, random() % 30);
    return input;
  };
  for (const std::size_t count : {100u, 50'001u}) {
    std::vector<std::vector<float>> in;
    for (int r = 0; r < n; ++r) in.push_back(input_of(r, count));
    std::vector<float> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      expected[i] = ((in[0][i] + in[1][i]) + (in[2][i] + in[3][i])) + in[4][i];
    }
    with_group(n, "direct", [&](Communicator& communicator) {
      std::vector<float> data = input_of(communicator.rank(), count);
      communicator.all_reduce(data.data(), data.data(), count, {DType::kFloat32, ReduceOp::kSum},
                              kPatience);
      CHECK(data == expected);
    });
  }
}

// A direct plan adds all inputs in float32 and rounds once, however many ranks there are.
TEST(bfloat16_is_rounded_once) {
  constexpr int n = 8;
  constexpr std::size_t count = 30'000;
  constexpr std::uint16_t kOne = 0x3f80, kSmall = 0x3b80;  // 1, 2^-8: half a unit in 1's last place
  for (const std::size_t elements : {std::size_t{64}, count}) {
    with_group(n, "auto", [&](Communicator& communicator) {
      std::vector<std::uint16_t> data(elements, communicator.rank() == 0 ? kOne : kSmall);
      communicator.all_reduce(data.data(), data.data(), elements,
                              {DType::kBFloat16, ReduceOp::kSum}, kPatience);
      // 1 + 7/256 = 1 + 3.5/128, a tie that goes to the even 4.
      CHECK(data == std::vector<std::uint16_t>(elements, kOne + 4));
    });
  }
}

// A rank that comes first waits for some microseconds, and leaves the rest to another thread.
TEST(calls_that_have_to_wait_are_gone_on_with) {
  std::mt19937_64 random(11);
  for (const int n : {2, 3, 5}) {
    const std::size_t eager = shm::Geometry(n).eager_nbytes;
    std::vector<Case> all;
    for (int i = 0; i < 400; ++i) {
      const Collective collective = cases::kCollectives[i % (cases::kCollectives.size() - 1)];
      all.push_back(cases::random_case(collective, n, random() % (2 * eager), random));
    }
    std::atomic<int> left{0};
    with_group(n, "auto", [&](Communicator& communicator) {
      std::mt19937_64 own(communicator.rank());
      for (const Case& c : all) {
        cases::Part part(c, communicator.rank(), n);
        part.fill();
        if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 200));
        const auto call = [&] { part.call(communicator, kPatience); };
        if (!communicator.settled_soon(kPatience, call)) {
          ++left;
          std::thread([&] { communicator.settled(1, kPatience, call); }).join();
        }
        CHECK(part.right());
      }
    });
    CHECK(left > 0);
    CHECK(left < static_cast<int>(all.size()) * n);
  }
}

TEST(groups_do_not_disturb_each_other) {
  std::mt19937_64 random(7);
  std::vector<Case> all;
  for (int i = 0; i < 30; ++i) {
    all.push_back(cases::random_case(cases::kCollectives[i % 9], 2, 50'000, random));
  }
  ranks::on_threads(3, [&](int) { perform_all(2, "auto", all); });
}

TEST(a_barrier_waits_for_all) {
  constexpr int n = 5;
  std::atomic<int> arrived{0};
  with_group(n, "auto", [&](Communicator& communicator) {
    for (int i = 1; i <= 50; ++i) {
      if (i % 10 == communicator.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++arrived;
      communicator.barrier(kPatience);
      CHECK(arrived >= n * i);
      communicator.barrier(kPatience);
    }
  });
}

}  // namespace
