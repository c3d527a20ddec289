// The tests' engine between hosts: ranks are threads of this process, and messages take random
// ways. It is no more helpful than others: nothing moves without progress(), messages overtake each
// other, large ones wait on their sender, and what is wrong between two ranks a test says.
#include <algorithm>
#include <cstring>

#include "fault_points.h"
#include "memory_network.h"

namespace ranks {

class MemoryEngine : public Engine {
 public:
  MemoryEngine(std::shared_ptr<MemoryNetwork> network, int rank)
      : network_(std::move(network)), rank_(rank) {}

  ~MemoryEngine() override {
    const faults::Spared spared;
    std::lock_guard lock(network_->mutex_);
    for (const MemoryNetwork::Key& key : unpushed_) network_->messages_.erase(key);
    while (!pending_.empty()) drop(*pending_.begin()->first);
    for (const auto& [a, b] : network_->connected_) {
      if (a != rank_ && b != rank_) continue;
      const int peer = a == rank_ ? b : a;
      network_->lost_.try_emplace({peer, rank_}, "the connection was closed");
    }
    network_->changed_.notify_all();
  }

  std::string describe() const override { return "memory"; }

  void send(int peer, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    faults::may_fail();
    const faults::Spared spared;
    std::lock_guard lock(network_->mutex_);
    if (refuse(peer, request)) return;
    const MemoryNetwork::Key key{peer, rank_, tag.stream, tag.number};
    const bool is_small = bytes.size() <= network_->options_.eager_limit;
    MemoryNetwork::Message message{.bytes = bytes, .copied = {}, .sender = &request};
    message.due = std::max(
        {network_->connects_at_, network_->held_until_[rank_], Clock::now() + random_delay()});
    if (tag.stream == network_->options_.late_stream) message.due += network_->options_.late_by;
    if (is_small) {
      message.copied.assign(bytes.begin(), bytes.end());
      message.copying = network_->random_() % 2 == 0 ? &request : nullptr;
      message.sender = nullptr;
    }
    request.state.store(Request::State::kDone, std::memory_order_release);
    if (message.copying != nullptr || !is_small) begin(request, key, /*is_send=*/true);
    network_->use(key, /*is_send=*/true);
    network_->connected_.insert({peer, rank_});
    network_->messages_.emplace(key, std::move(message));
    unpushed_.push_back(key);
  }

  void recv(int peer, Tag tag, std::span<std::byte> room, Request& request) override {
    faults::may_fail();
    const faults::Spared spared;
    std::lock_guard lock(network_->mutex_);
    if (refuse(peer, request)) return;
    const MemoryNetwork::Key key{rank_, peer, tag.stream, tag.number};
    network_->use(key, /*is_send=*/false);
    network_->receives_.emplace(key,
                                MemoryNetwork::Receive{room, &request, ++network_->num_posted_});
    begin(request, key, /*is_send=*/false);
  }

  void cancel(Request& request) override {
    const faults::Spared spared;
    std::lock_guard lock(network_->mutex_);
    if (request.pending()) drop(request);
  }

  bool advance() override {
    const faults::Spared spared;
    std::lock_guard lock(network_->mutex_);
    push();
    match();
    network_->spread_failures(rank_);
    if (network_->taken_.empty() && network_->lost_.empty()) return false;
    for (const auto& [request, of] : std::map(pending_)) {
      const int peer = of.is_send ? std::get<0>(of.key) : std::get<1>(of.key);
      if (network_->taken_.erase(request) > 0) {
        end(*request, Request::State::kDone);
        return true;
      } else if (network_->lost_.contains({rank_, peer})) {
        drop(*request);
      }
    }
    return false;
  }

  bool flushed() override {
    std::lock_guard lock(network_->mutex_);
    if (!unpushed_.empty()) return false;
    for (const auto& [request, of] : pending_) {
      if (of.is_send) return false;
    }
    return true;
  }

  void sleep(std::chrono::microseconds longest) override {
    std::unique_lock lock(network_->mutex_);
    if (!unpushed_.empty()) return;
    network_->changed_.wait_for(lock, std::min(longest, std::chrono::microseconds(200)));
  }

  std::string failure(int peer) override {
    std::lock_guard lock(network_->mutex_);
    const auto found = network_->lost_.find({rank_, peer});
    return found == network_->lost_.end() ? "" : found->second;
  }

 private:
  struct Pending {
    MemoryNetwork::Key key;
    bool is_send;
  };

  std::chrono::microseconds random_delay() {
    return std::chrono::microseconds(
        network_->random_() % static_cast<unsigned>(network_->options_.longest_delay.count() + 1));
  }

  bool refuse(int peer, Request& request) {
    if (!network_->lost_.contains({rank_, peer})) return false;
    request.state.store(Request::State::kFailed, std::memory_order_release);
    return true;
  }

  void begin(Request& request, const MemoryNetwork::Key& key, bool is_send) {
    request.state.store(Request::State::kPending, std::memory_order_release);
    pending_.emplace(&request, Pending{key, is_send});
  }

  void end(Request& request, Request::State state) {
    pending_.erase(&request);
    request.state.store(state, std::memory_order_release);
  }

  // What was sent goes on its way, but not all at the first occasion.
  void push() {
    std::erase_if(unpushed_, [&](const MemoryNetwork::Key& key) {
      const auto found = network_->messages_.find(key);
      if (found == network_->messages_.end()) return true;  // cancelled
      if (network_->random_() % 4 == 0) return false;
      found->second.on_its_way = true;
      if (found->second.copying != nullptr) end(*found->second.copying, Request::State::kDone);
      if (network_->cut(rank_, std::get<0>(key))) network_->messages_.erase(found);
      network_->changed_.notify_all();
      return true;
    });
  }

  void match() {
    const Clock::time_point now = Clock::now();
    for (auto it = network_->receives_.lower_bound({rank_, 0, 0, 0});
         it != network_->receives_.end() && std::get<0>(it->first) == rank_; ++it) {
      const auto found = network_->messages_.find(it->first);
      if (found == network_->messages_.end()) continue;
      MemoryNetwork::Message& message = found->second;
      const int peer = std::get<1>(it->first);
      if (!message.on_its_way) continue;
      // A connection that was closed has delivered before all that was sent.
      if (message.due > now && !network_->lost_.contains({rank_, peer})) continue;
      if (message.sender != nullptr && network_->cut(rank_, peer)) continue;
      take(message, it->second);
      network_->messages_.erase(found);
    }
    complete();
  }

  void take(const MemoryNetwork::Message& message, MemoryNetwork::Receive& receive) {
    const std::size_t nbytes = message.bytes.size();
    const std::byte* data =
        message.sender != nullptr ? message.bytes.data() : message.copied.data();
    receive.came = true;
    receive.fits = nbytes <= receive.room.size();
    if (receive.fits && nbytes > 0) std::memcpy(receive.room.data(), data, nbytes);
    receive.request->nbytes = nbytes;
    if (message.sender != nullptr) network_->taken_.insert(message.sender);
    network_->changed_.notify_all();
  }

  // Receives whose bytes have come are done, if those before them are, where that matters.
  void complete() {
    std::vector<MemoryNetwork::Receive> done;
    std::erase_if(network_->receives_, [&](const auto& item) {
      const auto& [key, receive] = item;
      if (std::get<0>(key) != rank_ || !receive.came || waits(key, receive)) return false;
      done.push_back(receive);
      return true;
    });
    for (const MemoryNetwork::Receive& receive : done) {
      end(*receive.request, receive.fits ? Request::State::kDone : Request::State::kFailed);
    }
  }

  bool waits(const MemoryNetwork::Key& key, const MemoryNetwork::Receive& receive) const {
    const auto& [to, from, stream, number] = key;
    const auto& all = network_->receives_;
    return network_->options_.in_order &&
           std::any_of(all.lower_bound({to, from, stream, 0}),
                       all.lower_bound({to, from, stream + 1, 0}), [&](const auto& other) {
                         return !other.second.came && other.second.posted < receive.posted;
                       });
  }

  // Ends what is pending: done, if that is so and was not reported yet.
  void drop(Request& request) {
    const Pending of = pending_.at(&request);
    bool done = network_->taken_.erase(&request) > 0;
    if (of.is_send) {
      const auto found = network_->messages_.find(of.key);
      if (found != network_->messages_.end() && !done) network_->messages_.erase(found);
    } else {
      const auto found = network_->receives_.find(of.key);
      done = found->second.came && found->second.fits;
      network_->receives_.erase(found);
    }
    end(request, done ? Request::State::kDone : Request::State::kFailed);
  }

  const std::shared_ptr<MemoryNetwork> network_;
  const int rank_;
  std::map<Request*, Pending> pending_;
  std::vector<MemoryNetwork::Key> unpushed_;
};

std::unique_ptr<Engine> MemoryNetwork::engine(int rank) {
  return std::make_unique<MemoryEngine>(shared_from_this(), rank);
}

}  // namespace ranks
