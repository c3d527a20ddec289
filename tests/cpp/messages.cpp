#include "messages.h"

#include <stdexcept>
#include <utility>

#include "check.h"

namespace messages {

void everywhere(int n, const std::function<void(Communicator&)>& body) {
  ranks::with_group(n, "auto", body);
  std::vector<int> host_of;
  for (int r = 0; r < n; ++r) host_of.push_back(r % 2);
  ranks::on_hosts(host_of, "auto", ranks::MemoryNetwork::make({.longest_delay = 100us}), body);
}

Pending prepare(Message::Kind kind, int peer, int tag, std::vector<std::int32_t> data,
                Timeout timeout) {
  auto operation = std::make_shared<Operation>();
  operation->data = std::move(data);
  Message& m = *operation->message;
  m.kind = kind;
  m.peer = peer;
  m.tag = tag;
  m.dtype = DType::kInt32;
  m.data = reinterpret_cast<std::byte*>(operation->data.data());
  m.count = operation->data.size();
  m.deadline = Deadline::in(timeout);
  m.on_done = [operation](std::exception_ptr error) {
    ++operation->completions;
    error ? operation->done.set_exception(error) : operation->done.set_value();
    std::exchange(operation->then, {})();
  };
  return operation;
}

Pending send(Communicator& c, int peer, int tag, std::vector<std::int32_t> data, Timeout timeout) {
  auto operation = prepare(Message::Kind::kSend, peer, tag, std::move(data), timeout);
  c.post(operation->message);
  return operation;
}

Pending recv(Communicator& c, int peer, int tag, std::size_t count, Timeout timeout) {
  auto operation =
      prepare(Message::Kind::kRecv, peer, tag, std::vector<std::int32_t>(count, -1), timeout);
  c.post(operation->message);
  return operation;
}

void wait(Communicator& c, const Pending& operation) {
  CHECK(c.wait(*operation->message, 2 * kPatience));
  CHECK_EQ(operation->completions.load(), 1);
  operation->completed.get();
}

void wait_idly(const Pending& operation) {
  if (operation->completed.wait_for(2 * kPatience) != std::future_status::ready) {
    throw std::runtime_error("an operation made no progress in the background");
  }
  operation->completed.get();
}

std::vector<std::int32_t> numbers(std::size_t count, int first) {
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = first + static_cast<int>(i);
  return data;
}

std::size_t slot_count(int world_size) {
  return shm::Geometry(world_size).mail_slot_nbytes / sizeof(std::int32_t);
}

void check_works(Communicator& c) {
  const int next = (c.rank() + 1) % c.world_size();
  const int prev = (c.rank() + c.world_size() - 1) % c.world_size();
  const Pending sent = send(c, next, 99, numbers(5000, c.rank()));
  const Pending received = recv(c, prev, 99, 5000);
  wait(c, sent);
  wait(c, received);
  CHECK(received->data == numbers(5000, prev));
  std::vector<float> ones(20'000, 1.0f);
  c.all_reduce(ones.data(), ones.data(), ones.size(), {DType::kFloat32, ReduceOp::kSum}, kPatience);
  CHECK(ones == std::vector<float>(ones.size(), static_cast<float>(c.world_size())));
}

}  // namespace messages
