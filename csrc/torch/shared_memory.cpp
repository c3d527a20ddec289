#include "torch/shared_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstddef>

#include "shm/arena.h"

namespace ringcomm {
namespace {

// Blocks that the calling thread is in now.
thread_local int wanted = 0;

// torch's allocator for the CPU, and for threads that want it the arena, as long as that has room.
// What either gives away may outlive any block and any thread.
class SharedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t nbytes) override {
    void* const data = wanted > 0 && nbytes > 0 ? take(nbytes) : nullptr;
    if (data == nullptr) return others().allocate(nbytes);
    c10::profiledCPUMemoryReporter().New(data, nbytes);
    return {data, data, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }

  // What torch has without this.
  static c10::Allocator& others() {
    static c10::Allocator* const found = c10::GetCPUAllocator();
    return *found;
  }

 private:
  static void* take(std::size_t nbytes) {
    shm::Arena* const arena = shm::Arena::of_this_process();
    return arena == nullptr ? nullptr : arena->allocate(nbytes);
  }
  static void free(void* data) {
    if (!shm::Arena::free(data)) return others().raw_deleter()(data);
    c10::profiledCPUMemoryReporter().Delete(data);
  }
};

// Never taken away: what it has given may be freed at any time.
void install() {
  static auto* const allocator = new SharedAllocator;
  SharedAllocator::others();
  if (c10::GetCPUAllocator() != allocator) c10::SetCPUAllocator(allocator);
  TORCH_CHECK(c10::GetCPUAllocator() == allocator,
              "ringcomm.shared_memory: another library has replaced torch's allocator for the CPU, "
              "for good");
}

}  // namespace

void begin_shared_memory() {
  install();
  ++wanted;
}

void end_shared_memory() { --wanted; }

bool is_shared(const at::Tensor& tensor) {
  const shm::Arena* const arena = shm::Arena::existing();
  return arena != nullptr && tensor.is_cpu() && tensor.has_storage() &&
         arena->find(tensor.storage().data(), tensor.storage().nbytes()).has_value();
}

}  // namespace ringcomm
