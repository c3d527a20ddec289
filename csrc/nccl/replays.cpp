#include "nccl/replays.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace ringcomm::nccl {
namespace {

constexpr std::size_t kMostGraphs = 64;
constexpr std::size_t kMostKinds = 256;

}  // namespace

GraphCapture::GraphCapture(cudaStream_t stream) : stream_(stream) {
  RINGCOMM_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
}

GraphCapture::~GraphCapture() {
  if (!ended_) cudaStreamEndCapture(stream_, &graph_);
  if (graph_ != nullptr) cudaGraphDestroy(graph_);
}

cudaGraph_t GraphCapture::end() {
  ended_ = true;
  RINGCOMM_CHECK(cudaStreamEndCapture(stream_, &graph_));
  return graph_;
}

bool Replays::knows(const Call& call) {
  const auto same = [&call](const Call& kind) { return kind.matches(call); };
  if (std::any_of(kinds_.begin(), kinds_.end(), same)) return true;
  if (kinds_.size() == kMostKinds) kinds_.clear();
  kinds_.push_back(call);
  return false;
}

Replay* Replays::find_by_key() {
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [this](const auto& known) { return known.first == key_; });
  if (found == known_.end()) return nullptr;
  known_.splice(known_.begin(), known_, found);
  return &known_.front().second;
}

Replay& Replays::add_by_key(cudaGraph_t graph) {
  known_.emplace_front(std::piecewise_construct, std::forward_as_tuple(key_),
                       std::forward_as_tuple(graph));
  if (known_.size() > kMostGraphs) known_.pop_back();
  return known_.front().second;
}

// All that a graph has in it: the program, what it computes, and where.
void Replays::write_key(const Call& call, std::span<const Chunk> chunks,
                        const Reduction& reduction) {
  std::uint64_t factor;
  static_assert(sizeof(factor) == sizeof(reduction.factor));
  std::memcpy(&factor, &reduction.factor, sizeof(factor));
  key_.assign({static_cast<std::uint64_t>(call.collective), call.algorithm, call.plan,
               static_cast<std::uint64_t>(call.root), static_cast<std::uint64_t>(reduction.dtype),
               static_cast<std::uint64_t>(reduction.op), factor});
  for (const Chunk& chunk : chunks) {
    key_.push_back(reinterpret_cast<std::uintptr_t>(chunk.input));
    key_.push_back(reinterpret_cast<std::uintptr_t>(chunk.output));
    key_.push_back(chunk.count);
  }
}

}  // namespace ringcomm::nccl
