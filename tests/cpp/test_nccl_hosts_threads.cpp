// The group on GPUs of several hosts, with CUDA, NCCL and the hosts played: what ranks give each
// other to meet, what they have enqueued, and why the group fails crosses hosts.
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "errors.h"
#include "fake_nccl.h"
#include "hosts.h"
#include "nccl_cases.h"
#include "nccl_ranks.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using ranks::DeviceRank;
using ranks::kPatience;
using ranks::synchronize;

void with_devices_on(const std::vector<int>& host_of,
                     const std::function<void(DeviceRank&)>& body) {
  const Placement placement = Placement::of(host_of);
  const auto network = ranks::MemoryNetwork::make({.longest_delay = 200us});
  ranks::MemoryStore store;
  ranks::on_threads(static_cast<int>(host_of.size()), [&](int r) {
    DeviceRank rank(store, ranks::group_config(r, placement), ranks::device_options("ring", 2),
                    network->connect_hosts());
    body(rank);
  });
  CHECK_EQ(fake::open_comms.load(), 0);
}

}  // namespace

TEST(collectives_cross_hosts) {
  std::mt19937_64 random(1);
  for (const std::vector<int>& host_of : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1, 2}}) {
    const auto all = ranks::device_cases(static_cast<int>(host_of.size()), {40000}, random);
    with_devices_on(host_of, [&](DeviceRank& rank) { ranks::check_cases(rank, all); });
  }
}

TEST(a_time_out_names_the_rank_of_another_host) {
  with_devices_on({0, 0, 1, 1}, [](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    if (rank.rank == 3) {
      while (!rank.group.broken()) std::this_thread::sleep_for(1ms);
      return;
    }
    rank.all_reduce(rank.rank == 0 ? 2s : 60s);
    const std::string text = rank.failure();
    CHECK_CONTAINS(text, "all_reduce(count=5000, dtype=float32, op=sum) #2: Timed out after ");
    CHECK_CONTAINS(text, "waiting for rank 3: rank 3 has enqueued #1");
  });
}

TEST(ranks_that_disagree_name_each_other) {
  with_devices_on({0, 0, 1, 1}, [](DeviceRank& rank) {
    rank.device->connect(kPatience);
    rank.data.assign(rank.rank == 2 ? 4000 : 5000, 1);
    std::string text;
    try {
      rank.all_reduce();
      text = rank.failure();
    } catch (const Error& error) {
      text = error.what();
    }
    // NCCL may see the different lengths first.
    if (text.find("asynchronous") == std::string::npos) {
      CHECK_CONTAINS(text, "rank 2 called all_reduce(count=4000");
    }
  });
}

TEST(a_rank_that_has_left_another_host_is_named) {
  with_devices_on({0, 1}, [](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    rank.device->connect(kPatience);
    if (rank.rank == 1) return rank.group.close("the end");
    rank.all_reduce();
    CHECK_CONTAINS(rank.failure(), "rank 1 will not answer, it has closed the group");
  });
}
