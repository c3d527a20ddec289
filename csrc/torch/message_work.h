// What torch holds of a message between CPU tensors under way.
#pragma once

#include <memory>
#include <utility>

#include "shm/communicator.h"
#include "torch/work.h"

namespace ringcomm {

class MessageWork : public RingWork {
 public:
  MessageWork(int rank, Operation operation, std::shared_ptr<Communicator> communicator)
      : RingWork(rank, std::move(operation)), communicator_(std::move(communicator)) {}

  // Throws if the group is broken.
  void post(std::shared_ptr<shm::Message> message);
  int sourceRank() const override { return message_->peer; }

 protected:
  void help(std::chrono::milliseconds patience) override;

 private:
  const std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<shm::Message> message_;
};

}  // namespace ringcomm
