// Step 5 of 5: one pass over the data.
//
// Schedule. What a rank receives in one step of the ring it sends in the next. So a round of a lane
// now is 2n-1 actions, each on one slice: take it from the slot it came in, add the own input, keep
// it in the output, write it into a slot of the next rank, or those of the four that apply:
//
//      action a of rank r, on chunk r-a-1     received    input    output    sent
//
//      0                                                    x                 x
//      1 ... n-2                                 x          x                 x
//      n-1          the sum is complete          x          x        x        x
//      n ... 2n-3                                x                   x        x
//      2n-2                                      x                   x
//
// Message m is still received before m+1 is sent, but an element goes from slot to slot in
// registers.
//
// Invariant. As in step 4, taken <= sent <= taken + 2. A slot is given back only after the action
// has sent on what it held, so that now the action with message m needs an action of the next rank
// that sends m-1: earlier by one, and nobody waits for ever. With one slot it would be the action
// with m itself, and all ranks would wait for each other around the ring.
//
// A wait ends without success when it has lasted too long, or when the rank's abort flag is up. Who
// has waited too long raises that flag on all ranks, so that they all leave the kernel; each notes
// for whom it was waiting. All threads of a CTA leave together, and calls that follow do nothing.
//
// Gains. Each step reads what was received and the input once, and partial sums are never written
// to memory but into the slot. A missing peer is an error with a name.
//
// Costs. A thread loads 16 bytes, waits for them and only then goes on: several loads under way
// would hide more of memory's latency. Every slice waits for flag and barrier at both ends, which
// small buffers feel. After a wait that was given up counters differ, and the ranks cannot go on.
#include "common.h"

constexpr int kNumSlots = 2;

enum Counter { kSent, kTaken, kDone, kNumCounters };

// Behind the counters of all lanes.
constexpr int kAbort = kNumLanes * kNumCounters;
constexpr int kAwaited = kAbort + 1;  // 1 + the rank for which was waited when all gave up
constexpr int kNumFlags = kAwaited + 1;

__device__ Flag& counter_of(const Group& group, int rank, int lane, Counter counter) {
  return group.flags[rank][lane * kNumCounters + counter];
}

__device__ void publish(Flag& flag, Flag value) {
  FlagRef(flag).store(value, cuda::std::memory_order_release);
}

// Waits for the peer to count to the value. False: a rank has waited too long, this or another.
__device__ bool await(const Group& group, Flag& flag, Flag value, int peer, int patience_s) {
  using Clock = cuda::std::chrono::system_clock;
  const auto began = Clock::now();
  Flag* const own = group.flags[group.rank];
  while (FlagRef(flag).load(cuda::std::memory_order_acquire) < value) {
    if (Clock::now() - began > cuda::std::chrono::seconds(patience_s)) {
      for (int rank = 0; rank < group.world_size; ++rank) {
        FlagRef(group.flags[rank][kAbort]).store(1, cuda::std::memory_order_relaxed);
      }
    }
    if (FlagRef(own[kAbort]).load(cuda::std::memory_order_relaxed) != 0) {
      FlagRef(own[kAwaited]).store(1 + peer, cuda::std::memory_order_relaxed);
      return false;
    }
  }
  return true;
}

// One pass over a slice; null: not in this action.
struct Pass {
  const float* from;
  const float* added;
  float* kept;
  float* sent;
};

__device__ void carry_out(const Pass& pass, std::size_t count) {
  for_each_vector(count, [&]<typename Vector>(std::size_t i) {
    Vector value = at<Vector>(pass.from, i);
    if (pass.added != nullptr) value = value + at<Vector>(pass.added, i);
    if (pass.kept != nullptr) at<Vector>(pass.kept, i) = value;
    if (pass.sent != nullptr) at<Vector>(pass.sent, i) = value;
  });
}

__device__ Range slice_of(Range chunk, std::size_t round) {
  const std::size_t before = min(round * kSlotCount, chunk.count);
  return {chunk.begin + before, min(kSlotCount, chunk.count - before)};
}

__global__ void all_reduce(Group group, const float* input, float* output, std::size_t count,
                           int patience_s) {
  const int rank = group.rank;
  const int n = group.world_size;
  const int next = (rank + 1) % n;
  const int previous = (rank + n - 1) % n;
  const int lane = blockIdx.x;
  const Range part = part_of({0, count}, lane, gridDim.x);
  if (part.count == 0) return;
  const std::size_t largest_chunk = part_of(part, 0, n).count;

  FlagRef abort(group.flags[rank][kAbort]);
  const bool over = threadIdx.x == 0 && abort.load(cuda::std::memory_order_relaxed) != 0;
  if (__syncthreads_or(over)) return;

  Flag& sent = counter_of(group, rank, lane, kSent);
  Flag& taken = counter_of(group, rank, lane, kTaken);
  Flag done = counter_of(group, rank, lane, kDone);
  const auto slot = [&](int of_rank, Flag message) {
    return group.memory[of_rank] + (lane * kNumSlots + message % kNumSlots) * kSlotCount;
  };

  for (std::size_t round = 0; round * kSlotCount < largest_chunk; ++round) {
    for (int action = 0; action <= 2 * (n - 1); ++action) {
      const bool receives = action > 0;         // message done
      const bool sends = action < 2 * (n - 1);  // message done + 1
      bool came = true;
      if (threadIdx.x == 0) {
        if (receives) came = await(group, sent, done, previous, patience_s);
        if (came && sends) came = await(group, taken, done + 1 - kNumSlots, next, patience_s);
      }
      if (__syncthreads_or(!came)) return;

      const Range slice = slice_of(part_of(part, (rank + 2 * n - action - 1) % n, n), round);
      const float* const own = input + slice.begin;
      carry_out({.from = receives ? slot(rank, done) : own,
                 .added = receives && action < n ? own : nullptr,
                 .kept = action >= n - 1 ? output + slice.begin : nullptr,
                 .sent = sends ? slot(next, done + 1) : nullptr},
                slice.count);
      __syncthreads();

      if (threadIdx.x == 0) {
        if (sends) publish(counter_of(group, next, lane, kSent), done + 1);
        if (receives) publish(counter_of(group, previous, lane, kTaken), done);
      }
      if (sends) ++done;
    }
  }
  if (threadIdx.x == 0) counter_of(group, rank, lane, kDone) = done;
}

std::string failure(int rank, int patience_s, const std::vector<Flag>& flags) {
  if (flags[kAbort] == 0) return "";
  const std::string name = "rank " + std::to_string(rank);
  if (flags[kAwaited] == 0) return name + " saw that another rank gave up";
  return name + " was waiting for rank " + std::to_string(flags[kAwaited] - 1) +
         " when a wait had lasted " + std::to_string(patience_s) + " s and was given up";
}

Example make_example(const Options& options) {
  const int patience_s = options.patience_s;
  return {
      .num_ctas = kNumLanes,
      .memory_count = kNumLanes * kNumSlots * kSlotCount,
      .num_flags = kNumFlags,
      .zero_flags = false,
      .all_reduce =
          [=](const Group& group, const float* input, float* output, std::size_t count,
              Stream& stream) {
            launch(all_reduce, kNumLanes, kNumThreads, stream, group, input, output, count,
                   patience_s);
          },
      .failure = [=](int rank,
                     const std::vector<Flag>& flags) { return failure(rank, patience_s, flags); },
  };
}

int main(int argc, char** argv) { return run(argc, argv, all_reduce, make_example); }
