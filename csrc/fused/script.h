// A program (plan/program.h) as flat data that a device can go through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/program.h"
#include "reduce/host_device.h"

namespace ringcomm::fused {

// A slice's other end: who publishes it, or who takes it.
struct Peer {
  std::int32_t rank;
  std::int32_t action;       // of that rank
  std::int32_t num_actions;  // of that rank
  std::int32_t slot;         // of that rank's outbox, if it publishes the slice
};

struct Step {
  std::int32_t chunk;
  std::int32_t first_peer;  // among the script's: sources, ascending by rank, and then readers
  std::int32_t num_sources;
  std::int32_t num_readers;
  std::int32_t first_told;  // those ranks, each once
  std::int32_t num_told;
  std::int32_t own_input;  // how many sources come before the own value; -1: it is not used
  std::int32_t slot, replaces;
  Location own, store;
  bool finish;
};

// Views of memory on the device, in which one follows the other.
struct Script {
  const Step* steps = nullptr;
  const Peer* peers = nullptr;
  const std::int32_t* reduction_arguments = nullptr;
  std::int32_t num_steps = 0;
  std::uint32_t nbytes = 0;  // all of them

  RINGCOMM_HOST_DEVICE const Peer& source(const Step& step, int i) const {
    return peers[step.first_peer + i];
  }
  RINGCOMM_HOST_DEVICE const Peer& reader(const Step& step, int i) const {
    return peers[step.first_peer + step.num_sources + i];
  }

  RINGCOMM_HOST_DEVICE const std::byte* text() const {
    return reinterpret_cast<const std::byte*>(steps);
  }
  // A copy's.
  RINGCOMM_HOST_DEVICE Script at(const std::byte* copy) const {
    const auto there = [&](auto* what) {
      const std::byte* const it = reinterpret_cast<const std::byte*>(what);
      return reinterpret_cast<decltype(what)>(copy + (it - text()));
    };
    return {there(steps), there(peers), there(reduction_arguments), num_steps, nbytes};
  }
};

// What a Script views, in one piece.
struct ScriptText {
  std::vector<Step> steps;
  std::vector<Peer> peers;
  std::vector<std::int32_t> reduction_arguments;

  ScriptText(const Program& program, int rank);

  std::size_t nbytes() const {
    return steps.size() * sizeof(Step) + peers.size() * sizeof(Peer) +
           reduction_arguments.size() * sizeof(std::int32_t);
  }
  // Writes nbytes() to `memory`; returns the views of them, as if they lay at `address`.
  Script write(std::byte* memory, const std::byte* address) const;
};

}  // namespace ringcomm::fused
