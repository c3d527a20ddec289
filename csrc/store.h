// What the core needs of a rendezvous store; c10d's stores are adapted to it in torch/.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ringcomm {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for the key; throws when it does not come in time.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace ringcomm
