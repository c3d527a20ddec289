// Step 1 of 5: the naive all-reduce.
//
// Schedule. Every rank copies its input into memory that all ranks can read, and raises its flag.
// It waits for the flags of all ranks, then reads the copies of all and adds them up:
//
//      rank 0    copy, raise flag 0    wait for flags 0, 1, 2    x0 + x1 + x2
//      rank 1    copy, raise flag 1    wait for flags 0, 1, 2    x0 + x1 + x2
//      rank 2    copy, raise flag 2    wait for flags 0, 1, 2    x0 + x1 + x2
//
// Invariant. Whoever sees a rank's flag raised sees its whole copy. Three things make it so:
// the barrier before thread 0 raises the flag (all threads have written their elements), release
// and acquire at system scope (the other GPU sees them, too), and the barrier after thread 0 has
// waited (no other thread reads before that).
//
// All ranks add in the same order, rank 0 first, so that they end with the same bits.
//
// Gains. It is right, and only two latencies long: for small buffers little is faster.
//
// Costs. Each rank reads the whole buffers of all others: n-1 times nbytes over its link, where
// 2(n-1)/n would do. One CTA of a GPU with a hundred multiprocessors works, 4 bytes at a time. And
// a flag that was raised has to be lowered before the next call, while no rank is in the kernel.
#include "common.h"

__device__ void raise(Flag& flag) { FlagRef(flag).store(1, cuda::std::memory_order_release); }

__device__ void await(Flag& flag) {
  while (FlagRef(flag).load(cuda::std::memory_order_acquire) == 0) {
  }
}

__global__ void all_reduce(Group group, const float* input, float* output, std::size_t count) {
  float* const copy = group.memory[group.rank];
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) copy[i] = input[i];
  __syncthreads();

  if (threadIdx.x == 0) {
    raise(group.flags[group.rank][0]);
    for (int peer = 0; peer < group.world_size; ++peer) await(group.flags[peer][0]);
  }
  __syncthreads();

  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
    float sum = group.memory[0][i];
    for (int peer = 1; peer < group.world_size; ++peer) sum += group.memory[peer][i];
    output[i] = sum;
  }
}

Example make_example(const Options& options) {
  return {
      .num_ctas = 1,
      .memory_count = options.largest_nbytes / sizeof(float),
      .num_flags = 1,
      .zero_flags = true,
      .all_reduce =
          [](const Group& group, const float* input, float* output, std::size_t count,
             Stream& stream) {
            launch(all_reduce, 1, kNumThreads, stream, group, input, output, count);
          },
  };
}

int main(int argc, char** argv) { return run(argc, argv, all_reduce, make_example); }
