// Every collective on GPUs that the host plays, checked against the reference.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <random>
#include <vector>

#include "collective_cases.h"
#include "nccl_ranks.h"

namespace ranks {

// One of each collective and size. Devices have no barrier.
std::vector<cases::Case> device_cases(int world_size, std::initializer_list<std::size_t> sizes,
                                      std::mt19937_64& random);

// The rank's part of them; then it leaves.
void check_cases(DeviceRank& rank, const std::vector<cases::Case>& all);

}  // namespace ranks
