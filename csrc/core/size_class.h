// How the calls of a collective are carried out, by their bytes, for people to read: RINGCOMM_DEBUG
// and `python -m ringcomm status` print it.
#pragma once

#include <cstdint>

#include "core/fixed_text.h"
#include "plan/collective.h"
#include "reduce/types.h"

namespace ringcomm {

enum class Path : std::uint8_t {
  kWithCall,  // the data is sent with the announcement of the call
  kByPlan,    // the algorithm's plan is carried out
};

// Calls of at most so many bytes that belong to no smaller class. The bytes are those of the larger
// of a rank's two buffers.
struct SizeClass {
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  std::uint64_t most_nbytes;
  // Of the collective: from so many bytes on nothing is copied if the tensors of all ranks lie in
  // memory that they share, whatever the class says. kNoLimit: always copied.
  std::uint64_t zero_copy_from;
  Collective collective;
  DType dtype;
  Path path;
  FixedText<37> algorithm;  // its name; empty with the call
};

// As many as a group tells.
inline constexpr int kMostSizeClasses = 96;

}  // namespace ringcomm
