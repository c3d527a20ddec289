// The core's store as one of c10d's, for gloo to find a peer by. A wait for a key is a wait for the
// peer. It ends when the peer comes, when check_peer() throws, or when this is closed.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "core/poll.h"
#include "core/status.h"
#include "core/thread.h"
#include "hosts/address.h"
#include "setup/store.h"

namespace ringcomm {

// body(), and once more where memory or a thread was short: if one rank gives up in the middle of
// connecting, gloo lets the other one wait for its whole timeout.
template <typename Body>
auto once_more(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return body();
  } catch (const NoThread&) {
    return body();
  }
}

class GlooStore : public c10d::Store {
 public:
  GlooStore(std::shared_ptr<ringcomm::Store> store, std::string prefix,
            std::shared_ptr<const std::atomic<bool>> closed, std::function<void()> check_peer)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        closed_(std::move(closed)),
        check_peer_(std::move(check_peer)) {}

  ~GlooStore() override { links::withdraw(store_, written_); }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<GlooStore>(store_, prefix_, closed_, check_peer_);
  }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    written_.push_back(prefix_ + key);
    once_more([&] { store_->set(prefix_ + key, std::string(value.begin(), value.end())); });
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return once_more([&] {
      const std::string value = wait_for(key);
      return std::vector<uint8_t>(value.begin(), value.end());
    });
  }
  int64_t add(const std::string& key, int64_t value) override {
    written_.push_back(prefix_ + key);
    return store_->add(prefix_ + key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    return once_more([&] {
      return std::ranges::all_of(
          keys, [&](const std::string& key) { return store_->find(prefix_ + key).has_value(); });
    });
  }
  void wait(const std::vector<std::string>& keys) override {
    once_more([&] {
      for (const std::string& key : keys) wait_for(key);
    });
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }
  bool deleteKey(const std::string&) override { return false; }
  int64_t getNumKeys() override { return 0; }

 private:
  std::string wait_for(const std::string& key) {
    for (Poll poll = links::look_for_peer(); !*closed_; poll.sleep()) {
      if (auto found = store_->find(prefix_ + key)) return *std::move(found);
      check_peer_();
    }
    throw Error(ErrorKind::kClosed, "the connection was closed before it was made");
  }

  const std::shared_ptr<ringcomm::Store> store_;
  const std::string prefix_;
  const std::shared_ptr<const std::atomic<bool>> closed_;
  const std::function<void()> check_peer_;
  std::vector<std::string> written_;  // taken away with the connection
};

}  // namespace ringcomm
