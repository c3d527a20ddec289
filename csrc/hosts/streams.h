// What the streams of a group's links (hosts/engine.h) carry, and the names of the group's memory,
// which all of csrc/hosts/ mirrors.
#pragma once

#include <cstdint>

#include "hosts/engine.h"
#include "shm/layout.h"

namespace ringcomm::shm {

class Group;

}  // namespace ringcomm::shm

namespace ringcomm::hosts {

using namespace shm;
using shm::Group;

inline constexpr std::uint8_t kAnnouncements = 0;
inline constexpr std::uint8_t kMessages = 1;  // slots of mail boxes
inline constexpr std::uint8_t kAcks = 2;      // what becomes of them
inline constexpr std::uint8_t kStatus = 3;    // what a leader reports of its host's ranks
// Slices: one stream per lane.
inline constexpr std::uint8_t kFirstLane = links::kFirstExactStream;
static_assert(kFirstLane + kLanesAcrossHosts <= links::kStreams);

// Numbers of messages on one stream begin again after so many, when the first are long done.
inline constexpr std::uint64_t kNumbers = std::uint64_t{1} << 40;

}  // namespace ringcomm::hosts
