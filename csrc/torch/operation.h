// An operation of the backend: what it does, what is reported of it, and how long it may take.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "core/collectives.h"
#include "torch/observer.h"

namespace ringcomm {

// Time that is added to a group's timeout for a while: Backend::addEphemeralTimeout.
//
// It counts for every work that is created until the first of them is complete. That first work
// claims it, and lets go of it when it is complete.
class TimeoutExtension : public std::enable_shared_from_this<TimeoutExtension> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  void add(Milliseconds more) {
    active_ += more.count();
    unclaimed_ += more.count();
  }
  bool is_active() const { return active_.load(std::memory_order_relaxed) != 0; }
  Milliseconds now() const { return Milliseconds(active_.load(std::memory_order_relaxed)); }

  // What was added since the last claim ends with the object that is returned; null: nothing was.
  std::shared_ptr<const void> claim() {
    if (unclaimed_.load(std::memory_order_relaxed) == 0) return nullptr;
    return std::make_shared<const Claim>(shared_from_this());
  }

 private:
  struct Claim {
    explicit Claim(std::shared_ptr<TimeoutExtension> of)
        : extension(std::move(of)), claimed(extension->unclaimed_.exchange(0)) {}
    ~Claim() { extension->active_ -= claimed; }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    const std::shared_ptr<TimeoutExtension> extension;
    const Milliseconds::rep claimed;
  };

  std::atomic<Milliseconds::rep> active_ = 0;
  std::atomic<Milliseconds::rep> unclaimed_ = 0;
};

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
  std::shared_ptr<TimeoutExtension> extension = nullptr;  // of its group

  // To be held until the operation is complete, by the work that is made of it.
  std::shared_ptr<const void> claim_extension() const {
    return extension ? extension->claim() : nullptr;
  }
};

}  // namespace ringcomm
