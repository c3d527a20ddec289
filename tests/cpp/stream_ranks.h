// Ranks whose collectives run on simulated streams.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpu/streams/device_collectives.h"
#include "gpu/streams/executor.h"
#include "stream_simulator.h"

namespace simulated {

using ringcomm::streams::Layout;

// One rank with a stream of its user's, and what it runs its collectives on.
class Rank : public ringcomm::streams::DeviceCollectives {
 public:
  Rank(Simulator& simulator, int rank, int world_size, const ringcomm::Selection& selection,
       const Layout& layout, int dropped = -1);
  ~Rank() override;

  // Something the user does with the memory, such as filling or checking it.
  void on_user_stream(std::function<void()> body);

 private:
  int stream(const std::string& name);
  std::vector<ringcomm::streams::Channel<Api>> channels(const Layout& layout);
  void enqueue_program(ringcomm::Call, const ringcomm::Program& program,
                       std::span<const ringcomm::Chunk> chunks,
                       const ringcomm::Reduction& reduction, std::chrono::milliseconds) override;

  Simulator& simulator_;
  Api api_;
  const int user_, origin_, event_;
  // By channel, and exactly as long as the layout promises: AddressSanitizer sees more.
  std::deque<std::vector<std::byte>> scratch_;
  ringcomm::streams::Executor<Api> executor_;
};

}  // namespace simulated
