// The group on a GPU, with CUDA and NCCL played by the host: all collectives, messages, and every
// way in which they can fail. What streams may reorder is tested in test_streams.cpp.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/poll.h"
#include "errors.h"
#include "fake_cuda.h"
#include "fake_event.h"
#include "fake_graph.h"
#include "fake_nccl.h"
#include "fake_stream.h"
#include "gpu/nccl/enqueued.h"
#include "gpu/nccl/handles.h"
#include "gpu/nccl/watchdog.h"
#include "nccl_cases.h"
#include "nccl_ranks.h"
#include "plan/plan.h"
#include "plan/ring.h"
#include "plans.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using ranks::DeviceRank;
using ranks::kPatience;
using ranks::synchronize;
using ranks::text_of;
using ranks::with_devices;

}  // namespace

TEST(collectives_are_right_and_groups_end_in_good_order) {
  std::mt19937_64 random(1);
  for (int world_size = 1; world_size <= 5; ++world_size) {
    const std::string algorithm = std::vector{"auto", "ring", "direct"}[world_size % 3];
    const auto all = ranks::device_cases(world_size, {100, 40000, 200000}, random);
    with_devices(world_size, algorithm, 1 + world_size % 3, [&](DeviceRank& rank) {
      ranks::check_cases(rank, all);
      CHECK_CONTAINS(text_of(rank.device->failure()->get()), "no error");
      CHECK_CONTAINS(check::error_of(ErrorKind::kClosed, [&] { rank.all_reduce(); }), "closed");
    });
  }
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(all_may_send_first_and_to_each_other) {
  constexpr int n = 4;
  with_devices(n, [&](DeviceRank& rank) {
    const int me = rank.rank;
    std::vector<std::vector<int>> sent(n), received(n, std::vector<int>(1000));
    std::vector<nccl::Enqueued> posted;
    std::vector<PeerMessage> batch;
    for (int peer = 0; peer < n; ++peer) {
      if (peer == me) continue;
      sent[peer].resize(1000);
      std::iota(sent[peer].begin(), sent[peer].end(), 100 * me + peer);
      batch.push_back({true, peer, sent[peer].data(), 4000});
    }
    for (int peer = 0; peer < n; ++peer) {
      if (peer != me) batch.push_back({false, peer, received[peer].data(), 4000});
    }
    posted.push_back(rank.exchange(batch));
    // One by one.
    std::vector<int> next(10, me), previous(10);
    posted.push_back(rank.exchange({{true, (me + 1) % n, next.data(), 40}}));
    posted.push_back(rank.exchange({{false, (me + n - 1) % n, previous.data(), 40}}));
    for (const nccl::Enqueued& enqueued : posted) enqueued.end->make_wait(rank.user.get());
    synchronize(rank.user.get());
    for (int peer = 0; peer < n; ++peer) {
      if (peer != me) CHECK_EQ(received[peer][7], 100 * peer + me + 7);
    }
    CHECK_EQ(previous[9], (me + n - 1) % n);
    rank.device->shut_down(kPatience);
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

// The stream that is named for a batch, on which its future is complete, waits for all of it.
TEST(a_batch_ends_with_its_last_message) {
  with_devices(3, [&](DeviceRank& rank) {
    int value = rank.rank, got[3] = {-1, -1, -1};
    for (int warm_up = 0; warm_up < 2; ++warm_up) {
      if (rank.rank == 0) {
        // The slow one first: the batch's stream is that of the last message.
        const nccl::Enqueued batch =
            rank.exchange({{false, 1, &got[1], 4}, {false, 2, &got[2], 4}});
        synchronize(batch.stream);
        CHECK_EQ(got[1], 1);
        CHECK_EQ(got[2], 2);
      } else {
        if (rank.rank == 1) std::this_thread::sleep_for(300ms);
        synchronize(rank.exchange({{true, 0, &value, 4}}).stream);
      }
      got[1] = got[2] = -1;
    }
    rank.device->shut_down(kPatience);
  });
}

TEST(a_time_out_names_the_rank_that_did_not_come) {
  with_devices(3, "ring", 2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    const nccl::Enqueued first = rank.all_reduce();
    synchronize(first.stream);
    if (rank.rank != 1) {
      rank.all_reduce(300ms);
      const std::string text = rank.failure();
      CHECK_CONTAINS(text, "all_reduce(count=5000, dtype=float32, op=sum) #2: Timed out after ");
      CHECK_CONTAINS(text, "waiting for rank 1: rank 1 has enqueued #1");
      CHECK(first.end->is_confirmed());  // what was done by then is not called in question
    }
    while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
    // Aborted streams come to their end, and nothing more is enqueued.
    synchronize(rank.device->stream());
    CHECK_CONTAINS(check::error_of(ErrorKind::kTimeout, [&] { rank.all_reduce(); }), "Timed out");
  });
}

// NCCL takes no more while a peer does not come, so that the call is still under way.
TEST(a_later_call_raises_the_time_out_that_ended_the_group) {
  with_devices(2, "ring", 1, [&](DeviceRank& rank) {
    rank.data.assign(100'000, 1);
    synchronize(rank.all_reduce().stream);
    if (rank.rank == 0) {
      fake::most_ahead = 3;
      CHECK_CONTAINS(check::error_of(ErrorKind::kTimeout, [&] { rank.all_reduce(300ms); }),
                     "#2: Timed out after ");
      CHECK_CONTAINS(rank.failure(), "waiting for rank 1: rank 1 has enqueued #1");
      fake::most_ahead = std::numeric_limits<int>::max();
    }
    while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
  });
}

// Without a call of its own, which would find out.
TEST(an_idle_rank_notices_that_the_group_is_broken) {
  with_devices(2, [&](DeviceRank& rank) {
    rank.device->connect(kPatience);
    if (rank.rank == 0) rank.group.fail(ErrorKind::kPeerDied, "the end");
    CHECK_CONTAINS(rank.failure(), "the end");
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(ranks_that_disagree_name_each_other) {
  with_devices(3, [&](DeviceRank& rank) {
    rank.data.assign(rank.rank == 2 ? 4000 : 5000, 1);
    std::string text;
    try {
      rank.all_reduce();
      text = rank.failure();
    } catch (const Error& error) {  // the others have found out before this rank came
      text = error.what();
    }
    // NCCL may see the different lengths first.
    if (text.find("asynchronous") == std::string::npos) {
      CHECK_CONTAINS(text, "rank 2 called all_reduce(count=4000");
    }
  });
}

// Not from a rank that has nothing under way, and not where a call of this rank's raises.
TEST(only_results_that_are_lost_are_reported_as_lost) {
  std::atomic<int> num_lost{0};
  ranks::on_lost_results = [&](const Error&) { ++num_lost; };
  with_devices(3, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    while (rank.group.board().completed(rank.rank) < 1) std::this_thread::sleep_for(1ms);
    if (rank.rank == 0) {
      rank.all_reduce(300ms);
      CHECK_CONTAINS(rank.failure(), "Timed out");
    }
    CHECK_CONTAINS(rank.failure(), "Timed out");
  });
  CHECK_EQ(num_lost.load(), 1);
  with_devices(2, [&](DeviceRank& rank) {
    if (rank.rank == 1) {
      while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
      return;
    }
    check::check_error(ErrorKind::kTimeout, {"Timed out"}, [&] { rank.device->connect(200ms); });
  });
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    if (rank.rank == 0) rank.all_reduce();
    rank.device->abort("the end");
  });
  CHECK_EQ(num_lost.load(), 1);
  ranks::on_lost_results = [](const Error&) {};
}

// This program again, of which the child's part is a test that does as a user's program does.
TEST(a_process_ends_before_it_can_use_results_that_are_lost) {
  const char* const child = std::getenv("RINGCOMM_TEST_CHILD");
  if (child != nullptr) {
    if (std::string(child) == "exit") ranks::on_lost_results = nccl::end_process;
    with_devices(2, [&](DeviceRank& rank) {
      rank.data.assign(5000, 1);
      synchronize(rank.all_reduce().stream);
      if (rank.rank == 0) {
        synchronize(rank.all_reduce(300ms).stream);
        std::printf("it goes on\n");
        std::fflush(stdout);
      }
      while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
    });
    return;
  }
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  for (const std::string how : {"exit", "raise"}) {
    const std::string command =
        "RINGCOMM_TEST_CHILD=" + how + " '" + program + "' a_process_ends_before 2>&1";
    FILE* const output = popen(command.c_str(), "r");
    std::string text;
    for (int c = std::fgetc(output); c != EOF; c = std::fgetc(output)) {
      text += static_cast<char>(c);
    }
    const int status = pclose(output);
    CHECK_EQ(text.find("it goes on") == std::string::npos, how == "exit");
    CHECK_EQ(WEXITSTATUS(status), how == "exit" ? 1 : 0);
    if (how == "raise") continue;
    CHECK_CONTAINS(text, "ring: rank 0 in all_reduce(count=5000, dtype=float32, op=sum) #2: Timed");
    CHECK_CONTAINS(text, "waiting for rank 1");
    CHECK_CONTAINS(text, "RINGCOMM_ASYNC_ERRORS=raise");
  }
}

TEST(waiting_for_a_rank_that_has_left_raises) {
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    if (rank.rank == 1) {
      rank.group.close("the end");
      return;
    }
    rank.all_reduce();
    CHECK_CONTAINS(rank.failure(), "rank 1 will not answer, it has closed the group");
  });
}

TEST(a_failing_library_breaks_the_group_on_all_ranks) {
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    if (rank.rank == 1) fake::failing_rank = 1;
    std::string text;
    try {
      rank.all_reduce();
      CHECK_EQ(rank.rank, 0);
      text = rank.failure();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kLibrary);
      text = error.what();
    }
    CHECK_CONTAINS(text, "rank 1 in all_reduce(count=5000");
    CHECK_CONTAINS(text, "ncclGroupEnd() failed with NCCL error 2");
    CHECK_CONTAINS(text, "its details");
    if (rank.rank == 0) CHECK_CONTAINS(text, "failed on rank 1");
  });
}

TEST(a_refused_call_leaves_the_group_as_it_is) {
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(100, 1);
    check::check_error(ErrorKind::kInvalidArgument, {"broadcast", "root"}, [&] {
      rank.device->enqueue_behind(rank.user.get(), [&](Collectives& collectives) {
        collectives.broadcast(rank.data.data(), 100, DType::kFloat32, 5, kPatience);
      });
    });
    synchronize(rank.all_reduce().stream);
    CHECK_EQ(rank.data[99], 2.0f);
    rank.device->shut_down(kPatience);
  });
}

// A user's plans, which are wrong on the ranks that are to have no plans.
nccl::Options with_plans(bool wrong) {
  nccl::Options options = ranks::device_options("auto", 1);
  options.selection.choices[Collective::kAllReduce] = {
      "mine", [wrong](int world_size, int) {
        if (wrong) throw PlanError("it is wrong");
        std::vector<Plan> plans;
        for (int r = 0; r < world_size; ++r) plans.push_back(ring_all_reduce(r, world_size));
        return plans;
      }};
  return options;
}

TEST(a_plan_that_is_wrong_on_all_ranks_leaves_the_group_as_it_is) {
  ranks::MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    DeviceRank rank(store, r, 2, with_plans(true));
    rank.data.assign(100, 1);
    CHECK_CONTAINS(message_of<PlanError>([&] { rank.all_reduce(); }), "it is wrong");
    const nccl::Enqueued sent =
        rank.device->enqueue_behind(rank.user.get(), [&](Collectives& collectives) {
          rank.data[0] = static_cast<float>(r);
          collectives.broadcast(rank.data.data(), 100, DType::kFloat32, 1, kPatience);
        });
    synchronize(sent.stream);
    CHECK_EQ(rank.data[0], 1.0F);
    rank.device->shut_down(kPatience);
  });
}

TEST(a_plan_that_is_wrong_on_one_rank_raises_on_all) {
  ranks::MemoryStore store;
  ranks::on_threads(3, [&](int r) {
    DeviceRank rank(store, r, 3, with_plans(r == 2));
    rank.data.assign(100, 1);
    if (r == 2) {
      CHECK_CONTAINS(message_of<PlanError>([&] { rank.all_reduce(); }), "it is wrong");
      CHECK_CONTAINS(rank.failure(), "the plan for it is refused");
      return;
    }
    std::string text;
    try {
      rank.all_reduce();
      text = rank.failure();
    } catch (const Error& error) {  // another rank has found out before
      text = error.what();
    }
    CHECK_CONTAINS(text, "the plan for it is refused");
  });
}

TEST(an_aborted_group_ends_what_is_under_way) {
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    if (rank.rank == 0) rank.all_reduce();
    rank.device->abort("the end");
    synchronize(rank.device->stream());
    CHECK_EQ(text_of(rank.device->failure()->get()), "the end");
  });
}

// Five groups at once fit the device.
TEST(a_group_takes_at_most_a_fifth_of_the_multiprocessors_by_default) {
  fake::num_multiprocessors = 108;
  for (const bool shares : {true, false}) {
    nccl::Options options = ranks::device_options("ring", 1);
    options.shares_device = shares;
    fake::most_ctas = 0;
    ranks::MemoryStore store;
    ranks::on_threads(2, [&](int r) {
      DeviceRank rank(store, r, 2, options);
      rank.device->connect(kPatience);
      rank.device->shut_down(kPatience);
    });
    CHECK_EQ(fake::most_ctas.load(), shares ? 21 : 32);
  }
  fake::num_multiprocessors = 160;
}

TEST(layouts_without_room_are_refused) {
  ranks::MemoryStore store;
  shm::Group group(store, ranks::group_config(0, 1));
  const auto check_refused = [&](const streams::Layout& layout, const char* why) {
    check::check_error(ErrorKind::kInvalidArgument, {why},
                       [&] { nccl::Communicator device(group, 0, {.layout = layout}, {}); });
  };
  check_refused({0, 4, 16 << 10, 512}, "the number of channels is 0; it must be at least 1");
  check_refused({1, 4, 100, 512}, "slice_nbytes is 100; 1 ranks need at least 512");
}

// cudaSetDevice makes a context, which takes hundreds of megabytes of a GPU.
TEST(no_thread_makes_a_context_on_another_device) {
  fake::contexts.clear();
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    int value = rank.rank;
    synchronize(rank.exchange({{rank.rank == 0, 1 - rank.rank, &value, 4}}).stream);
    rank.device->shut_down(kPatience);
  });
  CHECK_EQ(fake::contexts.size(), 1u);
  CHECK(fake::contexts.contains(ranks::kDevice));
}

TEST(the_thread_that_interrupts_nccl_makes_no_context_elsewhere) {
  fake::contexts.clear();
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(100'000, 1);
    synchronize(rank.all_reduce().stream);
    if (rank.rank == 0) {
      fake::most_ahead = 3;
      CHECK_CONTAINS(check::error_of(ErrorKind::kTimeout, [&] { rank.all_reduce(300ms); }),
                     "Timed out");
      fake::most_ahead = std::numeric_limits<int>::max();
    }
    while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
  });
  CHECK_EQ(fake::contexts.size(), 1u);
  CHECK(fake::contexts.contains(ranks::kDevice));
}

// Works hold the end and the failure, and may outlive all else.
TEST(a_work_may_outlive_its_group) {
  std::vector<nccl::Enqueued> ends(2);
  std::vector<std::shared_ptr<const nccl::Failure>> failures(2);
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    ends[rank.rank] = rank.all_reduce();
    failures[rank.rank] = rank.device->failure();
    if (rank.rank == 0) rank.device->shut_down(kPatience);
    if (rank.rank == 1) {
      synchronize(ends[1].stream);
      rank.device->shut_down(kPatience);
    }
  });
  for (int r = 0; r < 2; ++r) {
    CHECK(ends[r].end->is_confirmed());
    CHECK(failures[r]->get() == nullptr);
  }
  ends.clear();
}

// The thread that captures may not ask about events, nor in global mode any other.
TEST(what_was_not_waited_for_is_swept_while_a_graph_is_captured) {
  using Memory = std::shared_ptr<int>;
  const auto stash = std::make_shared<nccl::TensorStash<Memory>>();
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    if (rank.rank == 1) std::this_thread::sleep_for(300ms);
    const nccl::Enqueued first = rank.all_reduce();
    if (rank.rank == 0) {
      const auto holding = [&] {
        auto held = std::make_unique<nccl::StashedTensors<Memory>>(
            std::vector{std::make_shared<int>(1)}, rank.user.get(), stash);
        held->until(first.end);
        return held;
      };
      auto dropped_later = holding();
      holding().reset();
      const auto graph = fake::begin_capture(rank.user.get(), cudaStreamCaptureModeGlobal);
      stash->sweep();
      dropped_later.reset();
      CHECK(fake::end_capture(graph, rank.user.get()));
      CHECK_EQ(cudaGetLastError(), cudaSuccess);
    }
    synchronize(rank.device->stream());
    rank.device->shut_down(kPatience);
    stash->sweep();
  });
}

// As after a failed assertion in a kernel of the user's: every question is answered with it.
TEST(what_cannot_be_asked_about_any_more_stays_held) {
  using Memory = std::shared_ptr<int>;
  const auto stash = std::make_shared<nccl::TensorStash<Memory>>();
  const nccl::Stream stream;
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = memory;
  {
    nccl::StashedTensors<Memory> holding({std::move(memory)}, stream.get(), stash);
    const auto end = std::make_shared<nccl::EventHandle>();
    end->record(stream.get(), false);
    holding.until(end);
    fake::is_lost = true;
  }
  CHECK(!watched.expired());
  CHECK_EQ(cudaGetLastError(), cudaSuccess);
  fake::is_lost = false;
  synchronize(stream.get());
  stash->sweep();
  CHECK(watched.expired());
}

// Works ask whether the end of several messages, or of several collectives, is confirmed.
TEST(the_end_of_what_belongs_together_is_confirmed) {
  with_devices(2, [&](DeviceRank& rank) {
    const int peer = 1 - rank.rank;
    std::vector<float> sent(10), received(10);
    rank.data.assign(5000, 1);
    rank.all_reduce();
    const nccl::Enqueued ends[] = {
        rank.exchange({{true, peer, sent.data(), 40}, {false, peer, received.data(), 40}}),
        rank.device->end_of_all()};
    for (const nccl::Enqueued& enqueued : ends) {
      const auto is_confirmed = [&] { return enqueued.end->is_confirmed(); };
      CHECK(poll_for(kPatience, Poll(kPollEvery), is_confirmed));
    }
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
}

TEST(durations_are_measured_where_they_are_asked_for) {
  std::barrier all(2);
  with_devices(2, [&](DeviceRank& rank) {
    using nccl::Timing;
    const int peer = 1 - rank.rank;
    std::vector<float> sent(10), received(10);
    const ringcomm::PeerMessage send{true, peer, sent.data(), 40};
    const ringcomm::PeerMessage recv{false, peer, received.data(), 40};
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    CHECK(rank.all_reduce().start == nullptr);
    CHECK(rank.exchange({send, recv}).start == nullptr);
    CHECK_EQ(fake::num_timed_events.load(), 0);
    all.arrive_and_wait();

    std::atomic<bool> goes_on{false};
    const auto timed = rank.device->enqueue_behind(
        rank.user.get(),
        [&](Collectives& collectives) {
          rank.device->stream()->push([&] {
            while (!goes_on) std::this_thread::sleep_for(1ms);
            std::this_thread::sleep_for(30ms);
          });
          collectives.all_reduce(rank.data.data(), rank.data.data(), rank.data.size(),
                                 {DType::kFloat32, ReduceOp::kSum}, kPatience);
        },
        Timing::kOn);
    CHECK(!timed.end->milliseconds_since(*timed.start));
    goes_on = true;
    synchronize(timed.stream);
    CHECK(timed.end->milliseconds_since(*timed.start).value() >= 30);

    const auto nothing = [](std::size_t, cudaStream_t) {};
    for (const auto& messages : {std::vector{rank.rank == 0 ? send : recv}, {send, recv}}) {
      const auto moved =
          rank.device->exchange(rank.user.get(), messages, kPatience, nothing, Timing::kOn);
      synchronize(moved.stream);
      CHECK(moved.end->milliseconds_since(*moved.start).value() >= 0);
    }
    // What is captured happens at every replay.
    auto graph = fake::begin_capture(rank.user.get());
    const auto captured = rank.device->enqueue_behind(
        rank.user.get(),
        [&](Collectives& collectives) {
          collectives.all_reduce(rank.data.data(), rank.data.data(), rank.data.size(),
                                 {DType::kFloat32, ReduceOp::kSum}, kPatience);
        },
        Timing::kOn);
    CHECK(captured.start == nullptr);
    captured.end->make_wait(rank.user.get());
    CHECK(fake::end_capture(graph, rank.user.get()));
    graph.reset();
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
}

TEST(streams_have_the_priority_that_is_asked_for) {
  for (const bool is_high : {true, false}) {
    nccl::Options options = ranks::device_options("ring", 2);
    options.is_high_priority_stream = is_high;
    ranks::MemoryStore store;
    std::barrier all(2);
    ranks::on_threads(2, [&](int r) {
      DeviceRank rank(store, r, 2, options);
      rank.data.assign(5000, 1);
      synchronize(rank.all_reduce().stream);
      const ringcomm::PeerMessage message{r == 0, 1 - r, rank.data.data(), 40};
      synchronize(rank.exchange({message}).stream);
      // Two for each of two channels and for the pair; the user's is one of DeviceRank's own.
      all.arrive_and_wait();
      const std::multiset<int> priorities = fake::priorities();
      CHECK_EQ(priorities.count(0), is_high ? 0u : 12u);
      all.arrive_and_wait();
      rank.device->shut_down(kPatience);
    });
  }
}

// Not torch's, whose pool may be a graph's at the time.
TEST(memory_is_cudas_own_and_tried_for_again_once_the_allocators_cache_is_empty) {
  const int before = fake::num_allocations;
  with_devices(1, [&](DeviceRank& rank) {
    fake::has_room = false;
    check::check_error(ErrorKind::kLibrary, {"cudaMalloc"}, [] { nccl::allocate(100, {[] {}}); });
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    rank.device->shut_down(kPatience);
    const auto memory = nccl::allocate(100, {ranks::reclaim});
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_EQ(fake::num_allocations.load(), before + 1);
  });
  with_devices(2, [&](DeviceRank& rank) {
    if (rank.rank == 0) fake::has_room = false;
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    CHECK(fake::has_room);
    CHECK(fake::num_allocations > before);
    int value = rank.rank;
    synchronize(rank.exchange({{rank.rank == 0, 1 - rank.rank, &value, 4}}).stream);
    rank.device->shut_down(kPatience);
  });
  CHECK_EQ(fake::num_allocations.load(), before);
}

TEST(what_an_operation_uses_is_held_until_it_ends) {
  using Memory = std::shared_ptr<std::vector<float>>;
  const auto stash = std::make_shared<nccl::TensorStash<Memory>>();
  fake::uses_of_destroyed_streams = 0;
  std::weak_ptr<std::vector<float>> waited_for, dropped, elsewhere;
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    if (rank.rank == 1) {
      std::this_thread::sleep_for(200ms);
      for (int i = 0; i < 3; ++i) rank.all_reduce();
      rank.device->shut_down(kPatience);
      return;
    }
    const auto launch = [&](std::weak_ptr<std::vector<float>>& watched) {
      auto memory = std::make_shared<std::vector<float>>(1);
      watched = memory;
      auto holding = std::make_unique<nccl::StashedTensors<Memory>>(std::vector{std::move(memory)},
                                                                    rank.user.get(), stash);
      holding->until(rank.all_reduce().end);
      return holding;
    };
    nccl::Stream other;
    const auto first = launch(waited_for), third = launch(elsewhere);
    launch(dropped).reset();
    first->make_wait(rank.user.get());
    third->make_wait(other.get());
    CHECK(waited_for.expired());  // its next user comes behind the wait
    CHECK(!dropped.expired());
    CHECK(!elsewhere.expired());  // its stream does not wait
    stash->sweep();
    CHECK(!dropped.expired());
    synchronize(rank.user.get());
    synchronize(other.get());
    rank.device->shut_down(kPatience);
    stash->sweep();
    CHECK(dropped.expired());
  });
  CHECK(elsewhere.expired());
  // Streams end with their group, and are not used later.
  CHECK_EQ(fake::uses_of_destroyed_streams.load(), 0);
}
