// What the core needs of a rendezvous store; c10d's stores are adapted to it in torch/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ringcomm {

// Keeps what was set, for good: also what earlier groups, or earlier attempts at this one, have
// left. All methods return at once, and throw Error (kSystem) when the store does not answer.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // Sets it where nothing was set yet; returns what stands there then, for good: keys that are set
  // so are not set otherwise.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
  // Adds to a counter, which is 0 at first, and returns what it is then.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
};

}  // namespace ringcomm
