#include "torch/message_work.h"

#include <algorithm>
#include <chrono>

namespace ringcomm {

using std::chrono::milliseconds;

void MessageWork::post(std::shared_ptr<shm::Message> message) {
  message_ = std::move(message);
  start();
  communicator_->post(message_);
}

void MessageWork::help(milliseconds patience) {
  const auto most = std::chrono::duration_cast<milliseconds>(std::chrono::hours(24 * 365));
  communicator_->wait(*message_, std::min(patience, most));
}

}  // namespace ringcomm
