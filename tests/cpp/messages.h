// Messages of a communicator, as the tests of send and recv post them and wait for them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "hosts.h"

namespace messages {

using namespace ringcomm;
using namespace std::chrono_literals;
using ranks::kPatience;
using shm::kAnySource;
using shm::Message;
using Timeout = Communicator::Timeout;

// On one host, and with every other rank on another.
void everywhere(int n, const std::function<void(Communicator&)>& body);

// A posted message with its buffer and, once it is done, its error.
struct Operation {
  std::vector<std::int32_t> data;
  std::shared_ptr<Message> message = std::make_shared<Message>();
  std::promise<void> done;
  std::shared_future<void> completed = done.get_future().share();
  std::atomic<int> completions{0};
  std::function<void()> then = [] {};
};
using Pending = std::shared_ptr<Operation>;

Pending prepare(Message::Kind kind, int peer, int tag, std::vector<std::int32_t> data,
                Timeout timeout = kPatience);

Pending send(Communicator& c, int peer, int tag, std::vector<std::int32_t> data,
             Timeout timeout = kPatience);

Pending recv(Communicator& c, int peer, int tag, std::size_t count, Timeout timeout = kPatience);

// Drives the operation to its end, and throws its error.
void wait(Communicator& c, const Pending& operation);

// Leaves it to the background.
void wait_idly(const Pending& operation);

std::vector<std::int32_t> numbers(std::size_t count, int first);

std::size_t slot_count(int world_size);

void check_works(Communicator& c);

}  // namespace messages
