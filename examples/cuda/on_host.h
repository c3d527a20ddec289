// CUDA's built-ins played by threads of the host, so that kernels run, and can be checked for data
// races, without a GPU: each CUDA thread is a std::thread, __syncthreads() a barrier of its CTA's
// threads, a launch ends when its threads have. on_gpu.h has the same names for GPUs.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

inline constexpr int kNumLanes = 2;
inline constexpr int kNumThreads = 4;
inline constexpr std::size_t kSlotCount = 16;
inline constexpr int kNumCalls = 4;
inline constexpr std::size_t kLargestNbytes = 16 << 10;

#define __global__
#define __device__
#define __host__

struct alignas(16) float4 {
  float x, y, z, w;
};

struct Index {
  unsigned int x;
};
inline thread_local Index threadIdx, blockIdx, blockDim, gridDim;

// Not std::barrier: all of those may share counters of the standard library, through which
// ThreadSanitizer would take CTAs for ordered that are not.
struct Cta {
  explicit Cta(int num_threads) { pthread_barrier_init(&barrier, nullptr, num_threads); }
  ~Cta() { pthread_barrier_destroy(&barrier); }
  Cta(const Cta&) = delete;
  Cta& operator=(const Cta&) = delete;

  pthread_barrier_t barrier;
  std::atomic<int> votes = 0;
};
inline thread_local Cta* this_cta;

using std::min;

inline void __syncthreads() { pthread_barrier_wait(&this_cta->barrier); }

inline int __syncthreads_or(int predicate) {
  if (predicate) ++this_cta->votes;
  __syncthreads();
  const int votes = this_cta->votes;
  __syncthreads();
  if (predicate) --this_cta->votes;
  return votes != 0;
}

namespace cuda {

namespace std = ::std;

enum thread_scope { thread_scope_system };

// Orders are written out as constants: compilers take one that they do not know for the strongest,
// which would hide that a program asks for too little.
template <typename T, thread_scope>
class atomic_ref {
 public:
  explicit atomic_ref(T& value) : value_(value) {}

  // Whoever looks at a value, perhaps to wait for another, lets other threads run.
  T load(::std::memory_order order) const {
    sched_yield();
    return order == ::std::memory_order_relaxed ? __atomic_load_n(&value_, __ATOMIC_RELAXED)
                                                : __atomic_load_n(&value_, __ATOMIC_ACQUIRE);
  }
  void store(T value, ::std::memory_order order) const {
    if (order == ::std::memory_order_relaxed) {
      __atomic_store_n(&value_, value, __ATOMIC_RELAXED);
    } else {
      __atomic_store_n(&value_, value, __ATOMIC_RELEASE);
    }
  }

 private:
  T& value_;
};

}  // namespace cuda

template <typename Kernel>
std::vector<int> devices_of_ranks(int world_size, Kernel, int) {
  return std::vector<int>(world_size, 0);
}

inline void use_device(int) {}
inline void use_a_queue_for_each_stream() {}

template <typename T>
using DeviceArray = std::unique_ptr<T[]>;

template <typename T>
DeviceArray<T> allocate(int, std::size_t count) {
  return std::make_unique<T[]>(count);
}

class Stream {
 public:
  void synchronize() {}
  template <typename T>
  void copy(T* to, const T* from, std::size_t count) {
    std::copy_n(from, count, to);
  }
  template <typename T>
  void zero(T* memory, std::size_t count) {
    std::fill_n(memory, count, T{});
  }
};

template <typename... Parameters>
void launch(void (*kernel)(Parameters...), int num_ctas, int num_threads, Stream&,
            const std::type_identity_t<Parameters>&... arguments) {
  std::deque<Cta> ctas;
  std::vector<std::jthread> threads;
  for (int c = 0; c < num_ctas; ++c) {
    Cta& cta = ctas.emplace_back(num_threads);
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back([=, &cta] {
        threadIdx.x = t;
        blockIdx.x = c;
        blockDim.x = num_threads;
        gridDim.x = num_ctas;
        this_cta = &cta;
        kernel(arguments...);
      });
    }
  }
}

class Timer {
 public:
  void start(Stream&) { start_ = Clock::now(); }
  void stop(Stream&) { stop_ = Clock::now(); }
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(stop_ - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_, stop_;
};
