// What the streams of a group's links (hosts/engine.h) carry.
#pragma once

#include <cstdint>

#include "hosts/engine.h"
#include "shm/layout.h"

namespace ringcomm::shm {

inline constexpr std::uint8_t kAnnouncements = 0;
inline constexpr std::uint8_t kMessages = 1;  // slots of mail boxes
inline constexpr std::uint8_t kNotes = 2;     // what becomes of them
inline constexpr std::uint8_t kWords = 3;     // what hosts tell of their ranks
// Slices: one stream per lane.
inline constexpr std::uint8_t kFirstLane = links::kFirstExactStream;
static_assert(kFirstLane + kLanesAcrossHosts <= links::kStreams);

// Numbers of messages on one stream begin again after so many, when the first are long done.
inline constexpr std::uint64_t kNumbers = std::uint64_t{1} << 40;

}  // namespace ringcomm::shm
