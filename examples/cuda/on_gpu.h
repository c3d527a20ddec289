// Devices, memory, streams and launches on GPUs. on_host.h has the same names for a host without.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <cuda/atomic>
#include <cuda/std/chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

// Eight ranks have to fit one GPU together.
inline constexpr int kNumLanes = 8;
inline constexpr int kNumThreads = 512;
inline constexpr std::size_t kSlotCount = 16 << 10;
inline constexpr int kNumCalls = 20;
inline constexpr std::size_t kLargestNbytes = 64 << 20;

inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": error " + std::to_string(error) + ", " +
                           cudaGetErrorString(error));
}
#define CHECK(call) check((call), #call)

// The device of each rank: one each if all of them reach each other's memory, else the first for
// all. Throws if a rank's CTAs could wait for a CTA that does not fit the GPU with them.
template <typename... Parameters>
std::vector<int> devices_of_ranks(int world_size, void (*kernel)(Parameters...), int num_ctas) {
  int num_devices = 0;
  CHECK(cudaGetDeviceCount(&num_devices));
  bool one_each = num_devices >= world_size;
  for (int a = 0; one_each && a < world_size; ++a) {
    for (int b = 0; one_each && b < world_size; ++b) {
      int reaches = 1;
      if (a != b) CHECK(cudaDeviceCanAccessPeer(&reaches, a, b));
      one_each = reaches != 0;
    }
  }
  std::vector<int> devices(world_size, 0);
  for (int rank = 0; rank < (one_each ? world_size : 1); ++rank) {
    devices[rank] = rank;
    CHECK(cudaSetDevice(rank));
    for (int peer = 0; one_each && peer < world_size; ++peer) {
      if (peer != rank) CHECK(cudaDeviceEnablePeerAccess(peer, 0));
    }
    // It also loads the kernel: at its first launch that could wait for the kernels of other ranks,
    // and they for it.
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, kernel));
    int per_sm = 0;
    int num_sms = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, kNumThreads, 0));
    CHECK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, rank));
    const int wanted = num_ctas * (one_each ? 1 : world_size);
    if (wanted > per_sm * num_sms) {
      throw std::runtime_error(std::to_string(wanted) + " CTAs do not fit GPU " +
                               std::to_string(rank) + ", which holds " +
                               std::to_string(per_sm * num_sms));
    }
  }
  return devices;
}

inline void use_device(int device) { CHECK(cudaSetDevice(device)); }

// As many as there can be of a GPU's queues; by default eight. Before the first call to CUDA.
inline void use_a_queue_for_each_stream() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

struct FreeOnDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
template <typename T>
using DeviceArray = std::unique_ptr<T[], FreeOnDevice>;

// All bits are zero. At least one element.
template <typename T>
DeviceArray<T> allocate(int device, std::size_t count) {
  use_device(device);
  T* memory = nullptr;
  const std::size_t nbytes = (count > 0 ? count : 1) * sizeof(T);
  CHECK(cudaMalloc(&memory, nbytes));
  DeviceArray<T> array(memory);
  CHECK(cudaMemset(memory, 0, nbytes));
  CHECK(cudaDeviceSynchronize());
  return array;
}

class Stream {
 public:
  Stream() { CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void synchronize() { CHECK(cudaStreamSynchronize(stream_)); }

  // From the host to the device or back.
  template <typename T>
  void copy(T* to, const T* from, std::size_t count) {
    CHECK(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, stream_));
    synchronize();
  }
  template <typename T>
  void zero(T* memory, std::size_t count) {
    CHECK(cudaMemsetAsync(memory, 0, count * sizeof(T), stream_));
    synchronize();
  }

 private:
  cudaStream_t stream_ = nullptr;
};

template <typename... Parameters>
void launch(void (*kernel)(Parameters...), int num_ctas, int num_threads, Stream& stream,
            const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_ctas);
  config.blockDim = dim3(num_threads);
  config.stream = stream.get();
  CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// What a stream did between start and stop.
class Timer {
 public:
  Timer() {
    CHECK(cudaEventCreate(&start_));
    CHECK(cudaEventCreate(&stop_));
  }
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(Stream& stream) { CHECK(cudaEventRecord(start_, stream.get())); }
  void stop(Stream& stream) { CHECK(cudaEventRecord(stop_, stream.get())); }
  double microseconds() const {
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return 1e3 * milliseconds;
  }

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};
