// Collectives by fused kernels on GPUs that the host plays: how the ranks come to share memory,
// what happens where they cannot, and how it ends. What a kernel does is tested in
// test_fused_threads.cpp.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "errors.h"
#include "fake_cuda.h"
#include "fake_graph.h"
#include "fake_nccl.h"
#include "gpu/fused/launch.h"
#include "gpu/nccl/fused.h"
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

// Three ranks, each with a device and as if in a process of its own, once they know whether they
// reach each other's memory.
void with_memory(
    nccl::FusedMemory::Paths paths,
    const std::function<void(int rank, const nccl::FusedMemory&)>& body,
    const std::function<void(int rank)>& prepare = [](int) {}) {
  const int before = fake::num_allocations;
  std::atomic<int> num_known{0};
  ranks::MemoryStore store;
  ranks::on_threads(3, [&](int r) {
    prepare(r);
    shm::Group group(store, ranks::group_config(r, 3));
    const fused::Layout layout{.world_size = 3, .num_lanes = 1, .outbox_nbytes = 4096};
    Process process = Process::self();
    process.pid += r;
    nccl::FusedMemory memory(group, r, layout, paths, {ranks::reclaim}, process);
    while (!memory.progress()) std::this_thread::sleep_for(1ms);
    body(r, memory);
    ++num_known;
    if (memory.why_not().empty()) {
      while (!memory.let_go()) std::this_thread::sleep_for(1ms);
    } else {
      while (num_known < 3) std::this_thread::sleep_for(1ms);
      memory.free();
    }
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
  });
  CHECK_EQ(fake::num_allocations.load(), before);
}

// A group whose peers go on while this rank finds out whether one of them is gone.
class SlowLook final : public Group {
 public:
  SlowLook(shm::Group& group, std::function<void()> meanwhile)
      : Group(group.rank, group.world_size, group.members),
        group_(group),
        meanwhile_(std::move(meanwhile)) {}

  bool gone(int peer, std::string* how) override {
    meanwhile_();
    return group_.gone(peer, how);
  }

  void check(const std::string& doing) override { group_.check(doing); }
  bool broken() override { return group_.broken(); }
  Error fail(ErrorKind kind, const std::string& text) override { return group_.fail(kind, text); }
  bool has_ended(int peer) override { return group_.has_ended(peer); }
  std::string describe_peer(int peer) override { return group_.describe_peer(peer); }
  bool spans_hosts() const override { return group_.spans_hosts(); }
  DeviceBoard& board() override { return group_.board(); }
  DeviceState& device_state(int rank) override { return group_.device_state(rank); }
  DeviceArea* device_area(int rank) override { return group_.device_area(rank); }
  DeviceArea& make_device_area(int rank) override { return group_.make_device_area(rank); }

 private:
  shm::Group& group_;
  const std::function<void()> meanwhile_;
};

}  // namespace

TEST(collectives_are_right_and_all_memory_is_freed) {
  std::mt19937_64 random(1);
  for (int world_size = 1; world_size <= 5; ++world_size) {
    const std::string algorithm = std::vector{"auto", "ring", "direct"}[world_size % 3];
    const auto all = ranks::device_cases(world_size, {100, 40000, 200000}, random);
    nccl::Options options = fused_options(algorithm);
    options.eager_nbytes = 64 << 10;
    options.two_hop_nbytes = world_size % 2 * 512 << 10;
    with_fused(world_size, options, [&](DeviceRank& rank) {
      rank.device->connect(kPatience);
      CHECK_EQ(rank.device->why_not_fused(), world_size > 1 ? "" : "there is but one rank");
      CHECK_EQ(fake::open_comms.load(), 0);
      ranks::check_cases(rank, all);
    });
    CHECK_EQ(fake::num_allocations.load(), 0);
  }
}

// What is counted is what CUDA was asked for.
TEST(a_rank_publishes_how_much_of_its_device_it_holds) {
  for (const bool is_fused : {true, false}) {
    const nccl::Options options = is_fused ? fused_options() : ranks::device_options("ring", 2);
    with_fused(3, options, [&](DeviceRank& rank) {
      const auto& held = rank.group.segment().state(rank.rank).device.held;
      CHECK_EQ(held.load(), 0u);
      const std::size_t others = fake::held_by_this_thread();  // of a thread with the same id
      std::size_t before = 0;
      for (const std::size_t count : {100, 400000}) {  // eager, and with scratch
        rank.data.assign(count, 1);
        synchronize(rank.all_reduce().stream);
        CHECK(held.load() > before || !is_fused);
        CHECK_EQ(held.load() + others, fake::held_by_this_thread());
        before = held.load();
      }
      CHECK(before > 10000);
      CHECK_EQ(rank.device->shut_down(kPatience), "");
      rank.device.reset();
      CHECK_EQ(held.load(), 0u);
      CHECK_EQ(fake::held_by_this_thread(), others);
    });
  }
}

// The switch is on: few bytes go eagerly, and nothing is connected for them; the others as
// messages.
TEST(auto_takes_what_is_eager_where_it_is_switched_on) {
  for (const bool on : {true, false}) {
    nccl::Options options = fused_options("auto");
    options.executor = streams::DeviceExecutor::kAuto;
    options.auto_is_fused = on;
    std::barrier all_ranks(3);
    with_fused(3, options, [&](DeviceRank& rank) {
      rank.data.assign(1000, 1);
      synchronize(rank.all_reduce().stream);
      CHECK_EQ(rank.data[999], 3.0f);
      CHECK_EQ(fake::open_comms.load() == 0, on);
      CHECK_EQ(rank.device->why_not_fused(), "");
      all_ranks.arrive_and_wait();
      rank.data.assign(1 << 20, 1);
      synchronize(rank.all_reduce().stream);
      CHECK_EQ(rank.data[(1 << 20) - 1], 3.0f);
      CHECK(fake::open_comms.load() > 0);
      rank.data.assign(1000, 2);
      synchronize(rank.all_reduce().stream);
      CHECK_EQ(rank.data[999], 6.0f);
      CHECK_EQ(rank.device->shut_down(kPatience), "");
    });
    CHECK_EQ(fake::open_comms.load(), 0);
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
    auto graph = rank.captured_all_reduce();
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
  with_memory(nccl::FusedMemory::Paths::kAll, [](int, const nccl::FusedMemory& memory) {
    CHECK_EQ(memory.why_not(), "");
    for (int peer = 0; peer < 3; ++peer) CHECK(memory.of(peer) != nullptr);
  });
  fake::opens_memory = false;
  std::atomic<int> num_named{0};
  with_memory(nccl::FusedMemory::Paths::kAll, [&](int, const nccl::FusedMemory& memory) {
    CHECK(!memory.why_not().empty());
    num_named += memory.why_not().find("cudaIpcOpenMemHandle") != std::string::npos;
  });
  CHECK(num_named > 0);  // a rank that knows of another one's reason looks for none itself
  fake::opens_memory = true;
}

// As where a platform does not carry writes, or reads, between devices.
TEST(memory_that_only_seems_to_be_another_ranks_is_used_by_no_rank) {
  for (const fake::Opened opened : {fake::Opened::kCopy, fake::Opened::kOther}) {
    std::atomic<int> num_named{0};
    with_memory(
        nccl::FusedMemory::Paths::kAll,
        [&](int rank, const nccl::FusedMemory& memory) {
          CHECK(!memory.why_not().empty());
          const std::string named = "wrote into the memory of rank " + std::to_string(rank);
          if (memory.why_not().find(named) != std::string::npos) ++num_named;
        },
        [opened](int) { fake::opened_here = opened; });
    CHECK(num_named > 0);  // the others know of that
  }
}

TEST(writes_of_one_rank_that_are_lost_keep_all_from_the_memory) {
  std::atomic<int> num_named{0};
  fake::muted_rank = 0;
  with_memory(nccl::FusedMemory::Paths::kAll, [&](int rank, const nccl::FusedMemory& memory) {
    CHECK(!memory.why_not().empty());
    num_named += memory.why_not() == "what rank 0 wrote into the memory of rank " +
                                         std::to_string(rank) + " has not arrived there";
  });
  fake::muted_rank = -1;
  CHECK(num_named > 0);  // a rank that knows of the other's finding looks for none itself
}

TEST(a_rank_that_reads_other_bytes_keeps_all_from_the_memory) {
  fake::misreading_rank = 2;
  with_memory(nccl::FusedMemory::Paths::kAll, [](int rank, const nccl::FusedMemory& memory) {
    CHECK_EQ(memory.why_not(),
             rank == 2 ? "rank 2 reads other bytes in the memory of rank 0 than are there"
                       : "rank 2 cannot reach the memory of all other ranks' devices");
  });
  with_fused(3, fused_options(), [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    CHECK_EQ(rank.data[4999], 3.0f);
    CHECK_CONTAINS(rank.device->why_not_fused(), "rank 2 ");
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  fake::misreading_rank = -1;
  CHECK_EQ(fake::open_comms.load(), 0);
}

// It may still write where other ranks have their memory, so that they keep that until it ends.
TEST(a_probe_that_takes_long_keeps_all_from_the_memory) {
  fake::hanging_rank = 1;
  std::thread release([] {
    std::this_thread::sleep_for(2500ms);
    fake::hanging_rank = -1;
  });
  with_memory(nccl::FusedMemory::Paths::kAll, [&](int rank, const nccl::FusedMemory& memory) {
    CHECK_EQ(fake::hanging_rank.load(), -1);
    CHECK_CONTAINS(memory.why_not(), rank == 1 ? "has not ended after 2 s" : "rank 1 cannot reach");
  });
  release.join();
}

TEST(only_nvlink_is_used_unless_it_is_asked_for_by_name) {
  using Paths = nccl::FusedMemory::Paths;
  // What all ranks say; a rank that knows of another one's reason looks for none itself.
  const auto why_not = [](Paths paths) {
    std::vector<std::string> texts(3);
    with_memory(paths,
                [&](int rank, const nccl::FusedMemory& memory) { texts[rank] = memory.why_not(); });
    return texts[0] + texts[1] + texts[2];
  };
  CHECK_EQ(why_not(Paths::kNvlink), "");
  fake::sees_all_devices = false;
  CHECK_CONTAINS(why_not(Paths::kNvlink),
                 "CUDA reports no native atomics, and so no NVLink, between the devices 0000:");
  fake::sees_all_devices = true;
  fake::has_native_atomics = false;
  CHECK_CONTAINS(why_not(Paths::kNvlink), "no native atomics");
  CHECK_EQ(why_not(Paths::kAll), "");
  setenv("NCCL_P2P_LEVEL", "NVL", 1);
  CHECK_CONTAINS(why_not(Paths::kAll), ", which NCCL_P2P_LEVEL=NVL asks for");
  fake::has_native_atomics = true;
  CHECK_EQ(why_not(Paths::kAll), "");
  setenv("NCCL_P2P_LEVEL", "LOC", 1);
  CHECK_CONTAINS(why_not(Paths::kAll),
                 "NCCL_P2P_LEVEL=LOC forbids that devices reach each other's memory");
  unsetenv("NCCL_P2P_LEVEL");
}

TEST(the_users_variables_for_nccl_are_honoured) {
  using Kind = nccl::P2pLimit::Kind;
  const std::vector<std::pair<const char*, Kind>> levels = {
      {"LOC", Kind::kForbidden},  {"NVL", Kind::kNvlinkOnly}, {"PIX", Kind::kNvlinkOnly},
      {"PXB", Kind::kNvlinkOnly}, {"PHB", Kind::kNvlinkOnly}, {"SYS", Kind::kNone},
      {"0", Kind::kForbidden},    {"1", Kind::kNvlinkOnly},   {"3", Kind::kNvlinkOnly},
      {"4", Kind::kNone},         {"9", Kind::kNone},         {"", Kind::kNone},
      {"another", Kind::kNone},
  };
  for (const auto& [level, kind] : levels) {
    setenv("NCCL_P2P_LEVEL", level, 1);
    CHECK_WITH(nccl::p2p_limit().kind == kind, level);
    const std::string named = std::string("NCCL_P2P_LEVEL=") + level;
    CHECK_EQ(nccl::p2p_limit().variable, kind == Kind::kNone ? "" : named);
  }
  setenv("NCCL_P2P_DISABLE", "0", 1);
  CHECK(nccl::p2p_limit().kind == Kind::kNone);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  CHECK_EQ(nccl::p2p_limit().variable, "NCCL_P2P_DISABLE=1");
  with_fused(2, fused_options(), [&](DeviceRank& rank) {
    rank.data.assign(100, 1);
    synchronize(rank.all_reduce().stream);
    CHECK_EQ(rank.data[99], 2.0f);
    CHECK_CONTAINS(rank.device->why_not_fused(), "NCCL_P2P_DISABLE=1 forbids");
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  unsetenv("NCCL_P2P_DISABLE");
  unsetenv("NCCL_P2P_LEVEL");
}

TEST(auto_sends_messages_until_it_is_switched) {
  for (const bool is_fused : {false, true}) {
    nccl::Options options = fused_options();
    options.executor = streams::DeviceExecutor::kAuto;
    if (is_fused) options.auto_is_fused = true;
    with_fused(2, options, [&](DeviceRank& rank) {
      rank.device->connect(kPatience);
      CHECK_EQ(fake::open_comms > 0, !is_fused);
      CHECK_EQ(rank.device->why_not_fused(), "");
      CHECK_EQ(rank.device->shut_down(kPatience), "");
    });
  }
}

TEST(a_rank_that_is_gone_while_it_shares_its_memory_is_named_at_once) {
  const int before = fake::num_allocations;
  ranks::MemoryStore store;
  ranks::on_threads(3, [&](int r) {
    if (r == 1) {
      shm::Group group(store, ranks::group_config(r, 3));
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

// Rank 1 answers whether it reaches all memory, and leaves. Rank 0 is done with its memory then,
// and misses rank 1 where it next needs it.
TEST(a_rank_that_leaves_after_its_part_is_named_only_where_it_is_needed) {
  const int before = fake::num_allocations;
  std::atomic<bool> is_looking{false}, has_left{false};
  ranks::MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    if (r == 1) {
      shm::Group group(store, ranks::group_config(r, 2));
      group.board().join(ranks::settings_of(fused_options()));
      while (!is_looking) std::this_thread::sleep_for(1ms);
      group.board().set_access(DeviceBoard::Access::kNotAll);
      group.close("the end");
      has_left = true;
      return;
    }
    shm::Group own(store, ranks::group_config(r, 2));
    SlowLook group(own, [&] {
      is_looking = true;
      while (!has_left) std::this_thread::sleep_for(1ms);
    });
    RINGCOMM_CHECK(cudaSetDevice(ranks::kDevice));
    nccl::Communicator device(group, ranks::kDevice, fused_options(),
                              nccl::Host{.reclaim = ranks::reclaim});
    check::check_error(ErrorKind::kPeerDied,
                       {"connecting its device with those of all ranks",
                        "rank 1 will not answer, it has closed the group"},
                       [&] { device.connect(kPatience); });
    CHECK_EQ(device.why_not_fused(), "rank 1 cannot reach the memory of all other ranks' devices");
  });
  fake::num_allocations = before;  // memory that others may have open stays
}

TEST(a_kernel_in_a_graph_ends_when_a_rank_dies) {
  const int before = fake::num_allocations;
  std::barrier captured(3);  // a rank that still captures would find that the other one has left
  with_fused(3, fused_options(), [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    const auto graph = rank.captured_all_reduce();
    captured.arrive_and_wait();
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

// Its part of the broadcast is done at once, and is read when the other rank comes to it.
TEST(a_rank_leaves_when_a_late_rank_has_read_its_memory) {
  with_fused(2, fused_options("chain"), [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    rank.data.assign(5000, rank.rank == 0 ? 3 : 0);
    if (rank.rank == 1) std::this_thread::sleep_for(5500ms);
    synchronize(rank.broadcast().stream);
    CHECK_EQ(rank.data[4999], 3.0f);
    CHECK_EQ(rank.device->shut_down(kPatience), "");
    if (rank.rank == 1) return;
    rank.device.reset();
    fake::end_process_of_this_thread();
  });
}

// The other rank's kernel begins late. It has its results if this rank has done its part, and else
// it ends without them.
TEST(a_rank_that_aborts_leaves_when_no_kernel_uses_its_memory) {
  const int before = fake::num_allocations;
  for (const bool is_done : {true, false}) {
    std::atomic<bool> enqueued{false};
    std::thread release([] {
      std::this_thread::sleep_for(2s);
      fake::delayed_rank = -1;
    });
    with_fused(2, fused_options("chain"), [&](DeviceRank& rank) {
      rank.data.assign(5000, 1);
      synchronize(rank.all_reduce().stream);
      rank.data.assign(is_done ? 5000 : 400000, rank.rank == 0 ? 3 : 0);
      if (rank.rank == 1) fake::delayed_rank = 1;
      const cudaStream_t stream = (is_done ? rank.broadcast() : rank.all_reduce()).stream;
      if (rank.rank == 1) {
        enqueued = true;
        synchronize(stream);
        if (is_done) CHECK_EQ(rank.data[4999], 3.0f);
        if (!is_done) CHECK_CONTAINS(rank.failure(), "rank 0 will not answer, it has closed the");
        return;
      }
      if (is_done) synchronize(stream);
      while (!enqueued) std::this_thread::sleep_for(1ms);
      rank.group.close("the end");
      rank.device->abort("the end");
      rank.device.reset();
      fake::end_process_of_this_thread();
    });
    release.join();
  }
  fake::num_allocations = before;
}

TEST(a_rank_that_is_dead_is_not_waited_for_by_one_that_leaves) {
  const int before = fake::num_allocations;
  std::atomic<bool> enqueued{false}, has_left{false};
  with_fused(2, fused_options("chain"), [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    if (rank.rank == 1) fake::delayed_rank = 1;
    rank.broadcast();
    if (rank.rank == 1) {
      enqueued = true;
      while (!has_left) std::this_thread::sleep_for(1ms);
      fake::delayed_rank = -1;
      return;
    }
    while (!enqueued) std::this_thread::sleep_for(1ms);
    rank.group.segment().state(1).process.start_time -= 1;
    const auto start = std::chrono::steady_clock::now();
    rank.device->abort("the end");
    CHECK(std::chrono::steady_clock::now() - start < 4s);
    has_left = true;
  });
  fake::num_allocations = before;
}

TEST(no_rank_begins_to_use_memory_of_one_that_has_left) {
  const int before = fake::num_allocations;
  std::atomic<bool> has_left{false};
  with_fused(2, fused_options("chain"), [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    if (rank.rank == 0) {
      rank.group.close("the end");
      rank.device->abort("the end");
      rank.device.reset();
      fake::end_process_of_this_thread();
      has_left = true;
      return;
    }
    while (!has_left) std::this_thread::sleep_for(1ms);
    check::check_error(ErrorKind::kPeerDied,
                       {"rank 1 in broadcast(", "rank 0 will not answer, it has closed the group"},
                       [&] { rank.broadcast(); });
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
