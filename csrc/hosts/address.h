// Where ranks find each other: what each has left in the group's store.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/poll.h"
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

// Looks into a store for a peer that has not come. The sleeps become long, because many ranks of a
// large group look at the same time.
inline Poll look_for_peer() {
  return Poll(std::chrono::milliseconds(1), std::chrono::milliseconds(64));
}

}  // namespace ringcomm::links
