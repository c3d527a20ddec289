// What can go wrong while ranks wait for each other, and how it is told.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan/collective.h"
#include "reduce/types.h"

namespace ringcomm {

enum class ErrorKind : std::int32_t {
  kInvalidArgument,  // this rank's call cannot be right
  kMismatch,         // the ranks' calls do not fit together; nothing was sent
  kTimeout,          // somebody did not come in time
  kPeerDied,         // a peer's process is gone
  kClosed,           // the communicator was closed or aborted
  kSystem,           // a call to the operating system failed
  kLibrary,          // a call to CUDA or NCCL failed
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

inline std::exception_ptr make_error(ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(Error(kind, message));
}

// A collective call as the ranks compare it: see matches().
struct Call {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;   // elements, of the tensor the collective is named after
  std::uint64_t layout = 0;  // digest of the per-rank counts where those may differ, or 0
  std::int32_t root = -1;    // -1: the collective has none
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t reduces = 0;    // whether op means anything
  std::uint8_t algorithm = 0;  // as chosen by the communicator
  std::uint8_t eager = 0;      // all-to-all: the payload holds the data too; may differ by rank

  bool matches(const Call& other) const {
    return count == other.count && layout == other.layout && root == other.root &&
           collective == other.collective && dtype == other.dtype && op == other.op &&
           reduces == other.reduces && algorithm == other.algorithm;
  }
};

// "all_reduce(count=256, dtype=float32, op=sum)"
std::string describe(const Call& call);

// "all_reduce(count=256, dtype=float32, op=sum) #17"
std::string describe_numbered(const Call& call);

// "rank 3", "ranks 0, 2 and 5"
std::string describe_ranks(const std::vector<int>& ranks);

// Groups ranks by what they called and says who disagrees; calls[r] is rank r's, if it is known.
std::string describe_mismatch(const std::vector<std::optional<Call>>& calls);

// "1.5 s", "30 min"
std::string describe_seconds(double seconds);

}  // namespace ringcomm
