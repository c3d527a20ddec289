// Ranks whose collectives are carried out by the fused kernel's source on the host.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "fused_blocks.h"
#include "gpu/streams/device_collectives.h"

namespace fused_ranks {

using namespace ringcomm;
using fused::Job;
using fused::Layout;
using fused_blocks::Proof;

// The memory of all ranks.
struct World {
  World(const Layout& layout, int threads_per_block)
      : layout(layout), threads_per_block(threads_per_block) {
    for (int r = 0; r < layout.world_size; ++r) {
      memory.emplace_back(new (std::align_val_t(fused::kLine)) std::byte[layout.nbytes()]());
    }
  }

  int num_threads() const {  // of a rank
    return layout.num_lanes * (threads_per_block + fused_blocks::kControlThreads);
  }

  struct Delete {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t(fused::kLine));
    }
  };

  const Layout layout;
  const int threads_per_block;
  std::deque<std::unique_ptr<std::byte, Delete>> memory;
  std::unique_ptr<Proof> proof;
};

// A call is done when it returns.
class Rank : public streams::DeviceCollectives {
 public:
  Rank(World& world, int rank, const Selection& selection, std::uint64_t seed)
      : DeviceCollectives(rank, world.layout.world_size, selection), world_(world), random_(seed) {}

  bool gave_up() const { return gave_up_; }
  fused::Control& control() { return control_; }

 private:
  bool goes_by_kernels() const override { return true; }
  void enqueue_program(Call call, const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction, std::chrono::milliseconds) override {
    if (const std::string why = fused::why_not(program, world_.layout); !why.empty()) {
      throw Error(ErrorKind::kInvalidArgument, why);
    }
    Job job;
    std::vector<std::byte> script;
    if (fused::is_eager(call, blocks(), world_.layout) ||
        fused::takes_two_hops(call, blocks(), world_.layout)) {
      if (call.count == 0) return;
      job = fused::make_eager_job(call, blocks(), reduction, world_.layout, rank());
    } else {
      job = fused::make_job(call, program, chunks, reduction, world_.layout, rank());
      const fused::ScriptText text(program, rank());
      script.resize(text.nbytes());
      job.script = text.write(script.data(), script.data());
      job.looks_ahead = random_() % 2 == 0;
    }
    for (int r = 0; r < world_size(); ++r) job.memory[r] = world_.memory[r].get();
    std::vector<std::byte> scratch(job.num_lanes * job.scratch_nbytes);
    job.scratch = scratch.data();
    job.control = &control_;
    const int first_thread = rank() * world_.num_threads();
    // As on devices, kernels differ in how many they have.
    const bool has_fewer = job.element_nbytes == 1 && world_.threads_per_block > 1;
    const int threads_per_block = world_.threads_per_block - (has_fewer ? 1 : 0);
    if (!fused_blocks::run_lanes(job, reduction, threads_per_block, world_.proof.get(),
                                 first_thread, random_())) {
      gave_up_ = true;
    }
    if (world_.proof) world_.proof->record.synchronize(first_thread, world_.num_threads());
  }

  World& world_;
  std::mt19937_64 random_;
  fused::Control control_{};
  bool gave_up_ = false;
};

}  // namespace fused_ranks
