#include "plan/arguments.h"

#include <stdexcept>
#include <string>

namespace ringcomm {
namespace {

void check_index(const char* name, int value, int world_size) {
  constexpr int kMaxWorldSize = 1 << 30;
  if (world_size < 1 || world_size > kMaxWorldSize) {
    throw std::invalid_argument("world_size must be between 1 and " +
                                std::to_string(kMaxWorldSize) + ", got " +
                                std::to_string(world_size));
  }
  if (value < 0 || value >= world_size) {
    throw std::invalid_argument(std::string(name) + " must be between 0 and " +
                                std::to_string(world_size - 1) + " in a group of " +
                                std::to_string(world_size) + ", got " + std::to_string(value));
  }
}

}  // namespace

void check_rank(int rank, int world_size) { check_index("rank", rank, world_size); }

void check_root(int root, int world_size) { check_index("root", root, world_size); }

void check_square(int world_size) {
  constexpr int kLargest = 46340;
  if (world_size > kLargest) {
    throw std::invalid_argument("all_to_all takes a world_size of at most " +
                                std::to_string(kLargest) + ", got " + std::to_string(world_size));
  }
}

void check_ranks_per_host(int ranks_per_host, int world_size) {
  if (ranks_per_host < 1 || world_size % ranks_per_host != 0) {
    throw std::invalid_argument("ranks_per_host must divide world_size, which is " +
                                std::to_string(world_size) + ", got " +
                                std::to_string(ranks_per_host));
  }
}

}  // namespace ringcomm
