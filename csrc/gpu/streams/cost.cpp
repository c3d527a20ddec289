#include "gpu/streams/cost.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "gpu/streams/device_collectives.h"
#include "gpu/streams/executor.h"
#include "gpu/streams/layout.h"

namespace ringcomm::streams {
namespace {

class CountingApi {
 public:
  struct Stream {};
  struct Event {};
  using Comm = int;  // a channel

  const Calls& calls() const { return calls_; }

  void group_start() { comms_.clear(); }
  void send(const std::byte*, std::size_t, int, Comm comm, Stream) {
    ++calls_.sends;
    comms_.push_back(comm);
  }
  void recv(std::byte*, std::size_t, int, Comm comm, Stream) {
    ++calls_.recvs;
    comms_.push_back(comm);
  }
  void group_end() {
    ++calls_.groups;
    std::sort(comms_.begin(), comms_.end());
    const auto end = std::unique(comms_.begin(), comms_.end());
    calls_.launches += static_cast<int>(end - comms_.begin());
  }
  void reduce(const Reduction&, const void* const*, int, void*, std::size_t, Stream) {
    ++calls_.reductions;
  }
  void copy(void*, const void*, std::size_t, Stream) { ++calls_.copies; }
  void record(Event, Stream) { ++calls_.records; }
  void wait(Stream, Event, Wait) { ++calls_.waits; }
  void push_range(const Pipeline&, int) {}
  void pop_range() {}

 private:
  Calls calls_;
  std::vector<Comm> comms_;  // of the group
};

// Addresses that are never read or written, far enough from each other for any buffer.
std::byte* nowhere(std::uintptr_t which) { return reinterpret_cast<std::byte*>((which + 1) << 44); }

class CountedRank : public DeviceCollectives {
 public:
  CountedRank(const Workload& workload, const Layout& layout)
      : DeviceCollectives(workload.rank, workload.world_size, Selection::named(workload.algorithm)),
        executor_(workload.rank, layout, channels(layout), {}) {}

  const Calls& calls() const { return api_.calls(); }

 private:
  static std::vector<Channel<CountingApi>> channels(const Layout& layout) {
    std::vector<Channel<CountingApi>> all(layout.num_channels);
    for (int c = 0; c < layout.num_channels; ++c) {
      all[c].comm = c;
      all[c].scratch = nowhere(2 + c);
      all[c].reduced.resize(layout.slices_in_flight);
    }
    return all;
  }

  void enqueue_program(ringcomm::Call, const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction, Timeout) override {
    executor_.run(api_, program, chunks, reduction);
  }

  CountingApi api_;
  Executor<CountingApi> executor_;
};

void call(const Workload& w, CountedRank& rank) {
  constexpr Collectives::Timeout kNone{0};
  const Reduce reduce{w.dtype, w.op};
  const std::size_t share = w.count / w.world_size;
  const std::size_t share_nbytes = share * element_size(w.dtype);
  std::byte* const here = nowhere(0);
  std::byte* const there = nowhere(1);
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (int r = 0; r < w.world_size; ++r) {
    inputs.push_back({here + r * share_nbytes, share});
    outputs.push_back({there + r * share_nbytes, share});
    sources.push_back(inputs.back().data);
    targets.push_back(outputs.back().data);
  }
  switch (w.collective) {
    case Collective::kAllReduce:
      return rank.all_reduce(here, here, w.count, reduce, kNone);
    case Collective::kReduceScatter:
      return rank.reduce_scatter(inputs, there, reduce, kNone);
    case Collective::kReduce:
      return rank.reduce(here, here, w.count, reduce, w.root, kNone);
    case Collective::kAllGather:
      return rank.all_gather(here, outputs, w.dtype, kNone);
    case Collective::kGather:
      return rank.gather(here, targets, share, w.dtype, w.root, kNone);
    case Collective::kScatter:
      return rank.scatter(sources, there, share, w.dtype, w.root, kNone);
    case Collective::kBroadcast:
      return rank.broadcast(here, w.count, w.dtype, w.root, kNone);
    case Collective::kAllToAll:
      return rank.all_to_all(inputs, outputs, w.dtype, kNone);
    case Collective::kBarrier:
      break;
  }
  throw std::invalid_argument("a barrier on a device sends nothing");
}

}  // namespace

Calls count_calls(const Workload& workload, const Layout& layout) {
  CountedRank rank(workload, layout);
  call(workload, rank);
  return rank.calls();
}

}  // namespace ringcomm::streams
