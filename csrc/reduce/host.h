// Reductions on host memory: n inputs in one pass, one rounding per store.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "reduce/publish.h"
#include "reduce/types.h"

namespace ringcomm {

// Where other cores will read a result, and how it is written there: by memcpy, or as found best.
struct Copy {
  void* to;
  StoreChoice* stores = nullptr;
};

// How to go over the data, where there are no copies. kInStrands: another core has just written it,
// and the output is in this core's caches (in_strands in host.cpp). kStreaming: what is only copied
// is so much that the output is in no cache, and is not fetched to be overwritten.
enum class Pass { kStraight, kInStrands, kStreaming };
// Bytes that a call brings this rank: no cache holds the output for so long.
inline constexpr std::size_t kLeastStreamed = 32 << 20;

inline constexpr int kMostInputs = 1 << 16;

// Writes `count` results to the output and to every copy; without an output, which is null then, to
// the copies alone. The output is one of the inputs or overlaps none; copies overlap nothing.
// num_inputs >= 1: a single input is copied (and scaled, and divided, as `reduction` says). Throws
// std::invalid_argument if supports() is false, or without inputs, or with kMostInputs or more, or
// with nowhere to write to.
// The bits of a result (but for a NaN's sign and payload) do not depend on the machine's
// instruction set, on alignment, on how the data is cut into calls, or on the thread's
// floating-point mode (reduce/float_mode.h), which is as before afterwards.
//
// What other cores read belongs into a copy: that is two to four times as fast as to store a sum
// there, vector by vector.
void reduce_host(const Reduction& reduction, const void* const* inputs, int num_inputs,
                 void* output, std::span<const Copy> copies, std::size_t count,
                 Pass pass = Pass::kStraight);

// Copies nbytes to the output, unless that is null or the input itself, and to every copy, in one
// pass over the input.
void copy_host(const void* input, void* output, std::span<const Copy> copies, std::size_t nbytes,
               Pass pass = Pass::kStraight);

// The kernels of one instruction set. Each writes `count` results to the output, of the elements of
// all inputs from `begin` on.
using HostKernel = void (*)(const Reduction& reduction, const void* const* inputs, int num_inputs,
                            std::size_t begin, void* output, std::size_t count);

// By dtype, then op, which is effective_op(reduction); null where supports() is false.
using HostTable = std::array<std::array<HostKernel, kNumReduceOps>, kNumDTypes>;

namespace portable {
extern const HostTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const HostTable kTable;
}
namespace avx512 {
extern const HostTable kTable;
}
namespace avx512_vbmi {
extern const HostTable kTable;
}
#endif

struct HostIsa {
  const char* name;
  const HostTable* table;
};

// The tables this machine can run, the fastest last.
std::vector<HostIsa> supported_host_isas();

}  // namespace ringcomm
