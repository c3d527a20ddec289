// Where ranks find each other: what each has left in the group's store.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "setup/store.h"

namespace ringcomm::links {

// `engine`: its name, by which ranks see that they use the same.
void publish_address(Store& store, int rank, const std::string& engine, const std::string& address);

// In place of an address: this rank cannot be connected to, as `why` says.
void publish_failure(Store& store, int rank, const std::string& why);

// Takes the address away, when no rank is to connect to this one any more.
void withdraw_address(const std::shared_ptr<Store>& store, int rank) noexcept;
// Takes these keys away, if the store answers soon.
void withdraw(const std::shared_ptr<Store>& store, const std::vector<std::string>& keys) noexcept;

// Empty: the peer has not come so far. Throws Error: kMismatch if it uses another engine, kPeerDied
// if it has published a failure.
std::optional<std::string> find_address(Store& store, int peer, const std::string& engine);

// Between looks into a store for a peer that has not come. Ever longer, for a large group has many
// that look.
class LookPause {
 public:
  std::chrono::milliseconds next() { return std::exchange(next_, std::min(2 * next_, kLongest)); }

 private:
  static constexpr std::chrono::milliseconds kLongest{64};
  std::chrono::milliseconds next_{1};
};

}  // namespace ringcomm::links
