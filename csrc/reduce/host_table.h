// The table of host kernels, one per instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "reduce/host.h"
#include "reduce/types.h"

namespace ringcomm {

// Writes `count` results to the output, of the elements of all inputs from `begin` on.
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
