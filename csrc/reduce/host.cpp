#include "reduce/host.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "reduce/host_table.h"

namespace ringcomm {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("reduce_host: " + what);
}

}  // namespace

std::vector<HostIsa> supported_host_isas() {
  std::vector<HostIsa> isas{{"portable", &portable::kTable}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    isas.push_back({"avx2", &avx2::kTable});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      isas.push_back({"avx512", &avx512::kTable});
    }
  }
#endif
  return isas;
}

void reduce_host(const Reduction& reduction, const void* const* inputs, int num_inputs,
                 void* const* outputs, int num_outputs, std::size_t count) {
  if (num_inputs < 1) refuse(std::to_string(num_inputs) + " inputs; wants at least 1");
  if (num_outputs < 1 || num_outputs > 2) {
    refuse(std::to_string(num_outputs) + " outputs; wants 1 or 2");
  }
  if (!supports(reduction.dtype, reduction.op)) {
    refuse(std::string("op ") + name(reduction.op) + " is not defined for dtype " +
           name(reduction.dtype));
  }
  static const HostTable& table = *supported_host_isas().back().table;
  const HostKernel kernel = table[static_cast<std::size_t>(reduction.dtype)]
                                 [static_cast<std::size_t>(effective_op(reduction))];
  kernel(reduction, inputs, num_inputs, outputs, num_outputs, count);
}

void copy_host(const void* input, void* const* outputs, int num_outputs, std::size_t nbytes) {
  if (nbytes == 0) return;
  if (num_outputs == 1) {
    if (outputs[0] != input) std::memcpy(outputs[0], input, nbytes);
    return;
  }
  // Each block is still in the L1 cache when it is copied a second time.
  constexpr std::size_t kBlock = 8192;
  for (std::size_t begin = 0; begin < nbytes; begin += kBlock) {
    const std::size_t n = std::min(kBlock, nbytes - begin);
    for (int k = 0; k < num_outputs; ++k) {
      if (outputs[k] == input) continue;
      std::memcpy(static_cast<std::byte*>(outputs[k]) + begin,
                  static_cast<const std::byte*>(input) + begin, n);
    }
  }
}

}  // namespace ringcomm
