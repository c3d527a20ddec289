// Step 2 of 5: many CTAs, 16 bytes at a time.
//
// Schedule. The buffer is cut into as many parts as there are CTAs, and CTA l of every rank does
// with part l what the only CTA of step 1 did with everything. Those CTAs are a lane: they have
// flags of their own, and nothing to do with the other lanes.
//
//                    lane 0         lane 1         lane 2
//
//      rank 0     | CTA 0, flag | CTA 1, flag | CTA 2, flag |
//                       ^              ^             ^
//                       v              v             v
//      rank 1     | CTA 0, flag | CTA 1, flag | CTA 2, flag |
//
// Invariant. As in step 1, for each lane: whoever sees flag l of a rank sees part l of its copy. It
// says nothing about other parts, and no CTA needs to know. A barrier between all CTAs of a GPU
// would take another kernel or a flag more; none is needed.
//
// Parts begin at multiples of 16 bytes, so that all but the last few elements can be moved as
// float4: one instruction for four elements, and as many bytes under way as memory likes.
//
// All CTAs of a lane must run at the same time, or some wait for one that is not there yet. So
// there are few of them, and on_gpu.h checks that they fit.
//
// Gains. All the bandwidth of memory and link, instead of what one multiprocessor can ask for.
//
// Costs. Still n-1 times nbytes over each link, and flags that have to be lowered. Who waits for a
// flag reads it in the memory of another rank: each look crosses the link and comes back.
#include "common.h"

__device__ void raise(Flag& flag) { FlagRef(flag).store(1, cuda::std::memory_order_release); }

__device__ void await(Flag& flag) {
  while (FlagRef(flag).load(cuda::std::memory_order_acquire) == 0) {
  }
}

__global__ void all_reduce(Group group, const float* input, float* output, std::size_t count) {
  const int lane = blockIdx.x;
  const auto [begin, part_count] = part_of({0, count}, lane, gridDim.x);
  const std::size_t num_vectors = part_count / 4;

  float* const copy = group.memory[group.rank] + begin;
  for (std::size_t i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    at<float4>(copy, i) = at<float4>(input + begin, i);
  }
  for (std::size_t i = 4 * num_vectors + threadIdx.x; i < part_count; i += blockDim.x) {
    copy[i] = input[begin + i];
  }
  __syncthreads();

  if (threadIdx.x == 0) {
    raise(group.flags[group.rank][lane]);
    for (int peer = 0; peer < group.world_size; ++peer) await(group.flags[peer][lane]);
  }
  __syncthreads();

  for (std::size_t i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    float4 sum = at<float4>(group.memory[0] + begin, i);
    for (int peer = 1; peer < group.world_size; ++peer) {
      sum = sum + at<float4>(group.memory[peer] + begin, i);
    }
    at<float4>(output + begin, i) = sum;
  }
  for (std::size_t i = 4 * num_vectors + threadIdx.x; i < part_count; i += blockDim.x) {
    float sum = group.memory[0][begin + i];
    for (int peer = 1; peer < group.world_size; ++peer) sum += group.memory[peer][begin + i];
    output[begin + i] = sum;
  }
}

Example make_example(const Options& options) {
  return {
      .num_ctas = kNumLanes,
      .memory_count = options.largest_nbytes / sizeof(float),
      .num_flags = kNumLanes,
      .zero_flags = true,
      .all_reduce =
          [](const Group& group, const float* input, float* output, std::size_t count,
             Stream& stream) {
            launch(all_reduce, kNumLanes, kNumThreads, stream, group, input, output, count);
          },
  };
}

int main(int argc, char** argv) { return run(argc, argv, all_reduce, make_example); }
