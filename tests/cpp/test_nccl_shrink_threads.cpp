// Going on without the dead on devices: what NCCL has of the old group is aborted, and the new
// group has communicators of its own.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "fake_nccl.h"
#include "nccl_ranks.h"
#include "shm/shrink.h"

namespace {

using namespace ringcomm;
using ranks::DeviceRank;
using ranks::kPatience;
using ranks::synchronize;

TEST(survivors_go_on_on_their_devices) {
  ranks::MemoryStore second;
  std::atomic<int> ended = 0;
  ranks::with_devices(4, [&](DeviceRank& rank) {
    rank.data.assign(5000, 1);
    synchronize(rank.all_reduce().stream);
    CHECK_EQ(rank.data[7], 4.0f);
    if (rank.rank == 1) {
      rank.group.close("the end");
      return;
    }
    rank.all_reduce();  // which waits for the lost rank, until that is noticed
    std::unique_ptr<DeviceRank> next;
    const shm::Survivors survivors =
        shm::shrink(rank.group, second, {{}, false, kPatience},
                    [&](const shm::Survivors& found, const std::function<void()>&) {
                      const auto& r = found.ranks;
                      const auto at = std::lower_bound(r.begin(), r.end(), rank.rank) - r.begin();
                      next = std::make_unique<DeviceRank>(second, static_cast<int>(at),
                                                          static_cast<int>(r.size()));
                    });
    CHECK(survivors.ranks == (std::vector<int>{0, 2, 3}));
    rank.device->abort("the group was shrunk");
    CHECK(rank.device->shut_down(kPatience).empty());
    synchronize(rank.device->stream());
    for (++ended; ended < 3;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_EQ(fake::destroyed_comms.load(), 0);
    next->data.assign(5000, 1);
    synchronize(next->all_reduce().stream);
    CHECK_EQ(next->data[7], 3.0f);
    next->device->shut_down(kPatience);
  });
  CHECK_EQ(fake::open_comms.load(), 0);
  CHECK(fake::destroyed_comms > 0);
}

}  // namespace
