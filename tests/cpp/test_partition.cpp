// The share of every thread of a grid: all elements exactly once, packs aligned.
#include <vector>

#include "check.h"
#include "reduce/partition.h"

namespace {

using namespace ringcomm;

// How often the threads of a grid of `num_blocks` x `num_threads` visit each element.
std::vector<int> visits(const Partition& p, std::size_t element_bytes, std::size_t num_blocks,
                        std::size_t num_threads) {
  std::vector<int> visited(p.count);
  const std::size_t per_pack = kPackBytes / element_bytes;
  for (std::size_t block = 0; block < num_blocks; ++block) {
    for (std::size_t thread = 0; thread < num_threads; ++thread) {
      const Worker w{block, num_blocks, thread, num_threads};
      const Stride packs = body_packs(p, w);
      for (std::size_t i = packs.begin; i < packs.end; i += packs.stride) {
        for (std::size_t j = 0; j < per_pack; ++j) ++visited.at(p.head + i * per_pack + j);
      }
      const Stride singles = single_elements(p, w);
      for (std::size_t i = singles.begin; i < singles.end; i += singles.stride) {
        ++visited.at(single_element(p, i));
      }
    }
  }
  return visited;
}

}  // namespace

TEST(each_element_belongs_to_one_thread) {
  for (std::size_t element_bytes : {1, 2, 4, 8}) {
    for (std::size_t misalignment = 0; misalignment < kPackBytes; ++misalignment) {
      for (std::size_t count = 0; count <= 4100; count += count < 300 ? 1 : 37) {
        const Partition p = make_partition(4096 + misalignment, true, element_bytes, count);
        CHECK_EQ(visits(p, element_bytes, 3, 8), std::vector<int>(count, 1));
      }
    }
  }
}

TEST(packs_are_aligned_and_nothing_that_fits_in_one_is_left_out) {
  for (std::size_t element_bytes : {1, 2, 4, 8}) {
    for (std::size_t misalignment = 0; misalignment < kPackBytes; misalignment += element_bytes) {
      for (std::size_t count = 0; count <= 4100; ++count) {
        const Partition p = make_partition(4096 + misalignment, true, element_bytes, count);
        const std::size_t per_pack = kPackBytes / element_bytes;
        if (p.num_packs > 0) CHECK_EQ((misalignment + p.head * element_bytes) % kPackBytes, 0u);
        if (count >= 2 * per_pack) {
          CHECK(p.head < per_pack);
          CHECK(p.count - p.body_end < per_pack);
        }
      }
    }
  }
}

TEST(pointers_that_cannot_be_aligned_have_no_packs) {
  CHECK_EQ(make_partition(4096, false, 4, 1000).num_packs, 0u);
  CHECK_EQ(make_partition(4096, false, 4, 1000).head, 1000u);
  CHECK_EQ(make_partition(4098, true, 4, 1000).num_packs, 0u);
}
