// Reductions on device memory: refusals and, where there is a GPU, the bits of reduce_host.
#include <cuda_runtime.h>

#include <array>

#include "check.h"
#include "reduce/device.h"
#include "reduce/device_arguments.h"
#include "reduce/small_float.h"
#include "reduce_cases.h"

namespace {

using namespace ringcomm;
using reduce_cases::Bytes;
using reduce_cases::Case;
using reduce_cases::Outputs;

bool has_gpu() {
  int num_devices = 0;
  return cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0;
}

// Memory that is made once, as making it takes longer than a reduction. What is placed in it ends
// where it ends, up to its alignment: memcheck sees a thread that goes further. It is freed with
// the process.
class DeviceBuffer {
 public:
  std::byte* place(std::size_t nbytes, std::size_t misalignment) {
    const std::size_t needed = nbytes + misalignment + kAlignment;
    if (needed > capacity_) {
      CHECK_EQ(cudaFree(allocation_), cudaSuccess);
      CHECK_EQ(cudaMalloc(&allocation_, needed), cudaSuccess);
      capacity_ = needed;
    }
    const std::size_t offset = (capacity_ - nbytes - misalignment) / kAlignment * kAlignment;
    return static_cast<std::byte*>(allocation_) + offset + misalignment;
  }

 private:
  static constexpr std::size_t kAlignment = 16;  // of what a thread loads at once
  void* allocation_ = nullptr;
  std::size_t capacity_ = 0;
};

std::vector<Bytes> run_on_device(const Case& c, const std::vector<Bytes>& inputs) {
  static std::array<DeviceBuffer, kMaxDeviceInputs + 1> memory;
  std::vector<std::byte*> buffers;
  for (int k = 0; k <= c.num_inputs; ++k) {
    buffers.push_back(memory[k].place(c.nbytes(), c.misalignment_of(k)));
  }
  for (int k = 0; k < c.num_inputs; ++k) {
    CHECK_EQ(cudaMemcpy(buffers[k], inputs[k].data(), c.nbytes(), cudaMemcpyHostToDevice),
             cudaSuccess);
  }
  const std::vector<const void*> input_pointers(buffers.begin(), buffers.end() - 1);
  // A second output is the last input; in place is the first one.
  std::vector<void*> outputs{buffers[c.outputs == Outputs::kInPlace ? 0 : c.num_inputs]};
  if (c.outputs == Outputs::kTwo) outputs.push_back(buffers[c.num_inputs - 1]);
  CHECK_EQ(reduce_device(c.reduction, input_pointers.data(), c.num_inputs, outputs.data(),
                         static_cast<int>(outputs.size()), c.count, 0),
           cudaSuccess);
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<Bytes> results(outputs.size(), Bytes(c.nbytes()));
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    CHECK_EQ(cudaMemcpy(results[k].data(), outputs[k], c.nbytes(), cudaMemcpyDeviceToHost),
             cudaSuccess);
  }
  return results;
}

}  // namespace

TEST(meaningless_reductions_are_refused_without_a_launch) {
  const void* inputs[kMaxDeviceInputs + 1] = {};
  void* outputs[3] = {};
  const Reduction sum{DType::kFloat32, ReduceOp::kSum};
  CHECK_EQ(reduce_device(sum, inputs, 0, outputs, 1, 8, 0), cudaErrorInvalidValue);
  CHECK_EQ(reduce_device(sum, inputs, kMaxDeviceInputs + 1, outputs, 1, 8, 0),
           cudaErrorInvalidValue);
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

// Few enough for a checker of memory that takes a hundred times as long.
TEST(each_kernel_stays_within_its_memory) {
  if (!has_gpu()) return;
  std::mt19937 random(3);
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (int num_inputs : {2, 3, 9}) {
      for (const Reduction& r : reduce_cases::reductions(dtype, num_inputs)) {
        for (std::size_t count : {1009, 100003}) {
          const Case c{r,     num_inputs,          Outputs::kTwo,
                       count, element_size(dtype), reduce_cases::Placement::kTogether};
          reduce_cases::check_case(c, random_inputs(c, random), run_on_device);
        }
      }
    }
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
  for (int d = 0; d < kNumDTypes; ++d) {
    // Short, so that a thread has one pack at most; and long enough for all multiprocessors of a
    // large GPU to have several, with the kernels that this number of inputs has then.
    reduce_cases::check_dtype(static_cast<DType>(d), 10007, run_on_device);
    const std::size_t count = (16 << 20) / element_size(static_cast<DType>(d));
    std::mt19937 random(2);
    for (int num_inputs : {1, 2, 4, 5}) {
      const Case c{{static_cast<DType>(d), ReduceOp::kMax}, num_inputs, Outputs::kTwo, count, 0,
                   reduce_cases::Placement::kTogether};
      reduce_cases::check_case(c, random_inputs(c, random), run_on_device);
    }
  }
}
