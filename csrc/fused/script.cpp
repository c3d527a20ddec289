#include "fused/script.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace ringcomm::fused {

ScriptText::ScriptText(const Program& program, int rank) {
  const auto add = [&](int peer, int action, int slot) {
    peers.push_back({peer, action, program.num_actions[peer], slot});
  };
  for (const Action& action : program.actions) {
    const auto first_peer = static_cast<std::int32_t>(peers.size());
    const auto first_told = static_cast<std::int32_t>(reduction_arguments.size());
    for (const Source& source : action.from) add(source.peer, source.action, source.slot);
    for (const Reader& reader : action.to) add(reader.peer, reader.action, -1);
    std::set<int> concerned;
    for (const Source& source : action.from) concerned.insert(source.peer);
    for (const Reader& reader : action.to) concerned.insert(reader.peer);
    reduction_arguments.insert(reduction_arguments.end(), concerned.begin(), concerned.end());
    // In rank order, so that a sum does not depend on who computes it.
    const auto before = std::ranges::count_if(
        action.from, [&](const Source& source) { return source.peer < rank; });
    const bool uses_own = action.own.kind != Location::kNowhere;
    steps.push_back({.chunk = action.chunk,
                     .first_peer = first_peer,
                     .num_sources = static_cast<std::int32_t>(action.from.size()),
                     .num_readers = static_cast<std::int32_t>(action.to.size()),
                     .first_told = first_told,
                     .num_told = static_cast<std::int32_t>(concerned.size()),
                     .own_input = uses_own ? static_cast<std::int32_t>(before) : -1,
                     .slot = action.slot,
                     .replaces = action.replaces,
                     .own = action.own,
                     .store = action.store,
                     .finish = action.finish});
  }
}

Script ScriptText::write(std::byte* memory, const std::byte* address) const {
  const std::size_t peers_at = steps.size() * sizeof(Step);
  const std::size_t told_at = peers_at + peers.size() * sizeof(Peer);
  std::memcpy(memory, steps.data(), peers_at);
  std::memcpy(memory + peers_at, peers.data(), told_at - peers_at);
  std::memcpy(memory + told_at, reduction_arguments.data(), nbytes() - told_at);
  return {.steps = reinterpret_cast<const Step*>(address),
          .peers = reinterpret_cast<const Peer*>(address + peers_at),
          .reduction_arguments = reinterpret_cast<const std::int32_t*>(address + told_at),
          .num_steps = static_cast<std::int32_t>(steps.size()),
          .nbytes = static_cast<std::uint32_t>(nbytes())};
}

}  // namespace ringcomm::fused
