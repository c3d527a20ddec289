// The group on a GPU, with CUDA and NCCL played by the host: making and ending it, all collectives,
// messages, and every way in which it can fail. What streams may reorder is tested in
// test_streams.cpp.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_cases.h"
#include "errors.h"
#include "fake_cuda.h"
#include "memory_store.h"
#include "nccl/communicator.h"
#include "one_mapping.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using nccl::Message;
using ranks::kPatience;
using Timeout = std::chrono::milliseconds;

std::shared_ptr<void> allocate(std::size_t nbytes, cudaStream_t) {
  return {std::malloc(nbytes), std::free};
}

void synchronize(cudaStream_t stream) {
  nccl::Event event;
  RINGCOMM_CHECK(cudaEventRecord(event.get(), stream));
  while (!event.happened()) std::this_thread::sleep_for(100us);
}

// One rank: its shared memory, and its part on the device.
struct Rank {
  Rank(ranks::MemoryStore& store, int rank, int world_size, Algorithm algorithm, int num_channels,
       Timeout timeout = kPatience)
      : group(store, rank, world_size, kPatience),
        device(group, store, /*device=*/0,
               {.algorithm = algorithm,
                .layout = {.num_channels = num_channels,
                           .slices_in_flight = 4,
                           .slice_nbytes = 16 << 10,
                           .min_slice_nbytes = 512}},
               allocate, timeout) {}

  shm::Group group;
  std::vector<float> data;  // outlives the streams
  nccl::Communicator device;
};

void with_ranks(int world_size, Algorithm algorithm, int num_channels,
                const std::function<void(Rank&)>& body) {
  ranks::MemoryStore store;
  ranks::on_threads(world_size, [&](int r) {
    Rank rank(store, r, world_size, algorithm, num_channels);
    body(rank);
  });
}

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

// What the group fails of.
std::string failure_of(const nccl::Communicator& device) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!device.failure() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  return text_of(device.failure());
}

void all_reduce(nccl::Communicator& device, std::vector<float>& data, Timeout timeout) {
  device.all_reduce(data.data(), data.data(), data.size(), {DType::kFloat32, ReduceOp::kSum},
                    timeout);
}

}  // namespace

TEST(collectives_are_right_and_groups_end_in_good_order) {
  std::mt19937_64 random(1);
  for (int world_size = 1; world_size <= 5; ++world_size) {
    const Algorithm algorithm = static_cast<Algorithm>(world_size % 3);
    std::vector<cases::Case> all;
    for (const Collective collective : cases::kCollectives) {
      if (collective == Collective::kBarrier) continue;
      for (std::size_t nbytes : {100, 40000, 200000}) {
        all.push_back(cases::random_case(collective, world_size, nbytes, random));
      }
    }
    with_ranks(world_size, algorithm, 1 + world_size % 3, [&](Rank& rank) {
      for (const cases::Case& c : all) {
        cases::Part part(c, rank.group.rank, world_size);
        part.fill();
        part.call(rank.device, kPatience);
        synchronize(rank.device.stream());
        CHECK_WITH(part.right(), c.name(world_size));
      }
      rank.device.shut_down(kPatience);
      CHECK_CONTAINS(text_of(rank.device.failure()), "closed");
    });
  }
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(all_may_send_first_and_to_each_other) {
  constexpr int n = 4;
  with_ranks(n, Algorithm::kAuto, 1, [&](Rank& rank) {
    const int me = rank.group.rank;
    std::vector<std::vector<int>> sent(n), received(n, std::vector<int>(1000));
    nccl::Event begin;
    std::vector<cudaStream_t> streams;
    auto post = [&](const std::vector<Message>& messages) {
      for (cudaStream_t stream : rank.device.run(messages, begin.get(), kPatience)) {
        streams.push_back(stream);
      }
    };
    std::vector<Message> batch;
    for (int peer = 0; peer < n; ++peer) {
      if (peer == me) continue;
      sent[peer].resize(1000);
      std::iota(sent[peer].begin(), sent[peer].end(), 100 * me + peer);
      batch.push_back({true, peer, sent[peer].data(), 4000});
    }
    for (int peer = 0; peer < n; ++peer) {
      if (peer != me) batch.push_back({false, peer, received[peer].data(), 4000});
    }
    post(batch);
    // One by one, now that all pairs know each other.
    std::vector<int> next(10, me), previous(10);
    post({{true, (me + 1) % n, next.data(), 40}});
    post({{false, (me + n - 1) % n, previous.data(), 40}});
    for (cudaStream_t stream : streams) synchronize(stream);
    for (int peer = 0; peer < n; ++peer) {
      if (peer != me) CHECK_EQ(received[peer][7], 100 * peer + me + 7);
    }
    CHECK_EQ(previous[9], (me + n - 1) % n);
    rank.device.shut_down(kPatience);
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

TEST(a_time_out_names_the_rank_that_did_not_come) {
  with_ranks(3, Algorithm::kRing, 2, [&](Rank& rank) {
    std::vector<float>& data = rank.data;
    data.assign(5000, 1);
    all_reduce(rank.device, data, kPatience);
    synchronize(rank.device.stream());
    if (rank.group.rank != 1) all_reduce(rank.device, data, 300ms);
    if (rank.group.rank != 1) {
      const std::string text = failure_of(rank.device);
      CHECK_CONTAINS(text, "all_reduce(count=5000, dtype=float32, op=sum) #2 Timed out after ");
      CHECK_CONTAINS(text, "waiting for rank 1: rank 1 has enqueued #1");
    }
    while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
    // Aborted streams come to their end, and nothing more is enqueued.
    synchronize(rank.device.stream());
    try {
      all_reduce(rank.device, data, kPatience);
      CHECK(false);
    } catch (const Error& error) {
      CHECK_CONTAINS(error.what(), "Timed out");
    }
  });
}

TEST(ranks_that_disagree_are_told_by_whom) {
  with_ranks(3, Algorithm::kRing, 1, [&](Rank& rank) {
    std::vector<float>& data = rank.data;
    data.assign(rank.group.rank == 2 ? 4000 : 5000, 1);
    std::string text;
    try {
      all_reduce(rank.device, data, kPatience);
      text = failure_of(rank.device);
    } catch (const Error& error) {  // the others have found out before this rank came
      text = error.what();
    }
    // NCCL may see the different lengths first.
    if (text.find("asynchronous") == std::string::npos) {
      CHECK_CONTAINS(text, "rank 2 called all_reduce(count=4000");
    }
  });
}

TEST(who_waits_for_a_rank_that_has_left_is_told) {
  with_ranks(2, Algorithm::kRing, 1, [&](Rank& rank) {
    std::vector<float>& data = rank.data;
    data.assign(5000, 1);
    if (rank.group.rank == 1) {
      rank.group.close("the end");
      return;
    }
    all_reduce(rank.device, data, kPatience);
    CHECK_CONTAINS(failure_of(rank.device), "rank 1 will not answer, it has closed the group");
  });
}

TEST(a_failing_library_breaks_the_group_on_all_ranks) {
  with_ranks(2, Algorithm::kRing, 1, [&](Rank& rank) {
    rank.data.assign(5000, 1);
    if (rank.group.rank == 1) fake::failing_rank = 1;
    std::string text;
    try {
      all_reduce(rank.device, rank.data, kPatience);
      CHECK_EQ(rank.group.rank, 0);
      text = failure_of(rank.device);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kLibrary);
      text = error.what();
    }
    CHECK_CONTAINS(text, "rank 1 in all_reduce(count=5000");
    CHECK_CONTAINS(text, "ncclGroupEnd() failed with NCCL error 2");
    CHECK_CONTAINS(text, "its details");
    if (rank.group.rank == 0) CHECK_CONTAINS(text, "failed on rank 1");
  });
}

TEST(an_aborted_group_ends_what_is_under_way) {
  with_ranks(2, Algorithm::kRing, 1, [&](Rank& rank) {
    std::vector<float>& data = rank.data;
    data.assign(5000, 1);
    if (rank.group.rank == 0) all_reduce(rank.device, data, kPatience);
    rank.device.abort("the end");
    synchronize(rank.device.stream());
    CHECK_EQ(text_of(rank.device.failure()), "the end");
  });
}

TEST(a_group_that_a_rank_does_not_join_times_out) {
  ranks::MemoryStore store;
  ranks::on_threads(2, [&](int r) {
    shm::Group group(store, r, 2, kPatience);
    if (r == 1) return;
    try {
      nccl::Communicator device(group, store, 0,
                                {.algorithm = Algorithm::kRing,
                                 .layout = {.num_channels = 1,
                                            .slices_in_flight = 4,
                                            .slice_nbytes = 16 << 10,
                                            .min_slice_nbytes = 512}},
                                allocate, 200ms);
      CHECK(false);
    } catch (const Error& error) {
      CHECK_CONTAINS(error.what(), "making NCCL communicators on device 0 Timed out");
    }
  });
}

TEST(layouts_without_room_are_refused) {
  ranks::MemoryStore store;
  shm::Group group(store, 0, 1, kPatience);
  for (const streams::Layout& layout :
       {streams::Layout{0, 4, 16 << 10, 512}, streams::Layout{1, 4, 100, 512}}) {
    try {
      nccl::Communicator device(group, store, 0, {.layout = layout}, allocate, kPatience);
      CHECK(false);
    } catch (const Error& error) {
      CHECK_CONTAINS(error.what(), "RINGCOMM_");
    }
  }
}
