// A message between two ranks' devices, as one of the two sees it.
#pragma once

#include <cstddef>

namespace ringcomm {

struct PeerMessage {
  bool is_send;
  int peer;
  void* data;
  std::size_t nbytes;
};

}  // namespace ringcomm
