// The backend's operations in the flight record (core/flight_recorder.h).
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/flight_recorder.h"
#include "core/process.h"
#include "core/status.h"

namespace ringcomm {

// Begins to record what this process's groups do, or does nothing if it has begun. `stacks`: with
// the Python frames of each call.
void start_flight_recorder(std::size_t capacity, bool stacks, bool dump_failures);

// Null: nothing is recorded.
FlightRecorder* flight_recorder();

// One rank's part in a group. Its destructor, which no call may be under way with, asks `life` a
// last time.
class GroupFlight {
 public:
  // Without global ranks, they are those of the group.
  GroupFlight(const std::string& name, std::vector<std::uint64_t> global_ranks, int rank,
              int world_size, FlightRecorder::Life life);
  ~GroupFlight() {
    at_the_end([this] { end(); });
  }
  GroupFlight(const GroupFlight&) = delete;
  GroupFlight& operator=(const GroupFlight&) = delete;

  // Nothing in a child that was forked: it may have inherited the record locked.
  void end();

  FlightMark collective(c10d::OpType type, const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& outputs, std::chrono::milliseconds timeout);
  // Begun, of one input and one output, which may be the same, or of none.
  FlightMark begun(c10d::OpType type, const at::Tensor* input, const at::Tensor* output,
                   std::chrono::milliseconds timeout);
  FlightMark message(const FlightRecorder::MessageRecord& message, const at::Tensor& tensor,
                     std::chrono::milliseconds timeout, bool starts_at_once = false);
  // A collective that the other ranks count, and that is none here.
  void refused();

  // Null: failures here are not written to files. Else it writes this process's file because
  // another rank has failed, on any thread, for longer than this object lives. `is_broken`: by that
  // failure.
  std::function<void(bool is_broken)> on_dump_request() const;

 private:
  FlightRecorder::Operation operation(std::chrono::milliseconds timeout, bool starts_at_once) const;

  const ForkGuard maker_;
  FlightRecorder* const recorder_;
  std::size_t group_ = 0;
};

}  // namespace ringcomm
