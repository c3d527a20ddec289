#include "shm/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "core/chunks.h"
#include "core/status.h"

namespace ringcomm::shm {
namespace {

constexpr std::size_t kAlignment = 128;  // two cache lines, as in shm/layout.h

// A child of fork() may have inherited any lock as taken: here is none.
std::atomic<Arena*> arena{nullptr};

std::size_t nbytes_of_machine() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// A lack of descriptors is no reason why a tensor could not be made elsewhere.
std::optional<File> file_without_name() {
  try {
    return File::make(File::Kind::kAnonymous);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

Arena* Arena::existing() {
  Arena* const found = arena.load(std::memory_order_acquire);
  return found != nullptr && found->fork_guard_.is_here() ? found : nullptr;
}

Arena* Arena::of_this_process() {
  Arena* found = arena.load(std::memory_order_acquire);
  if (found != nullptr && found->fork_guard_.is_here()) return found;
  Arena* const made = make(found);
  if (made == nullptr) return nullptr;
  if (arena.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return made;
  delete made;
  return found;
}

Arena* Arena::make(Arena* inherited) {
  std::optional<File> file = file_without_name();
  if (!file) return nullptr;
  const std::size_t nbytes = nbytes_of_machine();
  if (ftruncate(file->descriptor(), static_cast<off_t>(nbytes)) != 0) return nullptr;
  void* const base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                          file->descriptor(), 0);
  if (base == MAP_FAILED) return nullptr;
  return new Arena(std::move(*file), static_cast<std::byte*>(base), nbytes, inherited);
}

Arena::Arena(File file, std::byte* base, std::size_t nbytes, Arena* inherited)
    : file_(std::move(file)), base_(base), nbytes_(nbytes), inherited_(inherited) {
  insert_free(0, nbytes);
}

Arena::~Arena() { munmap(base_, nbytes_); }

void Arena::insert_free(std::size_t at, std::size_t nbytes) {
  free_.emplace(at, nbytes);
  by_nbytes_.emplace(nbytes, at);
}

void Arena::erase_free(std::map<std::size_t, std::size_t>::iterator range) {
  by_nbytes_.erase({range->second, range->first});
  free_.erase(range);
}

void* Arena::allocate(std::size_t nbytes) {
  if (nbytes > nbytes_) return nullptr;
  const std::size_t taken = round_up(std::max<std::size_t>(nbytes, 1), kAlignment);
  const std::lock_guard lock(mutex_);
  const auto fitting = by_nbytes_.lower_bound({taken, 0});
  if (fitting == by_nbytes_.end()) return nullptr;
  const auto [available, at] = *fitting;
  erase_free(free_.find(at));
  if (available > taken) insert_free(at + taken, available - taken);
  used_.emplace(at, taken);
  return base_ + at;
}

bool Arena::free(void* data) {
  Arena* owner = arena.load(std::memory_order_acquire);
  while (owner != nullptr && !owner->find(data, 0)) owner = owner->inherited_;
  if (owner == nullptr) return false;
  if (owner->fork_guard_.is_here()) {
    owner->release(static_cast<std::size_t>(static_cast<std::byte*>(data) - owner->base_));
  }
  return true;
}

void Arena::release(std::size_t at) {
  const std::lock_guard lock(mutex_);
  const auto range = used_.find(at);
  std::size_t nbytes = range->second;
  used_.erase(range);
  const auto after = free_.find(at + nbytes);
  if (after != free_.end()) {
    nbytes += after->second;
    erase_free(after);
  }
  const auto behind = free_.lower_bound(at);
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == at) {
      at = before->first;
      nbytes += before->second;
      erase_free(before);
    }
  }
  insert_free(at, nbytes);
}

std::optional<std::uint64_t> Arena::find(const void* data, std::size_t nbytes) const {
  // std::less orders pointers into different objects, too.
  const auto* const begin = static_cast<const std::byte*>(data);
  if (std::less<>()(begin, base_)) return std::nullopt;
  const auto at = static_cast<std::size_t>(begin - base_);
  if (at >= nbytes_ || nbytes > nbytes_ - at) return std::nullopt;
  return at;
}

}  // namespace ringcomm::shm
