// Ranks whose collectives run on simulated streams.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stream_simulator.h"
#include "streams/device_collectives.h"
#include "streams/executor.h"

namespace simulated {

using ringcomm::streams::Layout;

// One rank with a stream of its user's, and what it runs its collectives on.
class Rank : public ringcomm::streams::DeviceCollectives {
 public:
  Rank(Simulator& simulator, int rank, int world_size, const ringcomm::Selection& selection,
       const Layout& layout, int dropped = -1)
      : DeviceCollectives(rank, world_size, selection),
        simulator_(simulator),
        api_(simulator, rank, dropped),
        user_(stream("user")),
        origin_(stream("origin")),
        event_(simulator.new_event()),
        executor_(rank, layout, channels(layout), simulator.new_event()) {}

  // Something the user does with the memory, such as filling or checking it.
  void on_user_stream(std::function<void()> body) {
    simulator_.kernel(user_, [] {}, std::move(body));
  }

 private:
  int stream(const std::string& name) {
    return simulator_.new_stream(name + " of rank " + std::to_string(rank()));
  }

  std::vector<ringcomm::streams::Channel<Api>> channels(const Layout& layout) {
    std::vector<ringcomm::streams::Channel<Api>> all;
    for (int c = 0; c < layout.num_channels; ++c) {
      scratch_.emplace_back(layout.channel_scratch_nbytes(world_size()));
      const std::string name = std::to_string(c);
      ringcomm::streams::Channel<Api> channel{
          .comm = c,
          .communication = c == 0 ? origin_ : stream("communication " + name),
          .reduction = stream("reduction " + name),
          .scratch = scratch_[c].data(),
          .communicated = simulator_.new_event(),
          .reduced = {}};
      for (int e = 0; e < layout.slices_in_flight; ++e) {
        channel.reduced.push_back(simulator_.new_event());
      }
      all.push_back(std::move(channel));
    }
    return all;
  }

  void enqueue_program(ringcomm::Call, const ringcomm::Program& program,
                       std::span<const ringcomm::Chunk> chunks,
                       const ringcomm::Reduction& reduction, std::chrono::milliseconds) override {
    simulator_.record(event_, user_);
    simulator_.wait(origin_, event_);
    executor_.run(api_, program, chunks, reduction);
    simulator_.record(event_, origin_);
    simulator_.wait(user_, event_);
  }

  Simulator& simulator_;
  Api api_;
  const int user_, origin_, event_;
  // By channel, and exactly as long as the layout promises: AddressSanitizer sees more.
  std::deque<std::vector<std::byte>> scratch_;
  ringcomm::streams::Executor<Api> executor_;
};

}  // namespace simulated
