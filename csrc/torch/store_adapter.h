// A c10d store as the core's rendezvous.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "status.h"
#include "store.h"

namespace ringcomm {

class C10dStore : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(kPrefix + key, std::vector<uint8_t>(value.begin(), value.end()));
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    try {
      store_->wait({kPrefix + key}, timeout);
    } catch (const std::exception& error) {
      throw Error(ErrorKind::kTimeout, "while setting up the group, the store's key \"" + key +
                                           "\" did not come: " + error.what());
    }
    const std::vector<uint8_t> value = store_->get(kPrefix + key);
    return std::string(value.begin(), value.end());
  }

 private:
  inline static const std::string kPrefix = "ringcomm/";
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace ringcomm
