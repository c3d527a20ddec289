// The calls of gpu/streams/executor.h, made to CUDA and NCCL.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nvtx3/nvToolsExt.h>

#include <array>
#include <cstddef>
#include <string>

#include "gpu/nccl/handles.h"
#include "gpu/streams/executor.h"
#include "plan/collective.h"
#include "plan/pipeline.h"
#include "reduce/device.h"
#include "reduce/types.h"

namespace ringcomm::nccl {

class Api {
 public:
  using Stream = cudaStream_t;
  using Event = cudaEvent_t;
  using Comm = ncclComm_t;

  void group_start() { RINGCOMM_CHECK(ncclGroupStart()); }
  void send(const void* data, std::size_t nbytes, int peer, Comm comm, Stream stream) {
    RINGCOMM_CHECK(ncclSend(data, nbytes, ncclUint8, peer, comm, stream));
  }
  void recv(void* data, std::size_t nbytes, int peer, Comm comm, Stream stream) {
    RINGCOMM_CHECK(ncclRecv(data, nbytes, ncclUint8, peer, comm, stream));
  }
  void group_end() { RINGCOMM_CHECK(ncclGroupEnd()); }

  void reduce(const Reduction& reduction, const void* const* inputs, int num_inputs, void* output,
              std::size_t count, Stream stream) {
    RINGCOMM_CHECK(reduce_device(reduction, inputs, num_inputs, &output, 1, count, stream));
  }
  void copy(void* to, const void* from, std::size_t nbytes, Stream stream) {
    RINGCOMM_CHECK(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDeviceToDevice, stream));
  }
  void record(Event event, Stream stream) { RINGCOMM_CHECK(cudaEventRecord(event, stream)); }
  void wait(Stream stream, Event event, streams::Wait) {
    RINGCOMM_CHECK(cudaStreamWaitEvent(stream, event, 0));
  }

  // NVTX ranges: "ring:all_reduce", and in it "step 0 slice 2" for each tick. Without a profiler
  // only the outer one is attempted.
  void push_collective(Collective collective) {
    static const auto kNames = [] {
      nvtxInitialize(nullptr);  // once: NVTX initializes itself with a data race
      std::array<std::string, kNumCollectives> names;
      for (int c = 0; c < kNumCollectives; ++c) {
        names[c] = std::string("ring:") + to_string(static_cast<Collective>(c));
      }
      return names;
    }();
    profiled_ = nvtxRangePushA(kNames[static_cast<std::size_t>(collective)].c_str()) >= 0;
  }
  void push_range(const Pipeline& pipeline, int tick) {
    if (!profiled_) return;
    std::string name;
    pipeline.at(tick, [&](int step, int first_slice, int) {
      name += std::string(name.empty() ? "" : ", ") + "step " + std::to_string(step);
      if (step < pipeline.num_sliced_steps) name += " slice " + std::to_string(first_slice);
    });
    nvtxRangePushA(name.c_str());
  }
  void pop_range() {
    if (profiled_) nvtxRangePop();
  }

 private:
  bool profiled_ = false;
};

static_assert(streams::StreamApi<Api>);

}  // namespace ringcomm::nccl
