// What the ranks of a group go by between their hosts: as rank 0 tells all, so that they agree.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "plan/network.h"

namespace ringcomm {

// How long a host may be silent where nothing else is said.
inline constexpr std::chrono::milliseconds kHeartbeatTimeout{4000};

struct InterHostConfig {
  std::string engine = {};  // carries bytes; empty: there is one host, or the ranks leave it open
  Link link = {};
  // A host of which nothing is heard for so long is taken for gone.
  std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout;

  std::string text() const;
  // Nothing if it is no such text.
  static std::optional<InterHostConfig> read(std::string_view text);
};

}  // namespace ringcomm
