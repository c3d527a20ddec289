#include "stream_ranks.h"

#include <utility>

namespace simulated {

Rank::Rank(Simulator& simulator, int rank, int world_size, const ringcomm::Selection& selection,
           const Layout& layout, int dropped)
    : DeviceCollectives(rank, world_size, selection),
      simulator_(simulator),
      api_(simulator, rank, dropped),
      user_(stream("user")),
      origin_(stream("origin")),
      event_(simulator.new_event()),
      executor_(rank, layout, channels(layout), simulator.new_event()) {}

Rank::~Rank() = default;

void Rank::on_user_stream(std::function<void()> body) {
  simulator_.kernel(user_, [] {}, std::move(body));
}

int Rank::stream(const std::string& name) {
  return simulator_.new_stream(name + " of rank " + std::to_string(rank()));
}

std::vector<ringcomm::streams::Channel<Api>> Rank::channels(const Layout& layout) {
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

void Rank::enqueue_program(ringcomm::Call, const ringcomm::Program& program,
                           std::span<const ringcomm::Chunk> chunks,
                           const ringcomm::Reduction& reduction, std::chrono::milliseconds) {
  simulator_.record(event_, user_);
  simulator_.wait(origin_, event_);
  executor_.run(api_, program, chunks, reduction);
  simulator_.record(event_, origin_);
  simulator_.wait(user_, event_);
}

}  // namespace simulated
