// Whether what threads do to memory is ordered, whatever the order in which it came about.
//
// Every thread has a vector clock (Mattern, "Virtual time and global states of distributed
// systems", 1989): for each thread, up to which of its moments it knows what that has done. A
// thread that releases a flag leaves its clock there, and one that acquires the flag takes it over;
// so do the threads of a barrier with each other. Two accesses to a byte, one of them a write, are
// a race unless the later one's thread knows of the earlier one (Flanagan, Freund, "FastTrack",
// 2009).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace happens_before {

using Clock = std::vector<std::uint32_t>;

// Any thread may call any method; `thread` is the one that does.
class Record {
 public:
  explicit Record(int num_threads);
  ~Record();

  void release(const void* flag, int thread, bool orders);
  void acquire(const void* flag, int thread);

  // A barrier is two calls: as each thread comes, and when all have come. Thread by thread the
  // numbers of barriers are those of the others.
  void arrive(const void* barrier, std::uint64_t number, int thread);
  void leave(const void* barrier, std::uint64_t number, int thread);

  // All that the threads first ... first + num - 1 have done is known to all of them.
  void synchronize(int first, int num);

  void access(const void* memory, std::size_t nbytes, bool writes, int thread, const char* what);

  std::set<std::string> races();

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

  void note(Accesses& accesses, int thread, bool writes, const char* what);

  std::mutex mutex_;
  std::vector<Clock> clocks_;
  std::unordered_map<const void*, Flag> flags_;
  std::map<std::pair<const void*, std::uint64_t>, Clock> barriers_;
  std::unordered_map<std::uintptr_t, Accesses> bytes_;
  std::set<std::string> races_;
};

}  // namespace happens_before
