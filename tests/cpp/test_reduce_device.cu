// Reductions on device memory: refusals and, where there is a GPU, the bits of reduce_host.
#include <cuda_runtime.h>

#include <cstring>
#include <random>
#include <utility>

#include "check.h"
#include "reduce/device.h"
#include "reduce/device_divide.h"
#include "reduce/small_float.h"
#include "reference.h"

namespace {

using namespace ringcomm;

bool has_gpu() {
  int num_devices = 0;
  return cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0;
}

class DeviceBuffer {
 public:
  DeviceBuffer(std::size_t nbytes, std::size_t misalignment) {
    CHECK_EQ(cudaMalloc(&allocation_, nbytes + misalignment + 1), cudaSuccess);
    data_ = static_cast<std::byte*>(allocation_) + misalignment;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : allocation_(std::exchange(other.allocation_, nullptr)), data_(other.data_) {}
  ~DeviceBuffer() { cudaFree(allocation_); }
  std::byte* data() const { return data_; }

 private:
  void* allocation_ = nullptr;
  std::byte* data_;
};

// `together`: all pointers have the same misalignment.
void check_reduction(const Reduction& r, int num_inputs, int num_outputs, std::size_t count,
                     std::size_t misalignment, bool together, std::mt19937& random) {
  const std::size_t width = element_size(r.dtype);
  const std::size_t nbytes = count * width;
  const auto place = [&](int k) { return together ? misalignment : misalignment * (k + 1) % 19; };
  std::vector<std::vector<std::byte>> host(num_inputs, std::vector<std::byte>(nbytes));
  std::vector<DeviceBuffer> buffers;
  std::vector<const void*> host_inputs, device_inputs;
  for (int k = 0; k < num_inputs; ++k) {
    for (std::byte& byte : host[k]) byte = static_cast<std::byte>(random());
    buffers.emplace_back(nbytes, place(k));
    CHECK_EQ(cudaMemcpy(buffers[k].data(), host[k].data(), nbytes, cudaMemcpyHostToDevice),
             cudaSuccess);
    host_inputs.push_back(host[k].data());
    device_inputs.push_back(buffers[k].data());
  }
  buffers.emplace_back(nbytes, place(num_inputs));
  // The second output is the last input.
  void* device_outputs[] = {buffers[num_inputs].data(), buffers[num_inputs - 1].data()};
  std::vector<std::byte> expected(nbytes), got(nbytes);
  void* host_outputs[] = {expected.data()};
  reduce_host(r, host_inputs.data(), num_inputs, host_outputs, 1, count);
  CHECK_EQ(
      reduce_device(r, device_inputs.data(), num_inputs, device_outputs, num_outputs, count, 0),
      cudaSuccess);
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int k = 0; k < num_outputs; ++k) {
    CHECK_EQ(cudaMemcpy(got.data(), device_outputs[k], nbytes, cudaMemcpyDeviceToHost),
             cudaSuccess);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK_WITH(reference::same(r.dtype, reference::read_bits(got.data() + i * width, width),
                                 reference::read_bits(expected.data() + i * width, width)),
                 std::string(name(r.dtype)) + " " + name(r.op) + ", count " +
                     std::to_string(count) + ", element " + std::to_string(i));
    }
  }
}

}  // namespace

TEST(meaningless_reductions_are_refused_without_a_launch) {
  const void* inputs[kMaxDeviceInputs + 1] = {};
  void* outputs[3] = {};
  const Reduction sum{DType::kFloat32, ReduceOp::kSum};
  CHECK_EQ(reduce_device(sum, inputs, 0, outputs, 1, 8, 0), cudaErrorInvalidValue);
  CHECK_EQ(reduce_device(sum, inputs, 65, outputs, 1, 8, 0), cudaErrorInvalidValue);
  CHECK_EQ(reduce_device(sum, inputs, 2, outputs, 3, 8, 0), cudaErrorInvalidValue);
  CHECK_EQ(reduce_device({DType::kBool, ReduceOp::kAvg}, inputs, 2, outputs, 1, 8, 0),
           cudaErrorNotSupported);
  CHECK_EQ(reduce_device(sum, inputs, 2, outputs, 1, 0, 0), cudaSuccess);
}

// 98: a tie between two subnormal float32, times the rounded 1/98, is not that tie.
TEST(uniform_divisor_gives_the_bits_of_a_division) {
  for (int divisor : {1, 2, 3, 7, 98, 1000, 16777213, 2147483647}) {
    const UniformDivisor uniform = UniformDivisor::of(divisor);
    const auto check = [&](std::uint32_t bits) {
      const float value = float_of(bits);
      const std::uint32_t expected = bits_of(value / static_cast<float>(divisor));
      CHECK_WITH(reference::same(DType::kFloat32, bits_of(uniform.divide(value)), expected),
                 std::to_string(bits) + " / " + std::to_string(divisor));
    };
    for (std::uint64_t bits = 0; bits < 1ull << 32; bits += 4099) check(bits);
    for (std::uint32_t bits = 0; bits < 1 << 19; ++bits) check(bits);
    for (std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x80000000u, 0x7fc00000u}) check(bits);
  }
}

TEST(device_equals_host_or_says_why_it_cannot_run) {
  if (!has_gpu()) {
    float value = 0;
    const void* inputs[] = {&value, &value};
    void* outputs[] = {&value};
    CHECK(reduce_device({DType::kFloat32, ReduceOp::kSum}, inputs, 2, outputs, 1, 1, 0) !=
          cudaSuccess);
    return;
  }
  std::mt19937 random(1);
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      Reduction r{static_cast<DType>(d), static_cast<ReduceOp>(o)};
      if (!supports(r.dtype, r.op)) continue;
      for (int num_inputs : {1, 2, 3, 64}) {
        if (r.op == ReduceOp::kAvg) r.divisor = num_inputs + 1;
        if (r.op == ReduceOp::kPremulSum) {
          r.scaled_input = num_inputs - 1;
          r.factor = 1.0 / 3;
        }
        for (std::size_t count : {1, 31, 1000, 100003}) {
          if (num_inputs == 64 && count > 1000) continue;
          check_reduction(r, num_inputs, 2, count, 0, true, random);
          check_reduction(r, num_inputs, 1, count, element_size(r.dtype), true, random);
          check_reduction(r, num_inputs, 2, count, element_size(r.dtype), false, random);
          check_reduction(r, num_inputs, 1, count, 3, false, random);
        }
      }
    }
  }
}
