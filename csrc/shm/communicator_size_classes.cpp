// What a communicator chooses, found by asking it: no limit stands here a second time.
#include <algorithm>
#include <ranges>

#include "shm/communicator.h"

namespace ringcomm {
namespace {

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                       Collective::kAllGather, Collective::kBroadcast,
                                       Collective::kReduce};
// The choice depends on how many bytes an element has, not on its type.
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr std::uint64_t kMostNbytes = std::uint64_t{1} << 40;

bool has_block_per_rank(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllGather;
}

}  // namespace

// Looks at every power of two, and between two that differ for the first size that is unlike the
// smaller one. Of classes that begin and end between two powers of two one may be missed.
void Communicator::append_size_classes(Collective collective, DType dtype,
                                       std::vector<SizeClass>& found) const {
  const int num_blocks = has_block_per_rank(collective) ? world_size() : 1;
  const std::uint64_t block_nbytes = num_blocks * element_size(dtype);
  const shm::Eager eager(collective, world_size(), num_blocks, 0, rank());
  Chunks blocks(num_blocks);
  Call call;
  call.collective = collective;
  call.dtype = dtype;
  call.reduces = is_reduction(collective);
  const auto set_count = [&](std::uint64_t block_count) {
    for (Chunk& block : blocks) block.count = block_count;
    call.count = block_count * num_blocks;
    call.algorithm = choose(call);
    return call.algorithm != kUsersPlans && fits(eager, blocks, dtype);
  };
  SizeClass one{SizeClass::kNoLimit, SizeClass::kNoLimit, collective, dtype, Path::kByPlan, {}};
  if (may_be_zero_copy(call) &&
      fits(shm::ZeroCopy(collective, world_size(), num_blocks, 0, rank()), /*before=*/0)) {
    const auto counts = std::views::iota(std::uint64_t{1}, kMostNbytes / block_nbytes);
    one.zero_copy_from = block_nbytes * *std::ranges::partition_point(counts, [&](auto count) {
                           return set_count(count) && is_tiny(call);
                         });
  }
  const auto class_of = [&](std::uint64_t block_count) {
    const bool is_eager = set_count(block_count);
    one.path = is_eager ? Path::kWithCall : Path::kByPlan;
    one.algorithm.assign(is_eager ? "" : algorithm_name(collective, call.algorithm));
    return one;
  };
  const auto are_alike = [](const SizeClass& a, const SizeClass& b) {
    return a.path == b.path && a.algorithm == b.algorithm;
  };
  std::uint64_t first = 1;
  SizeClass current = class_of(first);
  for (std::uint64_t end = 2; end * block_nbytes <= kMostNbytes; first = end, end *= 2) {
    while (!are_alike(current, class_of(end))) {
      const auto counts = std::views::iota(first, end + 1);
      first = *std::ranges::partition_point(
          counts, [&](auto count) { return are_alike(current, class_of(count)); });
      current.most_nbytes = (first - 1) * block_nbytes;
      found.push_back(current);
      current = class_of(first);
    }
  }
  found.push_back(current);
}

std::vector<SizeClass> Communicator::size_classes() const {
  std::vector<SizeClass> found;
  for (const Collective collective : kCollectives) {
    for (const DType dtype : kDTypes) append_size_classes(collective, dtype, found);
  }
  return found;
}

}  // namespace ringcomm
