// What all examples share: the ranks, each a host thread; what a kernel is told; memory that peers
// reach; results checked against a sum made on the host; a table of times.
#pragma once

#ifdef __CUDACC__
#include "on_gpu.h"
#else
#include "on_host.h"
#endif

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

inline constexpr int kMaxRanks = 8;

// Flags are only ever read and written through FlagRef while kernels run: seen by all GPUs.
using Flag = std::int64_t;
using FlagRef = cuda::atomic_ref<Flag, cuda::thread_scope_system>;

// What a kernel is told about the ranks. All of them can read and write all of this.
struct Group {
  int rank;
  int world_size;
  float* memory[kMaxRanks];  // of each rank
  Flag* flags[kMaxRanks];    // of each rank; zero before the first call
};

// Elements of a buffer.
struct Range {
  std::size_t begin;
  std::size_t count;
};

// One of the parts into which a range is cut. They begin at multiples of 4 elements, which are 16
// bytes; part 0 is the largest, and the last ones can be smaller or empty.
__host__ __device__ inline Range part_of(Range whole, int index, int num_parts) {
  const std::size_t most = (whole.count + 4 * num_parts - 1) / (4 * num_parts) * 4;
  const std::size_t begin = min(index * most, whole.count);
  return {whole.begin + begin, min(most, whole.count - begin)};
}

__device__ inline float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

template <typename Vector>
__device__ Vector& at(float* data, std::size_t i) {
  return reinterpret_cast<Vector*>(data)[i];
}
template <typename Vector>
__device__ const Vector& at(const float* data, std::size_t i) {
  return reinterpret_cast<const Vector*>(data)[i];
}

// Shares out elements among the threads of a CTA: visit<float4>(i) for each four of them, and
// visit<float>(i) for each that is left over. Which thread gets an element depends on count alone.
template <typename Visit>
__device__ void for_each_vector(std::size_t count, const Visit& visit) {
  const std::size_t num_vectors = count / 4;
  for (std::size_t i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    visit.template operator()<float4>(i);
  }
  for (std::size_t i = 4 * num_vectors + threadIdx.x; i < count; i += blockDim.x) {
    visit.template operator()<float>(i);
  }
}

// The arguments of a program.
struct Options {
  int world_size = 0;
  std::size_t largest_nbytes = kLargestNbytes;
  int missing = -1;     // a rank that never calls the kernel; -1: none
  int patience_s = 10;  // for the example that does not wait for ever
};

struct Example {
  int num_ctas;
  std::size_t memory_count;  // floats in Group::memory of each rank
  std::size_t num_flags;     // in Group::flags of each rank
  bool zero_flags;           // before every call, while all ranks stand still
  // input and output: count floats each, apart from each other.
  std::function<void(const Group&, const float* input, float* output, std::size_t count, Stream&)>
      all_reduce;
  // Given the rank's flags after its calls, says what went wrong in the kernel, or "".
  std::function<std::string(int rank, const std::vector<Flag>&)> failure = nullptr;
};

struct PeerFailed {};

// A barrier of the host threads. Throws PeerFailed, also to those who wait already, once one of
// them has failed.
class Meeting {
 public:
  explicit Meeting(int count) : count_(count) {}

  void wait() {
    std::unique_lock lock(mutex_);
    const int held = held_;
    if (++arrived_ == count_) {
      arrived_ = 0;
      ++held_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return held_ != held || failed_; });
    if (held_ == held) throw PeerFailed();
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  const int count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int held_ = 0;
  bool failed_ = false;
};

// Small integers, whose sums are exact in any order; others in each call.
inline float input_value(int rank, std::size_t i, int call) {
  return static_cast<float>((7 * i + 31 * rank + 17 * call) % 101);
}

// Memory of one rank, and what it does with the kernel.
class Rank {
 public:
  Rank(const Example& example, const Options& options, int rank, int device)
      : example_(example),
        options_(options),
        rank_(rank),
        device_(device),
        memory_(allocate<float>(device, example.memory_count)),
        flags_(allocate<Flag>(device, example.num_flags)),
        stream_(std::make_unique<Stream>()),
        microseconds_(0) {
    const std::size_t largest_count = options.largest_nbytes / sizeof(float);
    for (int b = 0; b < kNumBuffers; ++b) {
      inputs_.push_back(allocate<float>(device, largest_count));
      outputs_.push_back(allocate<float>(device, largest_count + kNumGuards));
    }
  }

  float* memory() const { return memory_.get(); }
  Flag* flags() const { return flags_.get(); }
  double microseconds() const { return microseconds_; }

  // Calls the kernel several times with count elements, and checks what came out.
  void measure(const Group& group, std::size_t count, Meeting& meeting) {
    use_device(device_);
    Stream& stream = *stream_;
    std::vector<float> host(count + kNumGuards);
    for (int b = 0; b < kNumBuffers; ++b) {
      for (std::size_t i = 0; i < count; ++i) host[i] = input_value(rank_, i, b);
      stream.copy(inputs_[b].get(), host.data(), count);
      std::fill(host.begin(), host.end(), kUntouched);
      stream.copy(outputs_[b].get(), host.data(), count + kNumGuards);
    }

    std::vector<Timer> timers(kNumCalls);
    meeting.wait();
    for (int call = 0; call < kNumCalls; ++call) {
      if (example_.zero_flags) {
        stream.synchronize();
        meeting.wait();
        stream.zero(flags(), example_.num_flags);
        meeting.wait();
      }
      const int b = call % kNumBuffers;
      timers[call].start(stream);
      example_.all_reduce(group, inputs_[b].get(), outputs_[b].get(), count, stream);
      timers[call].stop(stream);
    }
    stream.synchronize();
    meeting.wait();  // all have left the kernel: nobody writes this rank's flags
    if (example_.failure) {
      std::vector<Flag> flags(example_.num_flags);
      stream.copy(flags.data(), flags_.get(), flags.size());
      const std::string failure = example_.failure(rank_, flags);
      if (!failure.empty()) throw std::runtime_error(failure);
    }

    for (int b = 0; b < kNumBuffers; ++b) {
      stream.copy(host.data(), outputs_[b].get(), count + kNumGuards);
      check_sum(host, count, b);
    }
    microseconds_ = 0;  // the first call warms up
    for (int call = 1; call < kNumCalls; ++call) {
      microseconds_ += timers[call].microseconds() / (kNumCalls - 1);
    }
  }

 private:
  static constexpr int kNumBuffers = 2;  // calls take them in turn
  static constexpr int kNumGuards = 4;   // elements after the output
  static constexpr float kUntouched = -1;

  void check_sum(const std::vector<float>& output, std::size_t count, int call) const {
    for (std::size_t i = 0; i < output.size(); ++i) {
      float expected = i < count ? 0 : kUntouched;
      for (int rank = 0; i < count && rank < options_.world_size; ++rank) {
        expected += input_value(rank, i, call);
      }
      if (output[i] == expected) continue;
      throw std::runtime_error("rank " + std::to_string(rank_) + " has " +
                               std::to_string(output[i]) + " instead of " +
                               std::to_string(expected) + " in element " + std::to_string(i) +
                               " of " + std::to_string(count));
    }
  }

  const Example& example_;
  const Options& options_;
  const int rank_;
  const int device_;
  DeviceArray<float> memory_;
  DeviceArray<Flag> flags_;
  // For all calls. Streams made anew for each length can come to share one of the GPU's queues, in
  // which the kernel of a rank waits behind that of another, which waits for it.
  std::unique_ptr<Stream> stream_;
  std::vector<DeviceArray<float>> inputs_;
  std::vector<DeviceArray<float>> outputs_;
  double microseconds_;
};

// Numbers of elements: none, some that ranks and vectors do not divide, and powers of 4 KiB.
inline std::vector<std::size_t> counts_up_to(std::size_t largest_nbytes) {
  std::vector<std::size_t> counts = {0, 1, 7, 253, 1021, 10007};
  for (std::size_t nbytes = 4 << 10; nbytes <= largest_nbytes; nbytes *= 4) {
    counts.push_back(nbytes / sizeof(float));
  }
  std::erase_if(counts, [&](auto count) { return count * sizeof(float) > largest_nbytes; });
  std::sort(counts.begin(), counts.end());
  return counts;
}

// One row of the table; GB = 1e9 bytes. busbw is what each rank's link has to carry at least.
inline void print_row(std::size_t nbytes, double microseconds, int world_size) {
  const double algbw = nbytes / microseconds / 1e3;
  const double busbw = algbw * 2 * (world_size - 1) / world_size;
  std::printf("%12zu %12.1f %12.2f %12.2f\n", nbytes, microseconds, algbw, busbw);
  std::fflush(stdout);
}

// All ranks at once, each on a thread. The errors of those that failed, in order of rank.
inline std::vector<std::string> measure(std::vector<Rank>& ranks, const Options& options,
                                        std::size_t count) {
  Group group{};
  group.world_size = options.world_size;
  for (int rank = 0; rank < options.world_size; ++rank) {
    group.memory[rank] = ranks[rank].memory();
    group.flags[rank] = ranks[rank].flags();
  }
  std::vector<std::string> errors(options.world_size);
  Meeting meeting(options.world_size - (options.missing < 0 ? 0 : 1));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (rank == options.missing) continue;
    group.rank = rank;
    threads.emplace_back([&, rank, group] {
      try {
        ranks[rank].measure(group, count, meeting);
      } catch (const PeerFailed&) {
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        meeting.fail();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::erase(errors, "");
  return errors;
}

inline Options parse(int argc, char** argv) {
  try {
    Options options;
    if (argc < 2 || argc > 5) throw std::invalid_argument("number of arguments");
    options.world_size = std::stoi(argv[1]);
    if (argc > 2) options.largest_nbytes = std::stoull(argv[2]);
    if (argc > 3) options.missing = std::stoi(argv[3]);
    if (argc > 4) options.patience_s = std::stoi(argv[4]);
    if (options.world_size < 2 || options.world_size > kMaxRanks) {
      throw std::invalid_argument("number of ranks");
    }
    if (options.missing >= options.world_size) throw std::invalid_argument("missing rank");
    return options;
  } catch (const std::logic_error&) {
    throw std::invalid_argument(std::string("usage: ") + argv[0] +
                                " RANKS [LARGEST_NBYTES [MISSING_RANK [SECONDS]]], 2 to " +
                                std::to_string(kMaxRanks) + " ranks");
  }
}

// The main function of an example: its exit status.
template <typename Kernel>
int run(int argc, char** argv, Kernel* kernel, Example (*make_example)(const Options&)) {
  try {
    use_a_queue_for_each_stream();
    const Options options = parse(argc, argv);
    const Example example = make_example(options);
    const auto devices = devices_of_ranks(options.world_size, kernel, example.num_ctas);
    std::vector<Rank> ranks;
    ranks.reserve(options.world_size);
    for (int rank = 0; rank < options.world_size; ++rank) {
      ranks.emplace_back(example, options, rank, devices[rank]);
    }
    std::printf("%12s %12s %12s %12s\n", "nbytes", "time us", "algbw GB/s", "busbw GB/s");
    for (const std::size_t count : counts_up_to(options.largest_nbytes)) {
      const auto errors = measure(ranks, options, count);
      for (const std::string& error : errors) std::fprintf(stderr, "%s\n", error.c_str());
      if (!errors.empty()) return 1;
      double slowest = 0;
      for (const Rank& rank : ranks) slowest = std::max(slowest, rank.microseconds());
      print_row(count * sizeof(float), slowest, options.world_size);
    }
    std::printf("%d ranks: right\n", options.world_size);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
