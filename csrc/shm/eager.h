// The eager way: what is small travels with the announcements of the call.
//
// Every rank writes what it holds of the collective's blocks behind its announcement, and once all
// have announced, each takes what it has been promised out of the others' payloads. Both follow
// from the collective's Contract (plan/collective.h), so that one way serves all collectives: a
// rank writes the blocks that it holds before, and for each block that it is promised it combines,
// in rank order, the payloads of the ranks that contribute to that block. This takes one exchange,
// one rounding and no plan. In a payload every block has its place, but a block that no other rank
// wants is not written there.
#pragma once

#include <cstddef>
#include <vector>

#include "core/chunks.h"
#include "plan/collective.h"
#include "reduce/host.h"
#include "reduce/publish.h"
#include "reduce/types.h"
#include "shm/exchange.h"

namespace ringcomm::shm {

// For one collective, number of blocks and root.
class Eager {
 public:
  Eager(Collective collective, int world_size, int num_blocks, int root, int rank);

  // Elements of the largest payload of any rank. All ranks find the same.
  std::size_t most_count(const Chunks& blocks) const;

  // Elements of this rank's payload.
  std::size_t count(const Chunks& blocks) const;
  // Returns the payload's bytes. hands_over: by publish_message, for readers on other cores.
  std::size_t write(const Chunks& blocks, const Reduction& reduction, std::byte* payload,
                    StoreChoice& stores, bool hands_over) const;
  // While the others write: takes what this rank is promised of itself alone.
  void keep(const Chunks& blocks, const Reduction& reduction) const;
  // Takes the rest, when all have announced.
  void read(const Chunks& blocks, const Reduction& reduction, Exchange& exchange, Pass pass);

 private:
  struct Own {
    int block;
    bool is_wanted;  // by another rank
  };
  // A block that this rank is promised. In the payloads of those that it comes from it lies behind
  // the blocks `before` it, which are the same for all of them.
  struct Promise {
    int block;
    std::vector<int> from;
    std::vector<int> before;
  };

  const int rank_;
  std::vector<std::vector<int>> payloads_;  // the blocks in one, for each different payload
  std::vector<Own> own_;
  std::vector<Promise> promises_;
  std::vector<const void*> inputs_;  // of one block; kept for its memory
};

}  // namespace ringcomm::shm
