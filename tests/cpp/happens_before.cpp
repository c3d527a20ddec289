#include "happens_before.h"

#include <algorithm>

namespace happens_before {
namespace {

void join(Clock& clock, const Clock& other) {
  for (std::size_t t = 0; t < clock.size(); ++t) clock[t] = std::max(clock[t], other[t]);
}

}  // namespace

Record::Record(int num_threads) : clocks_(num_threads, Clock(num_threads)) {
  for (int t = 0; t < num_threads; ++t) clocks_[t][t] = 1;
}

Record::~Record() = default;

void Record::release(const void* flag, int thread, bool orders) {
  const std::lock_guard lock(mutex_);
  Flag& state = flags_.try_emplace(flag, Flag{Clock(clocks_.size()), {}}).first->second;
  note(state.written, thread, true, "a flag");
  if (orders) state.clock = clocks_[thread];
  ++clocks_[thread][thread];
}

void Record::acquire(const void* flag, int thread) {
  const std::lock_guard lock(mutex_);
  if (const auto it = flags_.find(flag); it != flags_.end())
    join(clocks_[thread], it->second.clock);
}

void Record::arrive(const void* barrier, std::uint64_t number, int thread) {
  const std::lock_guard lock(mutex_);
  Clock& clock = barriers_.try_emplace({barrier, number}, Clock(clocks_.size())).first->second;
  join(clock, clocks_[thread]);
  ++clocks_[thread][thread];
}

void Record::leave(const void* barrier, std::uint64_t number, int thread) {
  const std::lock_guard lock(mutex_);
  join(clocks_[thread], barriers_.at({barrier, number}));
}

void Record::synchronize(int first, int num) {
  const std::lock_guard lock(mutex_);
  Clock all(clocks_.size());
  for (int t = first; t < first + num; ++t) join(all, clocks_[t]);
  for (int t = first; t < first + num; ++t) {
    join(clocks_[t], all);
    ++clocks_[t][t];
  }
}

void Record::access(const void* memory, std::size_t nbytes, bool writes, int thread,
                    const char* what) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  for (std::uintptr_t at = begin; at < begin + nbytes; ++at) note(bytes_[at], thread, writes, what);
}

std::set<std::string> Record::races() {
  const std::lock_guard lock(mutex_);
  return races_;
}

void Record::note(Accesses& accesses, int thread, bool writes, const char* what) {
  const Clock& known = clocks_[thread];
  for (const Access& each : accesses) {
    if (each.thread == thread || !(writes || each.writes)) continue;
    if (known[each.thread] < each.moment) {
      races_.insert(std::string(writes ? "write to " : "read of ") + what + " after a " +
                    (each.writes ? "write" : "read"));
    }
  }
  // A thread that is ordered behind a write need not be compared with what came before it.
  std::erase_if(accesses, [&](const Access& each) {
    return (writes && known[each.thread] >= each.moment) ||
           (each.thread == thread && each.writes == writes);
  });
  accesses.push_back({thread, known[thread], writes});
}

}  // namespace happens_before
