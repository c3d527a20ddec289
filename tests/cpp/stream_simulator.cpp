#include "stream_simulator.h"

#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "reduce/host.h"

namespace simulated {

Simulator::Simulator(std::uint64_t seed) : random_(seed) {}
Simulator::~Simulator() = default;

int Simulator::new_stream(std::string name) {
  streams_.push_back({.name = std::move(name), .slowness = kSlowness[random_() % 3]});
  return static_cast<int>(streams_.size()) - 1;
}

int Simulator::new_event() {
  events_.push_back(kNever);
  return static_cast<int>(events_.size()) - 1;
}

void Simulator::record(int event, int stream) {
  events_[event] = num_records_++;
  done_.push_back(false);
  push(stream, {.kind = kRecord, .record = events_[event]});
}

void Simulator::wait(int stream, int event) {
  if (events_[event] != kNever) push(stream, {.kind = kWait, .record = events_[event]});
}

void Simulator::kernel(int stream, std::function<void()> read, std::function<void()> write) {
  push(stream, {.kind = kKernel, .read = std::move(read), .write = std::move(write)});
}

void Simulator::group(int stream, std::vector<Message> messages) {
  Operation operation{.kind = kGroup};
  for (Message& message : messages) {
    const int index = static_cast<int>(messages_.size());
    operation.messages.push_back(index);
    pair(message, index);
    messages_.push_back(message);
  }
  push(stream, std::move(operation));
}

void Simulator::run() {
  std::size_t unfinished = 0;
  for (const Stream& stream : streams_) unfinished += !stream.queue.empty();
  int failures = 0;
  while (unfinished > 0) {
    Stream& stream = streams_[random_() % streams_.size()];
    if (stream.queue.empty() || random_() % stream.slowness != 0) {
      if (++failures > 100) failures = advance_any(unfinished);
      continue;
    }
    if (advance(stream)) failures = 0;
    if (stream.queue.empty()) --unfinished;
  }
}

void Simulator::push(int stream, Operation operation) {
  streams_[stream].queue.push_back(std::move(operation));
}

void Simulator::pair(Message& message, int index) {
  const int from = message.is_send ? message.rank : message.peer;
  const int to = message.is_send ? message.peer : message.rank;
  auto& [sends, recvs] = unpaired_[{message.comm, from, to}];
  auto& waiting = message.is_send ? recvs : sends;
  if (waiting.empty()) {
    (message.is_send ? sends : recvs).push_back(index);
    return;
  }
  message.partner = waiting.front();
  messages_[message.partner].partner = index;
  waiting.pop_front();
  if (messages_[message.partner].nbytes != message.nbytes) {
    throw std::runtime_error("rank " + std::to_string(from) + " sends rank " + std::to_string(to) +
                             " another number of bytes than it receives");
  }
}

bool Simulator::advance(Stream& stream) {
  Operation& front = stream.queue.front();
  switch (front.kind) {
    case kRecord:
      done_[front.record] = true;
      break;
    case kWait:
      if (!done_[front.record]) return false;
      break;
    case kKernel:
      if (!front.begun) {
        front.read();
        return front.begun = true;
      }
      front.write();
      break;
    case kGroup:
      if (!front.begun) {
        for (const int index : front.messages) messages_[index].begun = true;
        return front.begun = true;
      }
      if (!transfer(front)) return false;
      for (const int index : front.messages) {
        if (!messages_[index].done) return true;
      }
  }
  stream.queue.pop_front();
  return true;
}

bool Simulator::transfer(const Operation& group) {
  const std::size_t n = group.messages.size();
  bool all_done = true;
  const std::size_t first = random_() % n;
  for (std::size_t i = 0; i < n; ++i) {
    Message& message = messages_[group.messages[(first + i) % n]];
    if (message.done) continue;
    all_done = false;
    if (message.partner < 0 || !messages_[message.partner].begun) continue;
    Message& partner = messages_[message.partner];
    const Message& send = message.is_send ? message : partner;
    const Message& recv = message.is_send ? partner : message;
    std::memcpy(recv.data, send.data, send.nbytes);
    message.done = partner.done = true;
    return true;
  }
  return all_done;
}

int Simulator::advance_any(std::size_t& unfinished) {
  for (Stream& stream : streams_) {
    if (stream.queue.empty() || !advance(stream)) continue;
    if (stream.queue.empty()) --unfinished;
    return 0;
  }
  std::string stuck = "deadlock:";
  for (const Stream& stream : streams_) {
    if (!stream.queue.empty()) stuck += " " + stream.name + " in " + describe(stream) + ";";
  }
  throw std::runtime_error(stuck);
}

std::string Simulator::describe(const Stream& stream) const {
  const Operation& front = stream.queue.front();
  if (front.kind == kWait) return "wait #" + std::to_string(front.record);
  if (front.kind != kGroup) return "a kernel";
  std::string text = "group";
  for (const int index : front.messages) {
    const Message& message = messages_[index];
    if (message.done) continue;
    text += message.is_send ? " send to " : " recv from ";
    text += std::to_string(message.peer);
  }
  return text;
}

Api::Api(Simulator& simulator, int rank, int dropped)
    : simulator_(simulator), rank_(rank), dropped_(dropped) {}
Api::~Api() = default;

void Api::group_start() { group_.clear(); }

void Api::send(const std::byte* data, std::size_t nbytes, int peer, Comm comm, Stream stream) {
  group_[stream].push_back({true, comm, rank_, peer, const_cast<std::byte*>(data), nbytes});
}

void Api::recv(std::byte* data, std::size_t nbytes, int peer, Comm comm, Stream stream) {
  group_[stream].push_back({false, comm, rank_, peer, data, nbytes});
}

void Api::group_end() {
  for (auto& [stream, messages] : std::exchange(group_, {})) {
    simulator_.group(stream, std::move(messages));
  }
}

void Api::reduce(const ringcomm::Reduction& reduction, const void* const* inputs, int num_inputs,
                 void* output, std::size_t count, Stream stream) {
  auto result = std::make_shared<std::vector<std::byte>>(count * element_size(reduction.dtype));
  std::vector<const void*> pointers(inputs, inputs + num_inputs);
  simulator_.kernel(
      stream,
      [=] {
        void* to = result->data();
        reduce_host(reduction, pointers.data(), num_inputs, to, {}, count);
      },
      [=] { std::memcpy(output, result->data(), result->size()); });
}

void Api::copy(void* to, const void* from, std::size_t nbytes, Stream stream) {
  auto data = std::make_shared<std::vector<std::byte>>(nbytes);
  simulator_.kernel(
      stream, [=] { std::memcpy(data->data(), from, nbytes); },
      [=] { std::memcpy(to, data->data(), nbytes); });
}

void Api::wait(Stream stream, Event event, ringcomm::streams::Wait why) {
  if (static_cast<int>(why) != dropped_) simulator_.wait(stream, event);
}

}  // namespace simulated
