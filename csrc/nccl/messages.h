// send and recv on devices.
//
// Each pair of ranks has two communicators, one for each direction, each with a stream of its own:
// so two ranks may both send first, and a message waits for no other pair's. They are made when the
// pair first exchanges messages. As with NCCL, messages have no tags: a receive takes the next
// message of its peer, which must be as long as it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "nccl/comms.h"
#include "nccl/handles.h"
#include "shm/group.h"
#include "shm/idle.h"
#include "store.h"

namespace ringcomm::nccl {

struct Message {
  bool is_send;
  int peer;
  void* data;
  std::size_t nbytes;
};

// Waits until progress() is true. Throws Error when time is up or the group broken.
void await(shm::Group& group, const shm::Deadline& deadline, const std::string& doing,
           const std::function<bool()>& progress);

// "send(nbytes=64, peer=1)"
std::string describe(const Message& message);

class Messages {
 public:
  Messages(shm::Group& group, Store& store) : group_(group), store_(store) {}

  // See Communicator::run; on the current device.
  std::vector<cudaStream_t> run(const std::vector<Message>& messages, cudaEvent_t begin,
                                const shm::Deadline& deadline);

  std::vector<ncclComm_t> comms() const;
  void abort();
  void destroy();

 private:
  // Up leads from the lower rank to the higher one.
  enum Direction { kUp, kDown };
  struct Pair {
    std::unique_ptr<Comms> comms;  // by direction
    Stream streams[2];
  };

  void connect(const std::vector<int>& peers, const shm::Deadline& deadline);
  std::unique_ptr<Comms> begin_to_meet(int peer, const shm::Deadline& deadline);
  Direction direction_of(const Message& message) const;

  shm::Group& group_;
  Store& store_;
  std::map<int, Pair> pairs_;
};

}  // namespace ringcomm::nccl
