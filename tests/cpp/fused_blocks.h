// The fused kernel's source on the host: a thread for each thread of a block.
#pragma once

#include <cstdint>
#include <optional>

#include "gpu/fused/job.h"
#include "gpu/fused/lane.h"
#include "happens_before.h"
#include "reduce/types.h"

namespace fused_blocks {

// What is to be shown of a run.
struct Proof {
  explicit Proof(int num_threads) : record(num_threads) {}

  happens_before::Record record;
  std::optional<ringcomm::fused::Why> left_out;  // orders nothing, though it is waited for
  bool flags_order = true;
};

// The threads of a lane beside those that move its data.
inline constexpr int kControlThreads = 2;

// All lanes of a job, until they have ended. False: a wait was given up. Lanes have
// `threads_per_block` movers, and eager ones that many threads.
bool run_lanes(const ringcomm::fused::Job& job, const ringcomm::Reduction& reduction,
               int threads_per_block, Proof* proof, int first_thread, std::uint64_t seed);

}  // namespace fused_blocks
