// A c10d store as the core's rendezvous, and the core's store as one of c10d's.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
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

class C10dStore : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    asking("set", key,
           [&] { store_->set(kPrefix + key, std::vector<uint8_t>(value.begin(), value.end())); });
  }

  std::optional<std::string> find(const std::string& key) override {
    return asking("get", key, [&]() -> std::optional<std::string> {
      if (!store_->check({kPrefix + key})) return std::nullopt;
      std::vector<uint8_t> value;
      if (error_of([&] { value = store_->compareSet(kPrefix + key, kNothing, kNothing); })) {
        value = store_->get(kPrefix + key);  // this store compares nothing
      }
      if (value == kNothing) return std::nullopt;
      return std::string(value.begin(), value.end());
    });
  }

  std::string set_once(const std::string& key, const std::string& value) override {
    return asking("compare_set", key, [&] {
      const std::vector<uint8_t> stands =
          store_->compareSet(kPrefix + key, {}, std::vector<uint8_t>(value.begin(), value.end()));
      return std::string(stands.begin(), stands.end());
    });
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return asking("add", key, [&] { return store_->add(kPrefix + key, amount); });
  }

  bool has(const std::string& key) override {
    return asking("check", key, [&] { return store_->check({kPrefix + key}); });
  }

  // Stores that cannot do it throw, each an error of its own.
  bool erase(const std::string& key) override {
    bool is_erased = false;
    error_of([&] { is_erased = store_->deleteKey(kPrefix + key); });
    return is_erased;
  }

 private:
  template <typename Ask>
  static auto asking(const char* method, const std::string& key, Ask ask) -> decltype(ask()) {
    const auto failed = [&](const char* why) {
      return Error(
          ErrorKind::kSystem,
          std::string("while the ranks of a group look for each other, the store fails in ") +
              method + "(\"" + kPrefix + key + "\"): " + why +
              ". Has the process ended that keeps it?");
    };
    try {
      return ask();
    } catch (const std::bad_alloc&) {
      throw;  // this rank's fault, and not the store's
    } catch (const c10::Error& error) {
      throw failed(error.what_without_backtrace());
    } catch (const std::exception& error) {
      throw failed(error.what());
    }
  }

  inline static const std::string kPrefix = "ringcomm/";
  // What no value is. Compared with a key that is erased after it was looked for it is returned,
  // where get() would wait for the key.
  inline static const std::vector<uint8_t> kNothing = {'n', 'o', 't', 'h', 'i', 'n', 'g', 0, 255};
  c10::intrusive_ptr<c10d::Store> store_;
};

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

// The core's store, for gloo to find a peer by. A wait for a key is a wait for the peer. It ends
// when the peer comes, when check_peer() throws, or when this is closed.
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
