// Collectives by fused kernels on GPUs that the host plays: how the ranks come to share memory,
// what happens where they cannot, and how it ends. What a kernel does is tested in
// test_fused_threads.cpp.
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "fake_cuda.h"
#include "fake_graph.h"
#include "fake_nccl.h"
#include "fused/launch.h"
#include "nccl_cases.h"
#include "nccl_ranks.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using ranks::DeviceRank;
using ranks::kPatience;
using ranks::synchronize;
using ranks::text_of;

nccl::Options fused_options(const std::string& algorithm = "ring") {
  nccl::Options options = ranks::device_options(algorithm, 1);
  options.executor = streams::DeviceExecutor::kFused;
  options.max_ctas = 3;
  return options;
}

void with_fused(int world_size, const nccl::Options& options,
                const std::function<void(DeviceRank&)>& body) {
  ranks::MemoryStore store;
  ranks::on_threads(world_size, [&](int r) {
    DeviceRank rank(store, r, world_size, options);
    body(rank);
  });
}

}  // namespace

TEST(collectives_are_right_and_all_memory_is_freed) {
  std::mt19937_64 random(1);
  for (int world_size = 1; world_size <= 5; ++world_size) {
    const std::string algorithm = std::vector{"auto", "ring", "direct"}[world_size % 3];
    const auto all = ranks::device_cases(world_size, {100, 40000, 200000}, random);
    with_fused(world_size, fused_options(algorithm), [&](DeviceRank& rank) {
      rank.device->connect(kPatience);
      CHECK_EQ(rank.device->why_not_fused(), world_size > 1 ? "" : "there is but one rank");
      CHECK_EQ(fake::open_comms.load(), 0);
      ranks::check_cases(rank, all);
    });
    CHECK_EQ(fake::num_allocations.load(), 0);
  }
}

// 81 chunks.
TEST(what_a_kernel_does_not_take_goes_as_messages) {
  constexpr int n = 9;
  with_fused(n, fused_options("direct"), [&](DeviceRank& rank) {
    std::vector<int> sent(n), received(n);
    for (int r = 0; r < n; ++r) sent[r] = 100 * rank.rank + r;
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    std::vector<Input> inputs;
    std::vector<Output> outputs;
    for (int r = 0; r < n; ++r) {
      inputs.push_back({&sent[r], 1});
      outputs.push_back({&received[r], 1});
    }
    const auto enqueued = rank.device->enqueue_behind(rank.user.get(), [&](Collectives& on) {
      on.all_to_all(inputs, outputs, DType::kInt32, kPatience);
    });
    synchronize(enqueued.stream);
    for (int r = 0; r < n; ++r) CHECK_EQ(received[r], 100 * r + rank.rank);
    synchronize(rank.all_reduce().stream);
    CHECK_EQ(rank.data[4999], 81.0f);
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  CHECK_EQ(fake::open_comms.load(), 0);
  CHECK_EQ(fake::num_allocations.load(), 0);
}

TEST(replays_and_other_calls_take_turns) {
  with_fused(3, fused_options(), [&](DeviceRank& rank) {
    std::vector<float> other(20000, 2);
    rank.data.assign(20000, 1);
    rank.device->connect(kPatience);
    auto graph = fake::begin_capture(rank.user.get());
    rank.all_reduce().end->make_wait(rank.user.get());
    CHECK(fake::end_capture(graph, rank.user.get()));
    rank.data.swap(other);
    for (int i = 0; i < 4; ++i) {
      graph->launch(rank.user.get());
      rank.all_reduce();
    }
    synchronize(rank.user.get());
    synchronize(rank.device->stream());
    CHECK_EQ(other[19999], 81.0f);
    CHECK_EQ(rank.data[19999], 162.0f);
    graph.reset();
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  CHECK_EQ(fake::num_allocations.load(), 0);
}

TEST(a_time_out_names_for_whom_a_kernel_waits) {
  with_fused(3, fused_options("direct"), [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    if (rank.rank != 1) {
      rank.all_reduce(1s);
      const std::string text = rank.failure();
      CHECK_CONTAINS(text, "all_reduce(count=5000, dtype=float32, op=sum) #2: Timed out after ");
      CHECK_CONTAINS(text, "waiting for rank 1: rank 1 has enqueued #1");
      CHECK_CONTAINS(text, "Its device waits for rank 1.");
    }
    while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
    // Kernels that were given up come to their end.
    synchronize(rank.device->stream());
    CHECK_CONTAINS(check::error_of(ErrorKind::kTimeout, [&] { rank.all_reduce(); }), "Timed out");
  });
}

TEST(where_one_rank_cannot_reach_all_memory_all_ranks_send_messages) {
  const int before = fake::num_allocations;
  fake::failing_allocation = 2;
  with_fused(3, fused_options(), [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    CHECK_EQ(rank.data[4999], 3.0f);
    CHECK_CONTAINS(rank.device->why_not_fused(), fake::failed_here
                                                     ? " failed with cudaErrorFake"
                                                     : "cannot reach the memory of all other");
    CHECK_EQ(rank.device->shut_down(kPatience), "");
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
  });
  CHECK_EQ(fake::open_comms.load(), 0);
  CHECK_EQ(fake::num_allocations.load(), before);
}

TEST(ranks_of_other_processes_open_the_memory) {
  const int before = fake::num_allocations;
  for (const bool opens : {true, false}) {
    fake::opens_memory = opens;
    ranks::MemoryStore store;
    ranks::on_threads(3, [&](int r) {
      shm::Group group(store, ranks::invite(r, 3));
      const fused::Layout layout{.world_size = 3, .num_lanes = 1, .outbox_nbytes = 4096};
      Process process = Process::self();
      process.pid += r;
      nccl::FusedMemory memory(group, 0, layout, ranks::reclaim, process);
      while (!memory.progress()) std::this_thread::sleep_for(1ms);
      if (opens) {
        CHECK_EQ(memory.why_not(), "");
        for (int peer = 0; peer < 3; ++peer) CHECK(memory.of(peer) != nullptr);
      } else {
        CHECK(!memory.why_not().empty());
      }
      while (!memory.let_go()) std::this_thread::sleep_for(1ms);
      CHECK_EQ(cudaGetLastError(), cudaSuccess);
    });
    CHECK_EQ(fake::num_allocations.load(), before);
  }
  fake::opens_memory = true;
}

TEST(a_rank_that_is_gone_while_it_shares_its_memory_is_named_at_once) {
  const int before = fake::num_allocations;
  ranks::MemoryStore store;
  ranks::on_threads(3, [&](int r) {
    if (r == 1) {
      shm::Group group(store, ranks::invite(r, 3));
      group.board().join(ranks::settings_of(fused_options()));
      group.close("the end");
      return;
    }
    DeviceRank rank(store, r, 3, fused_options());
    check::check_error(ErrorKind::kPeerDied, {"rank 1 will not answer, it has closed the group"},
                       [&] { rank.device->connect(kPatience); });
  });
  fake::num_allocations = before;  // memory that others may have open stays
}

TEST(a_kernel_in_a_graph_ends_when_a_rank_dies) {
  const int before = fake::num_allocations;
  with_fused(3, fused_options(), [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    const auto graph = fake::begin_capture(rank.user.get());
    rank.all_reduce().end->make_wait(rank.user.get());
    CHECK(fake::end_capture(graph, rank.user.get()));
    if (rank.rank == 1) {
      rank.group.close("the end");
      return;
    }
    graph->launch(rank.user.get());
    synchronize(rank.user.get());
    CHECK_CONTAINS(rank.failure(), "rank 1 will not answer, it has closed the group");
  });
  fake::num_allocations = before;
}

TEST(all_ranks_must_choose_alike) {
  ranks::MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    DeviceRank rank(store, r, 2, r == 0 ? fused_options() : ranks::device_options("ring", 1));
    rank.data.assign(10, 1);
    const std::string text = check::error_of(ErrorKind::kMismatch, [&] { rank.all_reduce(); });
    CHECK_CONTAINS(text, "must be the same on all ranks");
  });
}
