// The proof that bytes written to other ranks' memory arrive there.
//
// A driver may open memory of another device although the platform loses what is written or read
// there (access control of PCI Express, an IOMMU that translates), or carries other bytes. So
// before ranks use each other's memory, each runs two kernels to prove that it works:
//
//   1. A rank writes a pattern into its own line in every rank's memory. The others read what it
//      writes into its own memory.
//   2. When all ranks have done so, it looks for the patterns of the others, in its own memory and
//      in theirs.
//
// A pattern depends on a random number of its writer, on the writer and on the reader, so that old
// bytes cannot be mistaken for it. Neither kernel waits for anything.
//
// Plain C++: the machine has thread(), num_threads(), put() and look(), as in gpu/fused/eager.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/fused/layout.h"
#include "reduce/host_device.h"

namespace ringcomm::fused {

// What a rank finds out about another one.
inline constexpr std::uint32_t kHasArrived = 1;  // that rank's pattern in this rank's memory
inline constexpr std::uint32_t kIsRead = 2;      // that rank's pattern in its own memory

struct Probe {
  int rank, world_size;
  std::byte* lines[kMaxRanks];  // world_size lines in each rank's memory, as this rank sees it
  std::uint64_t numbers[kMaxRanks];
  std::uint32_t* findings;  // by rank, in the host's memory
};

inline constexpr int kWordsPerLine = kLine / sizeof(LLPacket);

RINGCOMM_HOST_DEVICE LLPacket pattern(std::uint64_t number, int from, int to, int i) {
  const auto mixed = [&](std::uint64_t which) {  // splitmix64's finalizer
    std::uint64_t x = number + (static_cast<std::uint64_t>(from) << 48) +
                      (static_cast<std::uint64_t>(to) << 32) + 2 * i + which;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  return {mixed(0), mixed(1)};
}

RINGCOMM_HOST_DEVICE LLPacket* probed_words(const Probe& probe, int at, int from, int i) {
  return reinterpret_cast<LLPacket*>(probe.lines[at] + from * kLine) + i;
}

// All threads call this, and find_patterns().
template <typename Machine>
RINGCOMM_DEVICE void write_patterns(Machine& machine, const Probe& probe) {
  for (int to = machine.thread(); to < probe.world_size; to += machine.num_threads()) {
    for (int i = 0; i < kWordsPerLine; ++i) {
      machine.put(probed_words(probe, to, probe.rank, i),
                  pattern(probe.numbers[probe.rank], probe.rank, to, i));
    }
  }
}

template <typename Machine>
RINGCOMM_DEVICE bool has_pattern(Machine& machine, const Probe& probe, int at, int from, int to) {
  bool has = true;
  for (int i = 0; i < kWordsPerLine; ++i) {
    const LLPacket found = machine.look(probed_words(probe, at, from, i));
    const LLPacket wanted = pattern(probe.numbers[from], from, to, i);
    has = has && found.first == wanted.first && found.second == wanted.second;
  }
  return has;
}

template <typename Machine>
RINGCOMM_DEVICE void find_patterns(Machine& machine, const Probe& probe) {
  for (int peer = machine.thread(); peer < probe.world_size; peer += machine.num_threads()) {
    const bool arrived = has_pattern(machine, probe, probe.rank, peer, probe.rank);
    const bool is_read = has_pattern(machine, probe, peer, peer, peer);
    probe.findings[peer] = (arrived ? kHasArrived : 0) | (is_read ? kIsRead : 0);
  }
}

}  // namespace ringcomm::fused
