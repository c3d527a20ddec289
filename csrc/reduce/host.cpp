#include "reduce/host.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "reduce/float_mode.h"

namespace ringcomm {
namespace {

// So many bytes are still in the L1 cache when they are copied, and they are enough for memcpy to
// take lines from cores that have read them, without fetching the old contents.
constexpr std::size_t kBlock = 16 << 10;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("reduce_host: " + what);
}

void write(const Copy& copy, std::size_t offset, const std::byte* from, std::size_t nbytes) {
  std::byte* const to = static_cast<std::byte*>(copy.to) + offset;
  if (copy.stores != nullptr) {
    publish(to, from, nbytes, *copy.stores);
  } else {
    std::memcpy(to, from, nbytes);
  }
}

// The order in which a reader goes through what another core has just written.
//
// What that core wrote last is still in its first cache, and comes from there at half the rate of
// what it wrote before. A reader that goes from the beginning to the end meets all of that at the
// end. In strands, from several places in turn, such lines are on their way together with others.
constexpr std::size_t kStrands = 4;
// Bytes. Less lies in one first cache altogether. The pieces are short, as only what is on its way
// at one time counts; but memcpy needs longer ones to overwrite lines without fetching them, which
// is the better where they have left the second cache.
constexpr std::size_t kLeastInStrands = 64 << 10;
constexpr std::size_t kMostCopiedInStrands = 256 << 10;
constexpr std::size_t kStrandPiece = 1 << 10;

// Calls visit(begin, count) for pieces that together are all of [0, count), in elements of so many
// bytes.
template <typename Visit>
void in_strands(std::size_t count, std::size_t element_nbytes, Visit&& visit) {
  const std::size_t piece = kStrandPiece / element_nbytes;
  std::size_t done = 0;
  if (count * element_nbytes >= kLeastInStrands) {
    const std::size_t strand = count / kStrands / piece * piece;
    for (std::size_t begin = 0; begin < strand; begin += piece) {
      for (std::size_t s = 0; s < kStrands; ++s) visit(s * strand + begin, piece);
    }
    done = kStrands * strand;
  }
  if (done < count) visit(done, count - done);
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
      if (__builtin_cpu_supports("avx512vbmi")) {
        isas.push_back({"avx512_vbmi", &avx512_vbmi::kTable});
      }
    }
  }
#endif
  return isas;
}

void reduce_host(const Reduction& reduction, const void* const* inputs, int num_inputs,
                 void* output, std::span<const Copy> copies, std::size_t count, Pass pass) {
  if (num_inputs < 1 || num_inputs >= kMostInputs) {
    refuse(std::to_string(num_inputs) + " inputs; wants 1 to " + std::to_string(kMostInputs - 1));
  }
  if (output == nullptr && copies.empty() && count > 0) refuse("nowhere to write to");
  if (!supports(reduction.dtype, reduction.op)) {
    refuse(std::string("op ") + name(reduction.op) + " is not defined for dtype " +
           name(reduction.dtype));
  }
  static const HostTable& table = *supported_host_isas().back().table;
  const HostKernel kernel = table[static_cast<std::size_t>(reduction.dtype)]
                                 [static_cast<std::size_t>(effective_op(reduction))];
  const std::size_t element_nbytes = element_size(reduction.dtype);
  const DefaultFloatMode mode;
  const auto reduce = [&](std::size_t begin, std::size_t n) {
    std::byte* const results = static_cast<std::byte*>(output) + begin * element_nbytes;
    kernel(reduction, inputs, num_inputs, begin, results, n);
  };
  if (copies.empty()) {
    return pass == Pass::kInStrands ? in_strands(count, element_nbytes, reduce) : reduce(0, count);
  }
  std::byte block[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock / element_nbytes) {
    const std::size_t n = std::min(kBlock / element_nbytes, count - begin);
    const std::size_t at = begin * element_nbytes;
    std::byte* const results = output != nullptr ? static_cast<std::byte*>(output) + at : block;
    kernel(reduction, inputs, num_inputs, begin, results, n);
    for (const Copy& copy : copies) write(copy, at, results, n * element_nbytes);
  }
}

void copy_host(const void* input, void* output, std::span<const Copy> copies, std::size_t nbytes,
               Pass pass) {
  const bool is_kept = output != nullptr && output != input;
  if (is_kept && copies.empty() && pass == Pass::kStreaming) return stream(output, input, nbytes);
  const bool is_in_strands = pass == Pass::kInStrands && nbytes <= kMostCopiedInStrands;
  if (is_kept && copies.empty() && is_in_strands) {
    return in_strands(nbytes, 1, [&](std::size_t begin, std::size_t n) {
      std::memcpy(static_cast<std::byte*>(output) + begin,
                  static_cast<const std::byte*>(input) + begin, n);
    });
  }
  const std::size_t at_once = copies.size() + (is_kept ? 1 : 0) > 1 ? kBlock : nbytes;
  for (std::size_t begin = 0; begin < nbytes; begin += at_once) {
    const std::size_t n = std::min(at_once, nbytes - begin);
    const std::byte* const from = static_cast<const std::byte*>(input) + begin;
    if (is_kept) std::memcpy(static_cast<std::byte*>(output) + begin, from, n);
    for (const Copy& copy : copies) write(copy, begin, from, n);
  }
}

}  // namespace ringcomm
