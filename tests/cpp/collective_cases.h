// Collective calls as data: made from a seed, carried out by every rank, and checked against
// results computed beforehand from the inputs of all ranks.
//
// A buffer repeats its rank's pattern of kPeriod elements, from a phase of its own. The period is a
// prime, so a slice that lands in the wrong place, or comes from the wrong rank, shows.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/collectives.h"
#include "shm/communicator.h"

namespace cases {

using namespace ringcomm;

inline constexpr std::size_t kPeriod = 251;
using Pattern = std::vector<std::uint64_t>;

struct Case {
  Collective collective = Collective::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  bool in_place = false;
  std::uint64_t in_arena = 0;       // the ranks whose buffers peers can map, a bit each
  std::vector<std::size_t> counts;  // one; per rank; or, for all-to-all, per pair [from][to]
  std::vector<Pattern> inputs;      // by rank
  Pattern reduced;

  std::string name(int world_size) const;
};

bool reduces(Collective c);

// A case with random type, operation, root and place. `count` is that of the largest buffer of a
// rank; where counts may differ by rank they sometimes do, and sometimes are zero.
Case random_case(Collective collective, int world_size, std::size_t nbytes,
                 std::mt19937_64& random);

// Inputs, and what they come to, for a case whose other members are set.
void make_data(Case& c, int world_size, std::mt19937_64& random);

// Exactly as long as it must be, so that AddressSanitizer sees every byte too far.
class Buffer {
 public:
  Buffer(DType dtype, std::size_t count, bool in_arena);
  void* data() const { return data_.get(); }
  std::size_t count() const { return count_; }

  void poison();
  void fill(const Pattern& pattern, std::size_t phase);
  bool holds(const Pattern& pattern, std::size_t phase) const;

 private:
  std::vector<std::byte> bytes_of(const Pattern& pattern, std::size_t phase) const;

  std::size_t width_;
  std::size_t count_;
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
};

// One rank's part in a case: its buffers, the call, and what they must hold before and after.
class Part {
 public:
  Part(const Case& c, int rank, int world_size);
  Part(Part&&) noexcept;
  ~Part();

  void fill();
  void call(Collectives& collectives, std::chrono::milliseconds timeout);
  // Outputs are right, and inputs are as they were.
  bool right() const;
  void poison();

 private:
  bool at_root() const { return rank_ == case_.root; }
  std::size_t count_of(int from, int to) const;

  const Case& case_;
  const int rank_, world_size_;
  std::vector<Buffer> inputs_, outputs_;
  Buffer* own_ = nullptr;
  Buffer* out_ = nullptr;
  bool gathers_in_place_ = false;
};

// Carries the case out as this rank and checks it.
void perform(const Case& c, Communicator& comm, Communicator::Timeout timeout);

inline constexpr std::array kCollectives = {
    Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce,
    Collective::kAllGather, Collective::kGather,        Collective::kScatter,
    Collective::kBroadcast, Collective::kAllToAll,      Collective::kBarrier,
};

}  // namespace cases
