#include "fused_blocks.h"

#include <array>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "fused/eager.h"
#include "fused_rows.h"

namespace fused_blocks {
namespace {

// By dtype.
template <int... dtypes>
std::array<FunctionsRow, kNumDTypes> make_table(std::integer_sequence<int, dtypes...>) {
  return {functions_row<static_cast<DType>(dtypes)>()...};
}

const Functions& functions_of(const Reduction& reduction) {
  static const auto kTable = make_table(std::make_integer_sequence<int, kNumDTypes>());
  const KernelKey key = kernel_key(reduction.dtype, effective_op(reduction));
  return kTable[static_cast<std::size_t>(key.dtype)][static_cast<std::size_t>(key.op)];
}

bool run_lane(Machine& machine, const Job& job, const Functions& functions, int lane) {
  if (job.script.num_steps > 0) return fused::Lane(machine, job, lane).run();
  if (job.gathers) return fused::EagerGather<Machine>(machine, job, lane).run();
  return functions.run_eager(machine, job, lane);
}

}  // namespace

bool run_lanes(const Job& job, const Reduction& reduction, int threads_per_block, Proof* proof,
               int first_thread, std::uint64_t seed) {
  const Functions& functions = functions_of(reduction);
  std::deque<Block> blocks;
  for (int l = 0; l < job.num_lanes; ++l) {
    blocks.emplace_back(job.told, threads_per_block, first_thread + l * threads_per_block);
  }
  std::atomic<bool> came{true};
  std::vector<std::thread> running;
  for (int l = 0; l < job.num_lanes; ++l) {
    for (int t = 0; t < threads_per_block; ++t) {
      running.emplace_back([&, l, t] {
        const std::uint64_t own = seed + l * threads_per_block + t;
        Machine machine(blocks[l], job, functions.carry_out_share, l, t, threads_per_block, proof,
                        own);
        if (!run_lane(machine, job, functions, l)) came = false;
      });
    }
  }
  for (std::thread& thread : running) thread.join();
  return came;
}

}  // namespace fused_blocks
