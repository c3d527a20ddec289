// The calls of gpu/streams/executor.h, made to CUDA and NCCL.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>

#include "gpu/streams/executor.h"
#include "plan/collective.h"
#include "plan/pipeline.h"
#include "reduce/types.h"

namespace ringcomm::nccl {

class Api {
 public:
  using Stream = cudaStream_t;
  using Event = cudaEvent_t;
  using Comm = ncclComm_t;

  void group_start();
  void send(const void* data, std::size_t nbytes, int peer, Comm comm, Stream stream);
  void recv(void* data, std::size_t nbytes, int peer, Comm comm, Stream stream);
  void group_end();

  void reduce(const Reduction& reduction, const void* const* inputs, int num_inputs, void* output,
              std::size_t count, Stream stream);
  void copy(void* to, const void* from, std::size_t nbytes, Stream stream);
  void record(Event event, Stream stream);
  void wait(Stream stream, Event event, streams::Wait why);

  // NVTX ranges: "ring:all_reduce", and in it "step 0 slice 2" for each tick. Without a profiler
  // only the outer one is attempted.
  void push_collective(Collective collective);
  void push_range(const Pipeline& pipeline, int tick);
  void pop_range();

 private:
  bool profiled_ = false;
};

}  // namespace ringcomm::nccl
