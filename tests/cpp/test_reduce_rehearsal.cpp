// The device kernels' source on the host, which plays the threads of a grid one after another: the
// bits of reduce_host, no access outside the buffers or off alignment (the sanitizers see to it),
// and no thread that depends on another's having run before.
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "reduce/device_share.h"
#include "reduce/device_table.h"
#include "reduce_cases.h"

namespace {

using namespace ringcomm;
using reduce_cases::Bytes;
using reduce_cases::Case;
using reduce_cases::Outputs;

constexpr std::size_t kL2 = std::size_t{3} << 33;  // bytes; more than what all tests take but one

struct HostMaker {
  using Function = void (*)(const DeviceArguments&, const Worker&);
  template <DType dtype, ReduceOp op, int kBatch>
  static constexpr Function make() {
    return [](const DeviceArguments& args, const Worker& worker) {
      reduce_share<dtype, op, kBatch>(args, worker);
    };
  }
};

template <int... dtypes>
auto make_table(std::integer_sequence<int, dtypes...>) {
  return std::array{make_kernel_row<HostMaker, static_cast<DType>(dtypes)>()...};
}

HostMaker::Function find_kernel(KernelKey key, int batch) {
  static const auto kTable = make_table(std::make_integer_sequence<int, kNumDTypes>());
  return kTable[static_cast<std::size_t>(key.dtype)][static_cast<std::size_t>(key.op)]
               [static_cast<std::size_t>(batch)];
}

// `misalignment` bytes from 16-byte alignment, with nothing behind its end.
class Buffer {
 public:
  Buffer(std::size_t nbytes, std::size_t misalignment)
      : memory_(static_cast<std::byte*>(::operator new(nbytes + misalignment))),
        misalignment_(misalignment) {}
  std::byte* data() const { return memory_.get() + misalignment_; }

 private:
  struct Delete {
    void operator()(std::byte* memory) const { ::operator delete(memory); }
  };
  std::unique_ptr<std::byte, Delete> memory_;
  std::size_t misalignment_;
};

enum class WorkItem { kForward, kBackward, kShuffled };

// All of 2 blocks of 5 threads, few enough that each has several packs.
void run_grid(HostMaker::Function kernel, const DeviceArguments& args, WorkItem work_item) {
  constexpr int kBlocks = 2, kThreads = 5;
  std::vector<int> threads(kBlocks * kThreads);
  std::iota(threads.begin(), threads.end(), 0);
  if (work_item == WorkItem::kBackward) std::reverse(threads.begin(), threads.end());
  std::mt19937 random(7);
  if (work_item == WorkItem::kShuffled) std::shuffle(threads.begin(), threads.end(), random);
  for (int i : threads) {
    kernel(args, {static_cast<std::size_t>(i / kThreads), kBlocks,
                  static_cast<std::size_t>(i % kThreads), kThreads});
  }
}

// With the kernel of `batch`, unless it takes fewer inputs than there are.
std::vector<Bytes> rehearse(const Case& c, const std::vector<Bytes>& inputs, int batch,
                            WorkItem work_item) {
  const KernelKey key = kernel_key(c.reduction.dtype, c.reduction.op);
  if (kBatches[batch] < std::min(c.num_inputs, kLargestBatch) || !has_batch(key.op, batch)) {
    return {};
  }
  std::vector<Buffer> buffers;
  std::vector<const void*> input_pointers;
  for (int k = 0; k <= c.num_inputs; ++k) buffers.emplace_back(c.nbytes(), c.misalignment_of(k));
  for (int k = 0; k < c.num_inputs; ++k) {
    std::memcpy(buffers[k].data(), inputs[k].data(), c.nbytes());
    input_pointers.push_back(buffers[k].data());
  }
  // A second output is the last input; in place is the first one.
  std::vector<void*> outputs{buffers[c.outputs == Outputs::kInPlace ? 0 : c.num_inputs].data()};
  if (c.outputs == Outputs::kTwo) outputs.push_back(buffers[c.num_inputs - 1].data());
  const DeviceLaunch launch =
      plan_launch(c.reduction, input_pointers.data(), c.num_inputs, outputs.data(),
                  static_cast<int>(outputs.size()), c.count, {1, kL2});
  run_grid(find_kernel(launch.key, batch), launch.arguments, work_item);
  std::vector<Bytes> results;
  for (void* output : outputs) {
    const auto* bytes = static_cast<const std::byte*>(output);
    results.emplace_back(bytes, bytes + c.nbytes());
  }
  return results;
}

void check_dtype(DType dtype) {
  for (int batch = 0; batch < kNumBatches; ++batch) {
    const WorkItem work_item = static_cast<WorkItem>(batch);
    reduce_cases::check_dtype(dtype, 333, [&](const Case& c, const std::vector<Bytes>& inputs) {
      return rehearse(c, inputs, batch, work_item);
    });
  }
}

DeviceLaunch launch_of(DType dtype, int num_inputs, std::size_t count, std::size_t address = 4096,
                       ReduceOp op = ReduceOp::kSum) {
  std::vector<const void*> inputs(num_inputs, reinterpret_cast<const void*>(address));
  void* output = reinterpret_cast<void*>(address + 16);
  return plan_launch({dtype, op}, inputs.data(), num_inputs, &output, 1, count, {100, kL2});
}

}  // namespace

TEST(float64_on_the_device) { check_dtype(DType::kFloat64); }
TEST(float32_on_the_device) { check_dtype(DType::kFloat32); }
TEST(float16_on_the_device) { check_dtype(DType::kFloat16); }
TEST(bfloat16_on_the_device) { check_dtype(DType::kBFloat16); }
TEST(float8_e4m3fn_on_the_device) { check_dtype(DType::kFloat8E4M3FN); }
TEST(float8_e5m2_on_the_device) { check_dtype(DType::kFloat8E5M2); }
TEST(int64_on_the_device) { check_dtype(DType::kInt64); }
TEST(int32_on_the_device) { check_dtype(DType::kInt32); }
TEST(int16_on_the_device) { check_dtype(DType::kInt16); }
TEST(int8_on_the_device) { check_dtype(DType::kInt8); }
TEST(uint8_on_the_device) { check_dtype(DType::kUInt8); }
TEST(bool_on_the_device) { check_dtype(DType::kBool); }

TEST(every_reduction_has_a_kernel) {
  int num_kernels = 0;
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const DType dtype = static_cast<DType>(d);
      const ReduceOp op = static_cast<ReduceOp>(o);
      for (int batch = 0; batch < kNumBatches; ++batch) {
        const KernelKey key = kernel_key(dtype, op);
        if (supports(dtype, op))
          CHECK_EQ(find_kernel(key, batch) != nullptr, has_batch(key.op, batch));
        num_kernels += find_kernel({dtype, op}, batch) != nullptr;
      }
    }
  }
  CHECK_EQ(num_kernels, 22 * kNumBatches + 15);
}

TEST(the_number_of_inputs_chooses_the_batch) {
  for (int num_inputs : reduce_cases::kNumsOfInputs) {
    const DeviceLaunch large = launch_of(DType::kFloat32, num_inputs, 1 << 24);
    CHECK_EQ(kBatches[large.batch], num_inputs <= 2 ? 2 : num_inputs <= 4 ? 4 : 8);
    CHECK_EQ(large.num_blocks, 400u);
    // One pack for each thread.
    CHECK_EQ(kBatches[launch_of(DType::kFloat32, num_inputs, 400 * 256 * 4).batch], 8);
  }
  const DeviceLaunch product = launch_of(DType::kFloat32, 2, 1 << 24, 4096, ReduceOp::kProduct);
  CHECK_EQ(kBatches[product.batch], 8);
  CHECK_EQ(launch_of(DType::kFloat32, 2, 1).num_blocks, 1u);
  CHECK_EQ(launch_of(DType::kFloat32, 2, 4 * 256 * 4 + 4).num_blocks, 5u);
  CHECK_EQ(launch_of(DType::kInt8, 2, 1 << 24).num_blocks, 300u);
}

// A thread loads two packs at once of two inputs, and one of three.
TEST(what_comes_from_memory_has_a_block_for_what_its_threads_load_at_once) {
  constexpr std::size_t kBeyond = kL2 / 3 / 4, kBlock = 256 * 4;  // elements
  CHECK_EQ(launch_of(DType::kFloat32, 2, kBeyond).num_blocks, 400u);
  CHECK_EQ(launch_of(DType::kFloat32, 2, kBeyond + 4).num_blocks, (kBeyond + 4) / (2 * kBlock) + 1);
  CHECK_EQ(launch_of(DType::kFloat32, 3, kBeyond).num_blocks, kBeyond / kBlock);
}

TEST(views_misaligned_alike_are_reduced_in_packs) {
  for (std::size_t misalignment = 0; misalignment < 16; misalignment += 4) {
    const Partition p =
        launch_of(DType::kFloat32, 8, 1000, 4096 + misalignment).arguments.partition;
    CHECK(p.num_packs >= 249);
  }
}
