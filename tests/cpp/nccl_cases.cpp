#include "nccl_cases.h"

#include "check.h"

namespace ranks {

std::vector<cases::Case> device_cases(int world_size, std::initializer_list<std::size_t> sizes,
                                      std::mt19937_64& random) {
  std::vector<cases::Case> all;
  for (const ringcomm::Collective collective : cases::kCollectives) {
    if (collective == ringcomm::Collective::kBarrier) continue;
    for (const std::size_t nbytes : sizes) {
      all.push_back(cases::random_case(collective, world_size, nbytes, random));
    }
  }
  return all;
}

void check_cases(DeviceRank& rank, const std::vector<cases::Case>& all) {
  const int world_size = rank.group.world_size;
  for (const cases::Case& c : all) {
    cases::Part part(c, rank.rank, world_size);
    part.fill();
    const ringcomm::nccl::Enqueued enqueued = rank.device->enqueue_behind(
        rank.user.get(),
        [&](ringcomm::Collectives& collectives) { part.call(collectives, kPatience); });
    enqueued.end->make_wait(rank.user.get());
    synchronize(rank.user.get());
    CHECK_WITH(part.right(), c.name(world_size));
  }
  CHECK_EQ(rank.device->shut_down(kPatience), "");
}

}  // namespace ranks
