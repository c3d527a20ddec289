#include "gpu/nccl/fused_executor.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "gpu/fused/launch.h"
#include "gpu/nccl/handles.h"

namespace ringcomm::nccl {

FusedExecutor::FusedExecutor(int rank, std::unique_ptr<FusedMemory> memory, Reclaim reclaim)
    : rank_(rank), memory_(std::move(memory)), reclaim_(std::move(reclaim)) {
  check(fused::load_kernels(&arch_), "loading the fused kernels");
}

bool FusedExecutor::takes(const Program& program) const {
  return fused::why_not(program, memory_->layout()).empty();
}

void FusedExecutor::run(const Call& call, const Program& program, std::span<const Chunk> chunks,
                        const Reduction& reduction, cudaStream_t stream) {
  fused::Job job = fused::make_job(call, program, chunks, reduction, memory_->layout(), rank_);
  job.script = script_of(program);
  job.scratch = scratch_of(job.num_lanes * job.scratch_nbytes);
  find_memory(job);
  check(fused::launch(job, reduction, arch_, stream), "launching the fused kernel");
}

void FusedExecutor::run_eagerly(const Call& call, std::span<const Chunk> blocks,
                                const Reduction& reduction, cudaStream_t stream) {
  if (call.count == 0) return;
  fused::Job job = fused::make_eager_job(call, blocks, reduction, memory_->layout(), rank_);
  find_memory(job);
  check(fused::launch_eager(job, reduction, stream), "launching the eager kernel");
}

void FusedExecutor::find_memory(fused::Job& job) const {
  for (int r = 0; r < job.layout.world_size; ++r) job.memory[r] = memory_->of(r);
  job.control = &memory_->control();
}

// The script is copied on a stream of its own: if a capture recorded the copy, the script would be
// there only after a replay.
const fused::Script& FusedExecutor::script_of(const Program& program) {
  const auto [found, is_new] = scripts_.try_emplace(&program);
  if (!is_new) return found->second.script;
  try {
    const fused::ScriptText text(program, rank_);
    auto memory = allocate(std::max<std::size_t>(text.nbytes(), 1), reclaim_);
    std::vector<std::byte> bytes(text.nbytes());
    const fused::Script script =
        text.write(bytes.data(), static_cast<const std::byte*>(memory.get()));
    const RelaxedCapture relaxed;
    const Stream stream;
    RINGCOMM_CHECK(cudaMemcpyAsync(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                                   stream.get()));
    RINGCOMM_CHECK(cudaStreamSynchronize(stream.get()));
    found->second = {std::move(memory), script};
  } catch (...) {
    scripts_.erase(found);
    throw;
  }
  return found->second.script;
}

std::byte* FusedExecutor::scratch_of(std::size_t nbytes) {
  if (nbytes > scratch_nbytes_) {
    scratch_.push_back(allocate(nbytes, reclaim_));
    scratch_nbytes_ = nbytes;
  }
  return scratch_.empty() ? nullptr : static_cast<std::byte*>(scratch_.back().get());
}

void FusedExecutor::give_up() {
  std::atomic_ref(memory_->control().aborted).store(1, std::memory_order_relaxed);
}

std::string FusedExecutor::describe_waits(const Members& members) const {
  std::vector<int> awaited;
  for (std::uint32_t& word : memory_->control().waits_for) {
    const auto peer = static_cast<int>(std::atomic_ref(word).load(std::memory_order_relaxed)) - 1;
    const bool is_rank = peer >= 0 && peer < memory_->layout().world_size;
    if (is_rank && std::ranges::find(awaited, peer) == awaited.end()) awaited.push_back(peer);
  }
  std::ranges::sort(awaited);
  return awaited.empty() ? "" : " Its device waits for " + members.names(awaited) + ".";
}

}  // namespace ringcomm::nccl
