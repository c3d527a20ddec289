// Step 3 of 5: the ring.
//
// Schedule. Each lane cuts its part into n chunks, one for each rank, and its ranks stand in a
// circle: they write only to the next one and read only what the previous one wrote. In step s of
// 2(n-1) rank r sends chunk r-s-1 and receives chunk r-s-2, modulo n. In the first n-1 steps, the
// reduce-scatter, what is received is added to the own input; in the others, the all-gather, it is
// complete and copied. For 3 ranks, where "2 > < 1" means: sends chunk 2, receives chunk 1:
//
//                      step    rank 0     rank 1     rank 2
//
//      reduce-scatter    0     2 > < 1    0 > < 2    1 > < 0
//                        1     1 > < 0    2 > < 1    0 > < 2    now chunk r is complete on rank r
//
//      all-gather        2     0 > < 2    1 > < 0    2 > < 1
//                        3     2 > < 1    0 > < 2    1 > < 0
//
// What is sent goes into a slot in the memory of the next rank. There is a slot, and a flag, for
// each step of each lane.
//
// Invariant. In the reduce-scatter, what a rank receives in step s is the sum over the s+1 ranks
// before it: with its own it sends on s+2. In the all-gather it is the sum over all.
// csrc/plan/ring.h proves it. A slot is written once and only read after its flag is seen, so
// nobody has to wait until a slot is free.
//
// Slots and flags lie in the memory of who reads them: a rank can write over the link and go on,
// but would have to wait for what it reads. It waits for its flag at home.
//
// Gains. Each rank sends and receives 2(n-1)/n times nbytes, which hardly grows with n. No
// all-reduce sends less from its busiest rank.
//
// Costs. 2(n-1) latencies, one after the other. Slots for 2(n-1)/n times the largest buffer, and
// flags that have to be lowered. In each step data goes through memory twice: what was received is
// added and kept in the output, and read there again to be sent.
#include "common.h"

__device__ void raise(Flag& flag) { FlagRef(flag).store(1, cuda::std::memory_order_release); }

__device__ void await(Flag& flag) {
  while (FlagRef(flag).load(cuda::std::memory_order_acquire) == 0) {
  }
}

__device__ void copy(float* to, const float* from, std::size_t count) {
  for_each_vector(count,
                  [&]<typename Vector>(std::size_t i) { at<Vector>(to, i) = at<Vector>(from, i); });
}

__device__ void add(float* to, const float* a, const float* b, std::size_t count) {
  for_each_vector(count, [&]<typename Vector>(std::size_t i) {
    at<Vector>(to, i) = at<Vector>(a, i) + at<Vector>(b, i);
  });
}

// Elements of a slot: the largest chunk.
__host__ __device__ std::size_t slot_count(std::size_t count, int num_lanes, int world_size) {
  return part_of(part_of({0, count}, 0, num_lanes), 0, world_size).count;
}

__global__ void all_reduce(Group group, const float* input, float* output, std::size_t count) {
  const int n = group.world_size;
  const int next = (group.rank + 1) % n;
  const int lane = blockIdx.x;
  const int num_steps = 2 * (n - 1);
  const Range part = part_of({0, count}, lane, gridDim.x);

  for (int step = 0; step < num_steps; ++step) {
    const int index = lane * num_steps + step;
    const std::size_t slot = index * slot_count(count, gridDim.x, n);
    const Range sent = part_of(part, (group.rank + 2 * n - step - 1) % n, n);
    const Range received = part_of(part, (group.rank + 2 * n - step - 2) % n, n);

    // Each thread sends the elements that it has received itself: no barrier before this.
    copy(group.memory[next] + slot, (step == 0 ? input : output) + sent.begin, sent.count);
    __syncthreads();
    if (threadIdx.x == 0) {
      raise(group.flags[next][index]);
      await(group.flags[group.rank][index]);
    }
    __syncthreads();

    const float* const came = group.memory[group.rank] + slot;
    if (step < n - 1) {
      add(output + received.begin, came, input + received.begin, received.count);
    } else {
      copy(output + received.begin, came, received.count);
    }
  }
}

Example make_example(const Options& options) {
  const int num_steps = 2 * (options.world_size - 1);
  const std::size_t count = options.largest_nbytes / sizeof(float);
  return {
      .num_ctas = kNumLanes,
      .memory_count = kNumLanes * num_steps * slot_count(count, kNumLanes, options.world_size),
      .num_flags = static_cast<std::size_t>(kNumLanes * num_steps),
      .zero_flags = true,
      .all_reduce =
          [](const Group& group, const float* input, float* output, std::size_t count,
             Stream& stream) {
            launch(all_reduce, kNumLanes, kNumThreads, stream, group, input, output, count);
          },
  };
}

int main(int argc, char** argv) { return run(argc, argv, all_reduce, make_example); }
