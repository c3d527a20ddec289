// The order in which a reader goes through what another core has just written.
//
// What that core wrote last is still in its first cache, and comes from there at half the rate of
// what it wrote before. A reader that goes from the beginning to the end meets all of that at the
// end. In strands, from several places in turn, such lines are on their way together with others.
#pragma once

#include <algorithm>
#include <cstddef>

namespace ringcomm {

inline constexpr std::size_t kStrands = 4;
// Bytes. Less lies in one first cache altogether. The pieces are short, as only what is on its way
// at one time counts; but memcpy needs longer ones to overwrite lines without fetching them, which
// is the better where they have left the second cache.
inline constexpr std::size_t kLeastInStrands = 64 << 10;
inline constexpr std::size_t kMostCopiedInStrands = 256 << 10;
inline constexpr std::size_t kStrandPiece = 1 << 10;

// Calls visit(begin, count) for pieces that together are all of [0, count), in elements of so many
// bytes.
template <typename Visit>
void in_strands(std::size_t count, std::size_t element_nbytes, Visit&& visit) {
  const std::size_t piece = kStrandPiece / element_nbytes;
  std::size_t done = 0;
  if (count * element_nbytes >= kLeastInStrands) {
    const std::size_t strand = count / kStrands / piece * piece;
    for (std::size_t begin = 0; begin < strand; begin += piece) {
      for (std::size_t s = 0; s < kStrands; ++s) visit(s * strand + begin, piece);
    }
    done = kStrands * strand;
  }
  if (done < count) visit(done, count - done);
}

}  // namespace ringcomm
