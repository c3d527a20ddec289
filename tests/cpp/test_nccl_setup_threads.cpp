// How ranks connect their GPUs and part again, with CUDA and NCCL played by the host: first contact
// in any order and with ranks that do not come, and graphs that outlive their group.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "fake_cuda.h"
#include "fake_graph.h"
#include "fake_nccl.h"
#include "fake_stream.h"
#include "nccl_ranks.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using ranks::DeviceRank;
using ranks::kPatience;
using ranks::synchronize;
using ranks::text_of;
using ranks::with_devices;

}  // namespace

// NCCL connects an edge in ncclGroupEnd, where the sender would wait for the receiver.
TEST(two_ranks_may_both_send_first_at_first_contact) {
  with_devices(2, [&](DeviceRank& rank) {
    const int peer = 1 - rank.rank;
    std::vector<int> sent(100, rank.rank), received(100);
    rank.exchange({{true, peer, sent.data(), 400}});
    const nccl::Enqueued got = rank.exchange({{false, peer, received.data(), 400}});
    synchronize(got.stream);
    CHECK_EQ(received[99], peer);
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  CHECK_EQ(fake::open_comms.load(), 0);
  CHECK_EQ(fake::connecting.load(), 0);
}

// Each rank meets the next one while the previous one wants to meet it.
TEST(a_ring_of_first_contacts_is_no_deadlock) {
  constexpr int n = 5;
  with_devices(n, [&](DeviceRank& rank) {
    int sent = rank.rank, received = -1;
    rank.exchange({{true, (rank.rank + 1) % n, &sent, 4}});
    synchronize(rank.exchange({{false, (rank.rank + n - 1) % n, &received, 4}}).stream);
    CHECK_EQ(received, (rank.rank + n - 1) % n);
    rank.device->shut_down(kPatience);
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

// A rank that is busy elsewhere, or idle, answers from its watchdog.
// What a group of eight holds: a communicator for each channel, the edges of its plans, scratch and
// what connected them.
TEST(only_edges_that_plans_use_are_connected_and_no_communicator_is_kept_for_nothing) {
  constexpr int n = 8, kChannels = 2;
  const int allocations = fake::num_allocations;
  fake::num_edges = fake::open_comms = 0;
  std::atomic<int> num_there{0};
  const auto meet = [&](int round) {
    ++num_there;
    while (num_there < n * round) std::this_thread::sleep_for(1ms);
  };
  with_devices(n, "ring", kChannels, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    meet(1);
    CHECK_EQ(fake::open_comms.load(), n * kChannels);
    CHECK_EQ(fake::num_edges.load(), n * kChannels * 2 * 2);  // two neighbours, two directions
    CHECK_EQ(fake::num_allocations - allocations, n * (kChannels + 1));
    meet(2);
    for (int i = 0; i < 2; ++i) {
      const nccl::Enqueued enqueued =
          rank.device->enqueue_behind(rank.user.get(), [&](Collectives& collectives) {
            collectives.broadcast(rank.data.data(), 5000, DType::kFloat32, i, kPatience);
          });
      synchronize(enqueued.stream);
    }
    meet(3);
    // The root of a direct broadcast goes to all. A leaf exchanges nothing with another.
    CHECK(fake::num_edges.load() <= n * kChannels * (n - 1) * 2);
    rank.device->connect(kPatience);
    meet(4);
    CHECK_EQ(fake::num_edges.load(), n * kChannels * (n - 1) * 2);
    synchronize(rank.all_reduce().stream);
    CHECK_EQ(rank.data[4999], 64.0f);
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  CHECK_EQ(fake::open_comms.load(), 0);
  CHECK_EQ(fake::num_allocations.load(), allocations);
}

// Each waits for an edge that the other does not connect.
TEST(ranks_that_disagree_before_they_are_connected_raise) {
  with_devices(3, [&](DeviceRank& rank) {
    rank.data.assign(300, 1);
    std::string text;
    try {
      if (rank.rank == 2) {
        rank.device->enqueue_behind(rank.user.get(), [&](Collectives& collectives) {
          collectives.broadcast(rank.data.data(), 300, DType::kFloat32, 0, kPatience);
        });
      } else {
        rank.all_reduce();
      }
      text = rank.failure();
    } catch (const Error& error) {
      text = error.what();
    }
    CHECK_CONTAINS(text, "rank 2 called broadcast(count=300");
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(what_goes_to_other_ranks_than_before_cannot_be_captured) {
  with_devices(4, "ring", 1, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    std::vector<int> sent(4, rank.rank), received(4);
    std::vector<Input> inputs;
    std::vector<Output> outputs;
    for (int r = 0; r < 4; ++r) {
      inputs.push_back({&sent[r], 1});
      outputs.push_back({&received[r], 1});
    }
    const auto all_to_all = [&] {
      return rank.device->enqueue_behind(rank.user.get(), [&](Collectives& collectives) {
        collectives.all_to_all(inputs, outputs, DType::kInt32, kPatience);
      });
    };
    auto graph = fake::begin_capture(rank.user.get());
    check::check_error(ErrorKind::kInvalidArgument,
                       {"a collective that goes to other ranks than those before it", "captured"},
                       all_to_all);
    fake::end_capture(graph, rank.user.get());
    graph.reset();
    synchronize(all_to_all().stream);
    for (int r = 0; r < 4; ++r) CHECK_EQ(received[r], r);
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(a_message_needs_no_call_of_the_peer_to_be_enqueued) {
  std::atomic<bool> enqueued{false};
  with_devices(2, [&](DeviceRank& rank) {
    int value = 7;
    if (rank.rank == 0) {
      rank.exchange({{true, 1, &value, 4}});
      enqueued = true;
    } else {
      while (!enqueued) std::this_thread::sleep_for(1ms);
      value = 0;
    }
    if (rank.rank == 1) synchronize(rank.exchange({{false, 0, &value, 4}}).stream);
    CHECK_EQ(value, 7);
    rank.device->shut_down(kPatience);
  });
}

TEST(messages_need_no_rank_but_the_two) {
  with_devices(3, [&](DeviceRank& rank) {
    if (rank.rank == 2) return;
    int value = rank.rank;
    synchronize(rank.exchange({{rank.rank == 0, 1 - rank.rank, &value, 4}}).stream);
    CHECK_EQ(value, 0);
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

// What is on the caller's stream may need the peer, which is waiting on the host to be connected.
TEST(ranks_connect_while_their_streams_wait) {
  std::promise<void> connected;
  const std::shared_future<void> other_has_connected = connected.get_future().share();
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(100, 1);
    if (rank.rank == 0) rank.user.get()->push([&] { other_has_connected.wait(); });
    const nccl::Enqueued enqueued = rank.all_reduce();
    if (rank.rank == 1) connected.set_value();
    synchronize(enqueued.stream);
    CHECK_EQ(rank.data[99], 2.0f);
    rank.device->shut_down(kPatience);
  });
}

TEST(a_group_that_a_rank_does_not_join_times_out) {
  with_devices(3, [&](DeviceRank& rank) {
    if (rank.rank == 1) {
      while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
      return;
    }
    check::check_error(ErrorKind::kTimeout, {"rank", "Timed out"},
                       [&] { rank.device->connect(200ms); });
    const std::string text = rank.failure();
    CHECK_CONTAINS(text, "connecting its device with those of all ranks: Timed out after 0.");
    CHECK_CONTAINS(text, "waiting for rank 1, which has not come");
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(a_rank_that_is_gone_before_it_joins_is_named_at_once) {
  with_devices(2, [&](DeviceRank& rank) {
    if (rank.rank == 1) {
      rank.group.close("the end");
      return;
    }
    check::check_error(ErrorKind::kPeerDied, {"rank 1 will not answer, it has closed the group"},
                       [&] { rank.device->connect(kPatience); });
  });
}

TEST(a_rank_that_is_gone_while_it_connects_is_named_at_once) {
  ranks::MemoryStore store;
  ranks::on_threads(3, [&](int r) {
    if (r == 1) {
      shm::Group group(store, ranks::group_config(r, 3));
      group.board().join(ranks::settings_of(ranks::device_options("ring", 1)));
      group.close("the end");
      return;
    }
    DeviceRank rank(store, r, 3);
    check::check_error(ErrorKind::kPeerDied, {"rank 1 will not answer, it has closed the group"},
                       [&] { rank.device->connect(kPatience); });
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(a_peer_that_is_gone_while_it_connects_is_named_by_the_first_message) {
  ranks::MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    if (r == 1) {
      shm::Group group(store, ranks::group_config(r, 2));
      group.board().send_unique_id(0, {});
      group.close("the end");
      return;
    }
    DeviceRank rank(store, r, 2);
    int value = 0;
    check::check_error(ErrorKind::kPeerDied, {"rank 1 will not answer, it has closed the group"},
                       [&] { rank.exchange({{true, 1, &value, 4}}); });
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(a_peer_that_has_no_device_yet_is_named_by_the_first_message) {
  ranks::MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    if (r == 1) {
      shm::Group group(store, ranks::group_config(r, 2));
      while (!group.broken()) std::this_thread::sleep_for(1ms);
      return;
    }
    DeviceRank rank(store, r, 2);
    int value = 0;
    check::check_error(ErrorKind::kTimeout,
                       {"send(nbytes=4, peer=1), connecting to rank 1: Timed out",
                        "waiting for rank 1, which has not come"},
                       [&] { rank.exchange({{true, 1, &value, 4}}, 200ms); });
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

// The peer dies between making communicators and connecting them: a thread waits inside NCCL.
TEST(a_thread_inside_nccl_is_interrupted_before_anything_is_freed) {
  fake::frees_under_threads = 0;
  fake::failing_rank = 1;  // its ncclGroupEnd returns at once, and no edge is connected
  with_devices(2, [&](DeviceRank& rank) {
    try {
      rank.device->connect(kPatience);
      CHECK(false);
    } catch (const Error& error) {
      CHECK_CONTAINS(error.what(), "rank 1 in connecting its device");
      CHECK_CONTAINS(error.what(), "ncclGroupEnd() failed with NCCL error 2");
    }
  });
  CHECK_EQ(fake::frees_under_threads.load(), 0);
  CHECK_EQ(fake::connecting.load(), 0);
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(an_abort_ends_a_rank_that_is_connecting) {
  with_devices(2, [&](DeviceRank& rank) {
    if (rank.rank == 1) {
      while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
      return;
    }
    std::thread aborter([&] {
      std::this_thread::sleep_for(100ms);
      rank.device->abort("the end");
    });
    check::check_error(ErrorKind::kClosed, {"the end"}, [&] { rank.device->connect(kPatience); });
    aborter.join();
    rank.group.fail(ErrorKind::kClosed, "the end");
  });
}

TEST(a_captured_collective_is_carried_out_at_every_replay) {
  with_devices(3, "ring", 2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    const auto graph = rank.captured_all_reduce();
    graph->launch(rank.user.get());
    graph->launch(rank.user.get());
    synchronize(rank.user.get());
    CHECK_EQ(rank.data[4999], 9.0f);
  });
}

TEST(what_connects_ranks_cannot_be_captured) {
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    const auto graph = fake::begin_capture(rank.user.get());
    check::check_error(ErrorKind::kInvalidArgument, {"first collective", "captured"},
                       [&] { rank.all_reduce(); });
    int value = 0;
    check::check_error(ErrorKind::kInvalidArgument, {"first message", "captured"},
                       [&] { rank.exchange({{true, 1 - rank.rank, &value, 4}}); });
    fake::end_capture(graph, rank.user.get());
    synchronize(rank.all_reduce().stream);
    CHECK_EQ(rank.data[0], 2.0f);
    rank.device->shut_down(kPatience);
  });
}

// Both use the same scratch; neither is enqueued on a stream that the other is ordered with.
TEST(replays_and_other_calls_take_turns) {
  for (int round = 0; round < 10; ++round) {
    with_devices(3, "ring", 1, [&](DeviceRank& rank) {
      std::vector<float> captured(20000, 1), eager(20000, 2);
      rank.data.swap(captured);
      rank.device->connect(kPatience);
      const auto graph = rank.captured_all_reduce();
      nccl::Stream beside, third;
      rank.data.swap(captured);  // as `captured` again
      rank.data.swap(eager);
      for (int i = 0; i < 4; ++i) {
        graph->launch(i % 2 ? beside.get() : rank.user.get());
        rank.all_reduce();
      }
      synchronize(rank.user.get());
      synchronize(beside.get());
      synchronize(rank.device->stream());
      CHECK_EQ(captured[19999], 81.0f);
      CHECK_EQ(captured[0], 81.0f);
      CHECK_EQ(rank.data[19999], 162.0f);
      CHECK_EQ(rank.data[0], 162.0f);
      rank.data.swap(eager);
    });
  }
}

TEST(a_graph_that_outlives_its_group_is_named_and_nothing_hangs) {
  fake::waits_for_graphs = fake::frees_under_graphs = 0;
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    const auto graph = rank.captured_all_reduce();
    graph->launch(rank.user.get());
    synchronize(rank.user.get());
    const std::string left = rank.device->shut_down(kPatience);
    CHECK_CONTAINS(left, "1 CUDA graph that was captured with operations of this group still");
    CHECK_CONTAINS(left, "Delete the graphs before the process group is destroyed");
    rank.device.reset();
    graph->launch(rank.user.get());  // all that it refers to is still there
    synchronize(rank.user.get());
    CHECK_EQ(rank.data[0], 4.0f);
  });
  CHECK_EQ(fake::waits_for_graphs.load(), 0);
  CHECK_EQ(fake::frees_under_graphs.load(), 0);
}

TEST(a_graph_of_one_rank_keeps_no_other_rank_waiting) {
  fake::waits_for_graphs = fake::frees_under_graphs = 0;
  std::vector<std::shared_ptr<fake::Graph>> graphs(2);
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    graphs[rank.rank] = rank.captured_all_reduce();
    if (rank.rank == 1) graphs[1].reset();
    CHECK_EQ(rank.device->shut_down(kPatience).empty(), rank.rank == 1);
  });
  CHECK_EQ(fake::waits_for_graphs.load(), 0);
}

TEST(graphs_that_are_gone_in_time_leave_nothing) {
  const int before = fake::open_comms;
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    auto graph = rank.captured_all_reduce();
    graph.reset();
    CHECK_EQ(rank.device->shut_down(kPatience), "");
  });
  CHECK_EQ(fake::open_comms.load(), before);
}

// Nothing is enqueued but by replays, which the group does not see.
TEST(a_rank_that_dies_during_replays_is_noticed) {
  fake::waits_for_graphs = fake::frees_under_graphs = 0;
  with_devices(3, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    const auto graph = rank.captured_all_reduce();
    if (rank.rank == 1) {
      rank.group.close("the end");
      return;
    }
    graph->launch(rank.user.get());
    CHECK_CONTAINS(rank.failure(), "rank 1 will not answer, it has closed the group");
    synchronize(rank.user.get());
    rank.device.reset();
  });
  CHECK_EQ(fake::waits_for_graphs.load(), 0);
}

TEST(a_rank_that_leaves_in_good_order_fails_no_graph_that_exists) {
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    const auto graph = rank.captured_all_reduce();
    if (rank.rank == 1) {
      rank.group.board().close(DeviceBoard::Closing::kHeld);
      rank.group.close("the end");
      return;
    }
    std::this_thread::sleep_for(1500ms);  // longer than what a peer has to finish its part
    CHECK_CONTAINS(text_of(rank.device->failure()->get()), "no error");
  });
}

TEST(a_group_that_fails_while_a_graph_exists_ends_what_is_under_way) {
  fake::waits_for_graphs = fake::frees_under_graphs = 0;
  with_devices(2, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    const auto graph = rank.captured_all_reduce();
    if (rank.rank == 0) {
      rank.all_reduce(200ms);
      CHECK_CONTAINS(rank.failure(), "waiting for rank 1");
    }
    while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
    synchronize(rank.device->stream());
    rank.device.reset();
  });
  CHECK_EQ(fake::waits_for_graphs.load(), 0);
  CHECK_EQ(fake::frees_under_graphs.load(), 0);
}

TEST(settings_that_differ_are_named) {
  const int before = fake::open_comms;
  ranks::MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    DeviceRank rank(store, r, 2, "ring", 1 + r);
    check::check_error(ErrorKind::kMismatch, {"channels must be the same on all ranks"},
                       [&] { rank.device->connect(kPatience); });
  });
  CHECK_EQ(fake::open_comms.load(), before);
}
