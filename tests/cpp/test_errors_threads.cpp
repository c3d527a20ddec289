// What can go wrong between ranks: calls that do not fit, ranks that do not come, leave or die.
// Every rank must learn it, soon, from a text that names the ranks at fault.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "errors.h"
#include "file_store.h"
#include "memory_store.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using cases::Case;
using check::check_error;
using check::contains;
using ranks::kPatience;
using ranks::with_group;

constexpr Reduce kSum{DType::kFloat32, ReduceOp::kSum};
constexpr std::size_t kLarge = 100'000;

void check_works(Communicator& communicator) {
  for (const std::size_t count : {std::size_t{10}, kLarge}) {
    std::vector<float> data(count, 1.0f);
    communicator.all_reduce(data.data(), data.data(), count, kSum, kPatience);
    CHECK(data == std::vector<float>(count, static_cast<float>(communicator.world_size())));
  }
}

void all_reduce(Communicator& communicator, std::size_t count, Communicator::Timeout timeout,
                Reduce reduce = kSum) {
  std::vector<double> data(count);
  communicator.all_reduce(data.data(), data.data(), count, reduce, timeout);
}

// All ranks make the first call, but `odd` the second.
void check_mismatch(int world_size, int odd, const check::Parts& parts,
                    const std::function<void(Communicator&)>& call,
                    const std::function<void(Communicator&)>& odd_call) {
  with_group(world_size, "auto", [&](Communicator& communicator) {
    check_error(ErrorKind::kMismatch, parts,
                [&] { communicator.rank() == odd ? odd_call(communicator) : call(communicator); });
    check_works(communicator);
  });
}

TEST(durations_in_words) {
  CHECK_EQ(describe_seconds(0.05), "0.05 s");
  CHECK_EQ(describe_seconds(90), "90 s");
  CHECK_EQ(describe_seconds(1800), "30 min");
  CHECK_EQ(describe_seconds(10 * 3600), "10 h");
}

TEST(calls_that_differ_are_an_error_on_every_rank) {
  auto reduces = [](std::size_t count, Reduce reduce = kSum) {
    return [=](Communicator& c) { all_reduce(c, count, kPatience, reduce); };
  };
  for (const std::size_t count : {std::size_t{10}, kLarge}) {
    const std::string number = std::to_string(count);
    check_mismatch(
        3, 1, {"ranks 0 and 2 called all_reduce(count=" + number, "rank 1 called", "count=11,"},
        reduces(count), reduces(11));
    check_mismatch(3, 0, {"rank 0 called", "ranks 1 and 2 called", "float64", "float32"},
                   reduces(count), reduces(count, {DType::kFloat64, ReduceOp::kSum}));
    check_mismatch(2, 1, {"rank 0 called", "rank 1 called", "op=sum", "op=max"}, reduces(count),
                   reduces(count, {DType::kFloat32, ReduceOp::kMax}));
    auto broadcasts = [count](int root) {
      return [=](Communicator& c) {
        std::vector<float> data(count);
        c.broadcast(data.data(), count, DType::kFloat32, root, kPatience);
      };
    };
    check_mismatch(4, 3, {"ranks 0, 1 and 2 called broadcast", "rank 3 called all_reduce"},
                   broadcasts(0), reduces(count));
    check_mismatch(4, 2, {"rank 2 called", "root=0", "root=1"}, broadcasts(0), broadcasts(1));
    check_mismatch(2, 0, {"rank 0 called barrier()", "rank 1 called all_reduce"}, reduces(count),
                   [](Communicator& c) { c.barrier(kPatience); });
  }
}

TEST(counts_per_rank_that_differ_are_an_error_on_every_rank) {
  for (const std::size_t scale : {std::size_t{1}, kLarge}) {
    auto scatters = [scale](std::size_t first, std::size_t second) {
      return [=](Communicator& c) {
        std::vector<float> data(9 * scale), out(9 * scale);
        const std::vector<Input> blocks{{data.data(), first * scale},
                                        {data.data(), second * scale}};
        c.reduce_scatter(blocks, out.data(), kSum, kPatience);
      };
    };
    check_mismatch(2, 1, {"rank 0 called reduce_scatter", "rank 1 called", "other counts per rank"},
                   scatters(3, 6), scatters(4, 5));
    auto gathers = [scale](std::size_t first, std::size_t second) {
      return [=](Communicator& c) {
        std::vector<float> data(9 * scale), out(18 * scale);
        const std::vector<Output> blocks{{out.data(), first * scale},
                                         {out.data() + 9 * scale, second * scale}};
        c.all_gather(data.data(), blocks, DType::kFloat32, kPatience);
      };
    };
    check_mismatch(2, 0, {"rank 0 called all_gather", "other counts per rank"}, gathers(3, 6),
                   gathers(6, 3));
    // Rank 1 has 4 for rank 0, which expects 3.
    const std::string four = std::to_string(4 * scale), three = std::to_string(3 * scale);
    with_group(2, "auto", [&](Communicator& c) {
      check_error(ErrorKind::kMismatch,
                  {"rank 1 has " + four + " elements for rank 0, which expects " + three,
                   "Nothing was sent"},
                  [&] {
                    const bool sends = c.rank() == 1;
                    std::vector<float> data(4 * scale);
                    const std::vector<Input> sent{{data.data(), sends ? 4 * scale : 0}, {}};
                    const std::vector<Output> got{{}, {data.data(), sends ? 0 : 3 * scale}};
                    c.all_to_all(sent, got, DType::kFloat32, kPatience);
                  });
      check_works(c);
    });
  }
}

TEST(what_one_rank_can_know_is_refused_before_anything_is_sent) {
  with_group(2, "auto", [](Communicator& c) {
    float x = 0;
    check_error(ErrorKind::kInvalidArgument, {"op=band", "float32"},
                [&] { c.all_reduce(&x, &x, 1, {DType::kFloat32, ReduceOp::kBand}, kPatience); });
    for (const int root : {-1, 2}) {
      check_error(ErrorKind::kInvalidArgument, {"root is " + std::to_string(root), "0 to 1"},
                  [&] { c.broadcast(&x, 1, DType::kFloat32, root, kPatience); });
    }
    CHECK_EQ(c.sequence(), 0u);
    check_works(c);
  });
}

TEST(a_rank_that_does_not_come_is_named_on_every_other) {
  for (const std::size_t count : {std::size_t{10}, kLarge}) {
    std::array<Clock::duration, 4> waited{};
    with_group(4, "auto", [&](Communicator& communicator) {
      check_works(communicator);
      if (communicator.rank() == 2) {
        std::this_thread::sleep_for(700ms);
      } else {
        const auto start = Clock::now();
        check_error(ErrorKind::kTimeout,
                    {"all_reduce(count=" + std::to_string(count), "#3", " Timed out after ",
                     "timeout is 0.3 s", "waiting for rank 2: rank 2 (its last complete"},
                    [&] { all_reduce(communicator, count, 300ms); });
        waited[communicator.rank()] = Clock::now() - start;
        CHECK(waited[communicator.rank()] < 20s);
      }
      // The group is broken: the rank that comes too late, and all later calls, fail at once.
      const auto start = Clock::now();
      check_error(ErrorKind::kTimeout, {"because the group failed on rank", "waiting for rank 2"},
                  [&] { all_reduce(communicator, count, kPatience); });
      CHECK(Clock::now() - start < 20s);
    });
    // A rank that begins later raises the others' error.
    CHECK(*std::ranges::max_element(waited) > 250ms);
  }
}

TEST(timeouts_may_be_zero_or_without_limit) {
  with_group(2, "auto", [](Communicator& communicator) {
    all_reduce(communicator, 10, Communicator::Timeout::max());
    all_reduce(communicator, kLarge, Communicator::Timeout::max());
    if (communicator.rank() == 0) {
      check_error(ErrorKind::kTimeout, {"waiting for rank 1"},
                  [&] { all_reduce(communicator, 10, 0ms); });
    }
    while (!communicator.group().broken()) std::this_thread::sleep_for(1ms);
  });
}

TEST(a_rank_that_closes_is_named) {
  for (const std::size_t count : {std::size_t{10}, kLarge}) {
    with_group(3, "ring", [&](Communicator& communicator) {
      if (communicator.rank() == 1) {
        std::this_thread::sleep_for(50ms);
        communicator.close("done with it");
        communicator.close("another reason");
        check_error(ErrorKind::kClosed, {"done with it"},
                    [&] { all_reduce(communicator, count, kPatience); });
      } else {
        check_error(ErrorKind::kPeerDied, {"rank 1 will not answer, it has closed the group"},
                    [&] { all_reduce(communicator, count, kPatience); });
      }
    });
  }
}

TEST(a_call_under_way_ends_when_its_own_rank_closes) {
  with_group(2, "auto", [](Communicator& communicator) {
    if (communicator.rank() == 1) return std::this_thread::sleep_for(200ms);
    std::thread closer([&] {
      std::this_thread::sleep_for(50ms);
      communicator.close("the application ends");
    });
    check_error(ErrorKind::kClosed, {"the application ends"},
                [&] { all_reduce(communicator, 10, kPatience); });
    closer.join();
  });
}

TEST(ranks_that_leave_after_their_last_call_disturb_no_other) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 30; ++i) {
    const Case c =
        cases::random_case(cases::kCollectives[i % 9], 4, i % 2 ? 200'000 : 1000, random);
    with_group(4, "auto", [&](Communicator& communicator) {
      cases::perform(c, communicator, kPatience);
      communicator.close("done");
    });
  }
}

TEST(abort_breaks_the_group_for_all) {
  with_group(3, "auto", [](Communicator& communicator) {
    if (communicator.rank() == 0) {
      std::this_thread::sleep_for(50ms);
      communicator.abort("rank 0 gives up");
    }
    check_error(ErrorKind::kClosed, {"rank 0 gives up"},
                [&] { all_reduce(communicator, 10, kPatience); });
  });
}

TEST(no_rank_waits_for_a_failure_that_is_never_reported) {
  ranks::MemoryStore store;
  Communicator communicator(store, ranks::group_config(0, 1), Selection{});
  communicator.group().segment().header().failed = 1;
  check_error(ErrorKind::kPeerDied, {"while it was recording"},
              [&] { communicator.barrier(kPatience); });
}

// fork() and ThreadSanitizer do not go together.
#ifndef __SANITIZE_THREAD__

TEST(a_process_that_is_killed_is_named) {
  for (const std::size_t count : {std::size_t{10}, kLarge}) {
    std::string folder = std::filesystem::temp_directory_path() / "ringcomm-XXXXXX";
    CHECK(mkdtemp(folder.data()) != nullptr);
    ranks::FileStore store(folder);
    const pid_t child = fork();
    if (child == 0) {
      Communicator communicator(store, ranks::group_config(1, 2), Selection{});
      for (;;) all_reduce(communicator, count, kPatience);
    }
    Communicator communicator(store, ranks::group_config(0, 2), Selection{});
    for (int i = 0; i < 20; ++i) all_reduce(communicator, count, kPatience);
    kill(child, SIGKILL);
    const auto start = Clock::now();
    const std::string ended = "its process " + std::to_string(child) + " has ended";
    const check::Parts parts{"rank 1 will not answer", ended};
    check_error(ErrorKind::kPeerDied, parts, [&] {
      for (int i = 0; i < 3; ++i) all_reduce(communicator, count, kPatience);
    });
    CHECK(Clock::now() - start < 20s);
    check_error(ErrorKind::kPeerDied, parts, [&] { all_reduce(communicator, count, kPatience); });
    waitpid(child, nullptr, 0);
    std::filesystem::remove_all(folder);
  }
}

#endif

}  // namespace
