// Whether what threads do to memory is ordered, whatever the order in which it came about.
//
// Every thread has a vector clock (Mattern, "Virtual time and global states of distributed
// systems", 1989): for each thread, up to which of its moments it knows what that has done. Who
// releases a flag leaves its clock there, and who acquires the flag takes it over; so do the
// threads of a barrier with each other. Two accesses to a byte, one of them a write, are a race
// unless the later one's thread knows of the earlier one (Flanagan, Freund, "FastTrack", 2009).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace happens_before {

using Clock = std::vector<std::uint32_t>;

inline void join(Clock& clock, const Clock& other) {
  for (std::size_t t = 0; t < clock.size(); ++t) clock[t] = std::max(clock[t], other[t]);
}

// Any thread may call any method; `thread` is who does it.
class Record {
 public:
  explicit Record(int num_threads) : clocks_(num_threads, Clock(num_threads)) {
    for (int t = 0; t < num_threads; ++t) clocks_[t][t] = 1;
  }

  void release(const void* flag, int thread, bool orders) {
    const std::lock_guard lock(mutex_);
    Flag& state = flags_.try_emplace(flag, Flag{Clock(clocks_.size()), {}}).first->second;
    note(state.written, thread, true, "a flag");
    if (orders) state.clock = clocks_[thread];
    ++clocks_[thread][thread];
  }
  void acquire(const void* flag, int thread) {
    const std::lock_guard lock(mutex_);
    if (const auto it = flags_.find(flag); it != flags_.end())
      join(clocks_[thread], it->second.clock);
  }

  // A barrier is two calls: as each thread comes, and when all have come. Thread by thread the
  // numbers of barriers are those of the others.
  void arrive(const void* barrier, std::uint64_t number, int thread) {
    const std::lock_guard lock(mutex_);
    Clock& clock = barriers_.try_emplace({barrier, number}, Clock(clocks_.size())).first->second;
    join(clock, clocks_[thread]);
    ++clocks_[thread][thread];
  }
  void leave(const void* barrier, std::uint64_t number, int thread) {
    const std::lock_guard lock(mutex_);
    join(clocks_[thread], barriers_.at({barrier, number}));
  }

  // All that the threads first ... first + num - 1 have done is known to all of them.
  void synchronize(int first, int num) {
    const std::lock_guard lock(mutex_);
    Clock all(clocks_.size());
    for (int t = first; t < first + num; ++t) join(all, clocks_[t]);
    for (int t = first; t < first + num; ++t) {
      join(clocks_[t], all);
      ++clocks_[t][t];
    }
  }

  void access(const void* memory, std::size_t nbytes, bool writes, int thread, const char* what) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    for (std::uintptr_t at = begin; at < begin + nbytes; ++at)
      note(bytes_[at], thread, writes, what);
  }

  std::set<std::string> races() {
    const std::lock_guard lock(mutex_);
    return races_;
  }

 private:
  // The last moments at which each thread that matters still has touched it.
  struct Access {
    int thread;
    std::uint32_t moment;
    bool writes;
  };
  using Accesses = std::vector<Access>;
  struct Flag {
    Clock clock;
    Accesses written;
  };

  void note(Accesses& accesses, int thread, bool writes, const char* what) {
    const Clock& known = clocks_[thread];
    for (const Access& each : accesses) {
      if (each.thread == thread || !(writes || each.writes)) continue;
      if (known[each.thread] < each.moment) {
        races_.insert(std::string(writes ? "write to " : "read of ") + what + " after a " +
                      (each.writes ? "write" : "read"));
      }
    }
    // Who is ordered behind a write need not be compared with what came before it.
    std::erase_if(accesses, [&](const Access& each) {
      return (writes && known[each.thread] >= each.moment) ||
             (each.thread == thread && each.writes == writes);
    });
    accesses.push_back({thread, known[thread], writes});
  }

  std::mutex mutex_;
  std::vector<Clock> clocks_;
  std::unordered_map<const void*, Flag> flags_;
  std::map<std::pair<const void*, std::uint64_t>, Clock> barriers_;
  std::unordered_map<std::uintptr_t, Accesses> bytes_;
  std::set<std::string> races_;
};

}  // namespace happens_before
