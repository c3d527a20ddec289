// An operation of the backend, described to whoever carries it out.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace ringcomm {

struct Launch {
  c10d::OpType type;
  const char* title;  // for the profiler
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  // What is really read and written: inputs and outputs, or flat copies of them.
  std::vector<at::Tensor> memory;
  std::chrono::milliseconds timeout;
  bool async;
};

}  // namespace ringcomm
