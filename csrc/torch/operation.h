// An operation of the backend: what torch shows of it, and what it does.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/collectives.h"
#include "torch/report.h"

namespace ringcomm {

struct Operation {
  // Does all of it, with checked arguments, by the collectives of the host or of a device. Throws
  // on failure.
  using Body = std::function<void(Collectives&)>;

  c10d::OpType type;
  const char* title;  // for the profiler
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  // What is really read and written: inputs and outputs, or flat copies of them.
  std::vector<at::Tensor> memory;
  std::chrono::milliseconds timeout;
  bool async = true;
  int num_calls = 1;           // of the collectives that the body calls
  std::uint64_t sequence = 0;  // from when it begins
  Report report = {};
};

}  // namespace ringcomm
