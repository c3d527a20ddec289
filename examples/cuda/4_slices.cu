// Step 4 of 5: few slots, used again and again.
//
// Schedule. A slot holds a slice, of at most kSlotCount elements, and each lane has two. Chunks are
// cut into slices, and round b of a lane does for slice b of every chunk what step 3 did for whole
// chunks. What a rank sends in a lane are messages 1, 2, 3, ..., through all steps, rounds and
// calls; message m goes through slot m modulo 2. Before it is written its slot has to be free:
//
//      rank r                                       next rank
//
//      wait until m-2 has been taken  <-------.
//      write m into its slot                   |
//      sent = m          -------------------.  |
//                                           |   '-  taken = m-2
//                                            '--->  wait until m has been sent
//                                                   read m from its slot
//
// Instead of flags to be raised and lowered there are two counters, which only ever go up, and a
// third in which a rank remembers for its next call how far it has come.
//
// Invariant. taken <= sent <= taken + 2, for each lane of each two neighbours: a slot is written
// after its reader has seen the last value in it, and read after its writer has written the next
// one. As all ranks go through the same messages, empty slices included, numbers never differ. That
// goes on over the end of a call: who is done may begin the next one while others still read.
//
// Nobody waits for ever: message m waits for m-2 to be taken, and to take it for m-2 to be sent.
// Both come before m on every rank.
//
// Gains. Memory for slots does not grow with the buffer; what was just written still lies in the
// cache when it is read. Calls follow each other with nothing in between.
//
// Costs. A latency for each slice, of which only some hide behind each other. Data still goes
// through memory twice in each step, with four barriers of the CTA. A peer that never comes is
// awaited for ever.
#include "common.h"

constexpr int kNumSlots = 2;

// For each lane of each rank, in its memory. The previous rank counts in kSent, the next one in
// kTaken, it itself in kDone.
enum Counter { kSent, kTaken, kDone, kNumCounters };

__device__ Flag& counter_of(const Group& group, int rank, int lane, Counter counter) {
  return group.flags[rank][lane * kNumCounters + counter];
}

__device__ void publish(Flag& flag, Flag value) {
  FlagRef(flag).store(value, cuda::std::memory_order_release);
}

__device__ void await(Flag& flag, Flag value) {
  while (FlagRef(flag).load(cuda::std::memory_order_acquire) < value) {
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

__device__ Range slice_of(Range chunk, std::size_t round) {
  const std::size_t before = min(round * kSlotCount, chunk.count);
  return {chunk.begin + before, min(kSlotCount, chunk.count - before)};
}

__global__ void all_reduce(Group group, const float* input, float* output, std::size_t count) {
  const int rank = group.rank;
  const int n = group.world_size;
  const int next = (rank + 1) % n;
  const int previous = (rank + n - 1) % n;
  const int lane = blockIdx.x;
  const Range part = part_of({0, count}, lane, gridDim.x);
  if (part.count == 0) return;
  const std::size_t largest_chunk = part_of(part, 0, n).count;
  const std::size_t lane_slots = lane * kNumSlots * kSlotCount;

  Flag message = counter_of(group, rank, lane, kDone);
  for (std::size_t round = 0; round * kSlotCount < largest_chunk; ++round) {
    for (int step = 0; step < 2 * (n - 1); ++step) {
      ++message;
      const std::size_t slot = lane_slots + message % kNumSlots * kSlotCount;
      const Range sent = slice_of(part_of(part, (rank + 2 * n - step - 1) % n, n), round);
      const Range received = slice_of(part_of(part, (rank + 2 * n - step - 2) % n, n), round);

      if (threadIdx.x == 0) {
        await(counter_of(group, rank, lane, kTaken), message - kNumSlots);
      }
      __syncthreads();
      copy(group.memory[next] + slot, (step == 0 ? input : output) + sent.begin, sent.count);
      __syncthreads();

      if (threadIdx.x == 0) {
        publish(counter_of(group, next, lane, kSent), message);
        await(counter_of(group, rank, lane, kSent), message);
      }
      __syncthreads();
      const float* const came = group.memory[rank] + slot;
      if (step < n - 1) {
        add(output + received.begin, came, input + received.begin, received.count);
      } else {
        copy(output + received.begin, came, received.count);
      }
      __syncthreads();
      if (threadIdx.x == 0) publish(counter_of(group, previous, lane, kTaken), message);
    }
  }
  if (threadIdx.x == 0) counter_of(group, rank, lane, kDone) = message;
}

Example make_example(const Options&) {
  return {
      .num_ctas = kNumLanes,
      .memory_count = kNumLanes * kNumSlots * kSlotCount,
      .num_flags = kNumLanes * kNumCounters,
      .zero_flags = false,
      .all_reduce =
          [](const Group& group, const float* input, float* output, std::size_t count,
             Stream& stream) {
            launch(all_reduce, kNumLanes, kNumThreads, stream, group, input, output, count);
          },
  };
}

int main(int argc, char** argv) { return run(argc, argv, all_reduce, make_example); }
