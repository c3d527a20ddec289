// What the core needs of a rendezvous store; c10d's stores are adapted to it in torch/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ringcomm {

// Keeps what was set until it is erased: also what earlier groups, or earlier attempts at this one,
// have left. All methods return at once, and throw Error (kSystem) when the store does not answer.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Not while somebody may erase the key: some stores look first and read then, and wait for what
  // has gone in between. has() may be asked at any time.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  virtual bool has(const std::string& key) { return find(key).has_value(); }
  // Sets it where nothing was set yet; returns what stands there then, for good: keys that are set
  // so are not set otherwise.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
  // Adds to a counter, which is 0 at first, and returns what it is then.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  // A counter begins at 0 again. False: this store erases nothing.
  virtual bool erase(const std::string&) { return false; }
};

}  // namespace ringcomm
