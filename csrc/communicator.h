// One rank's view of a group: it numbers the collectives, chooses their plans and has them carried
// out. One object per rank and no globals, so several ranks can live in one process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calls.h"
#include "chunks.h"
#include "programs.h"
#include "reduce/host.h"
#include "shm/exchange.h"
#include "shm/executor.h"
#include "shm/group.h"
#include "shm/mail.h"
#include "store.h"

namespace ringcomm {

inline constexpr int kMaxWorldSize = 64;

// All counts are elements. Inputs are only read; an output may be the rank's input. Every method
// but send and recv is called by all ranks in the same order, by one thread at a time. They throw
// Error, see status.h.
class Communicator {
 public:
  using Timeout = std::chrono::milliseconds;

  Communicator(Store& store, int rank, int world_size, Algorithm algorithm, Timeout timeout);
  // Leaves the group.
  ~Communicator() { close("the communicator is gone"); }

  int rank() const { return group_.rank; }
  int world_size() const { return group_.world_size; }
  std::uint64_t sequence() const { return exchange_.sequence(); }
  shm::Group& group() { return group_; }

  void all_reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                  Timeout timeout);
  // inputs[r] is this rank's contribution to what rank r gets.
  void reduce_scatter(std::span<const Input> inputs, void* output, Reduce reduce, Timeout timeout);
  // outputs[r] is what rank r gives; outputs[rank].count is the count of `input`.
  void all_gather(const void* input, std::span<const Output> outputs, DType dtype, Timeout timeout);
  void broadcast(void* data, std::size_t count, DType dtype, int root, Timeout timeout);
  // output is used on the root only.
  void reduce(const void* input, void* output, std::size_t count, Reduce reduce, int root,
              Timeout timeout);
  // outputs on the root only, one per rank, `count` elements each.
  void gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
              int root, Timeout timeout);
  // inputs on the root only, one per rank, `count` elements each.
  void scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
               int root, Timeout timeout);
  // inputs[r] goes to rank r, outputs[r] comes from it; they must not overlap.
  void all_to_all(std::span<const Input> inputs, std::span<const Output> outputs, DType dtype,
                  Timeout timeout);
  void barrier(Timeout timeout);

  // A barrier that tells rank 0 who is missing (all of them, or the first), and then the others.
  // It does not break the group.
  void monitored_barrier(bool wait_all_ranks, Timeout timeout);

  // Never block; any thread. See shm/mail.h.
  void post(std::shared_ptr<shm::Message> message) { mail_.post(std::move(message)); }
  bool wait(const shm::Message& message, Timeout patience) { return mail_.wait(message, patience); }

  // Leaves the group: pending and later calls raise `reason`.
  void close(const std::string& reason);
  // As close, and breaks the group for the other ranks too.
  void abort(const std::string& reason);

 private:
  Algorithm choose(DType dtype) const;
  bool is_eager(std::size_t count, DType dtype) const;
  const Program& program(const Call& call) {
    return programs_.find(call.collective, static_cast<Algorithm>(call.algorithm), call.root);
  }

  // The collective has no payload: announces it, and carries out its program on chunks_.
  void run(Call& call, const Reduction& reduction, const shm::Deadline& deadline);
  // Writes what this rank contributes to a reduction: its input, scaled if the op is premul_sum.
  // Returns the number of bytes.
  std::size_t write_contribution(std::byte* to, Input input, const Reduction& reduction);
  // The sum (product, ...) of what all payloads hold at offset_nbytes, in rank order.
  void reduce_payloads(std::size_t offset_nbytes, Output output, Reduction reduction);
  void check_all_to_all(const Call& call);

  shm::Group group_;
  shm::Exchange exchange_;
  shm::Executor executor_;
  shm::Mail mail_;
  const Algorithm algorithm_;
  Programs programs_;
  Chunks chunks_;  // of the running collective; kept for its memory
  std::vector<const void*> payloads_;
  std::uint64_t barriers_ = 0;
};

}  // namespace ringcomm
