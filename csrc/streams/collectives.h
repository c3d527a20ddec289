// The collectives on a device: each becomes a call, chunks and a program for whoever runs them.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include "calls.h"
#include "chunks.h"
#include "programs.h"
#include "reduce/host.h"

namespace ringcomm::streams {

// The methods are those of ringcomm::Communicator, on device memory and asynchronous: what they do
// is enqueued, and the memory must stay until it is done.
class Collectives {
 public:
  using Timeout = std::chrono::milliseconds;

  Collectives(int rank, int world_size, Algorithm algorithm)
      : rank_(rank), world_size_(world_size), algorithm_(algorithm), programs_(rank, world_size) {}
  virtual ~Collectives() = default;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  void all_reduce(const void* input, void* output, std::size_t count, Reduce reduce,
                  Timeout timeout);
  void reduce_scatter(std::span<const Input> inputs, void* output, Reduce reduce, Timeout timeout);
  void all_gather(const void* input, std::span<const Output> outputs, DType dtype, Timeout timeout);
  void broadcast(void* data, std::size_t count, DType dtype, int root, Timeout timeout);
  void reduce(const void* input, void* output, std::size_t count, Reduce reduce, int root,
              Timeout timeout);
  void gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
              int root, Timeout timeout);
  void scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
               int root, Timeout timeout);
  void all_to_all(std::span<const Input> inputs, std::span<const Output> outputs, DType dtype,
                  Timeout timeout);

 private:
  // Enqueues the program on the chunks. `call` has no sequence number yet.
  virtual void run(Call call, const Program& program, std::span<const Chunk> chunks,
                   const Reduction& reduction, Timeout timeout) = 0;

  Algorithm choose(Collective collective, std::size_t count, DType dtype) const;
  void run(const Call& call, const Reduction& reduction, Timeout timeout);
  void move(const Call& call, Timeout timeout);
  const Program& program(const Call& call) {
    return programs_.find(call.collective, static_cast<Algorithm>(call.algorithm), call.root);
  }

  const int rank_;
  const int world_size_;
  const Algorithm algorithm_;
  Programs programs_;
  Chunks chunks_;  // of the call being made; kept for its memory
};

}  // namespace ringcomm::streams
