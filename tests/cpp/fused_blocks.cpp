#include "fused_blocks.h"

#include <array>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "fused_rows.h"
#include "gpu/fused/eager.h"

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

bool run_eagerly(Machine& machine, const Job& job, const Functions& functions, int lane) {
  if (job.gathers) return fused::EagerGather<Machine>(machine, job, lane).run();
  return functions.run_eager(machine, job, lane);
}

bool run_lane(Machine& machine, const Job& job, int lane) {
  if (!machine.is_mover()) return fused::LaneControl(machine, job, job.script, lane).run();
  fused::move_data(machine);
  return true;
}

}  // namespace

bool run_lanes(const Job& job, const Reduction& reduction, int threads_per_block, Proof* proof,
               int first_thread, std::uint64_t seed) {
  const Functions& functions = functions_of(reduction);
  const bool is_eager = job.script.num_steps == 0;
  const Threads threads =
      is_eager ? Threads{0, threads_per_block} : Threads{threads_per_block, kControlThreads};
  std::deque<Block> blocks;
  for (int l = 0; l < job.num_lanes; ++l) {
    blocks.emplace_back(job.reduction_arguments, threads, first_thread + l * threads.all());
  }
  std::atomic<bool> came{true};
  std::vector<std::thread> running;
  for (int l = 0; l < job.num_lanes; ++l) {
    for (int t = 0; t < threads.all(); ++t) {
      running.emplace_back([&, l, t] {
        const std::uint64_t own = seed + l * threads.all() + t;
        Machine machine(blocks[l], job, functions.carry_out_share, l, t, proof, own);
        const bool has_come =
            is_eager ? run_eagerly(machine, job, functions, l) : run_lane(machine, job, l);
        if (!has_come) came = false;
      });
    }
  }
  for (std::thread& thread : running) thread.join();
  return came;
}

}  // namespace fused_blocks
