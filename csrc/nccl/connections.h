// All of NCCL's communicators that a rank holds: one for each channel, and those of the pairs that
// exchange messages.
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/group.h"
#include "nccl/comms.h"
#include "nccl/communicator_setup.h"
#include "nccl/messages.h"

namespace ringcomm::nccl {

// Its methods are called one at a time, with the device as the current one, but for those that say
// "any thread".
class Connections {
 public:
  Connections(Group& group, int device, Reclaim reclaim)
      : group_(group), device_(device), messages_(group, device, std::move(reclaim)) {}

  Messages& messages() { return messages_; }
  void set_channels(std::unique_ptr<Comms> channels);
  // Null before they are made, and for one rank alone.
  Comms* channels() const { return channels_.get(); }

  // Goes on meeting peers for their first messages.
  void answer();
  bool all_met() const { return messages_.all_met(); }

  // Those that share a communicator with this rank, and the rank itself.
  std::vector<int> partners() const;

  // Any thread. Throws Error (kLibrary) if NCCL has seen one of them fail.
  void check();

  // Any thread. Ends what they are doing and makes a thread that is inside NCCL come back, which
  // is_back() tells. Nothing but abort() may follow; if it returns false, nothing but leave().
  bool interrupt(const std::function<bool()>& is_back);

  // Frees all that are left, whatever the other ranks do. See Comms::abort.
  void abort();
  // Frees them; the partners do, too.
  void destroy();
  // Forgets them, and frees nothing.
  void leave();

 private:
  void publish();

  Group& group_;
  const int device_;
  Messages messages_;
  std::unique_ptr<Comms> channels_;  // null before they are made, and for one rank alone

  std::mutex mutex_;
  std::vector<ncclComm_t> in_use_;  // all of them, for other threads; guarded by mutex_
};

}  // namespace ringcomm::nccl
