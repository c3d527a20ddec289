// A store that may never answer, such as one on a host that was cut off: a call to it waits for the
// network, and nothing ends it. Here it waits on a thread of its own, which is left behind.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "core/store.h"

namespace ringcomm {

class PatientStore : public Store {
 public:
  // Every call ends after that time, by Error (kSystem), and all later ones at once.
  PatientStore(std::shared_ptr<Store> store, std::chrono::milliseconds patience)
      : store_(std::move(store)), patience_(patience) {}

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> find(const std::string& key) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool has(const std::string& key) override;
  bool erase(const std::string& key) override;

 private:
  template <typename Answer>
  Answer ask(const std::string& key, std::function<Answer(Store&)> question);

  const std::shared_ptr<Store> store_;
  const std::chrono::milliseconds patience_;
  std::atomic<bool> is_silent_{false};
};

}  // namespace ringcomm
