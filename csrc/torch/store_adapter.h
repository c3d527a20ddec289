// A c10d store as the core's rendezvous.
#pragma once

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/status.h"
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

}  // namespace ringcomm
