#include "hosts/address.h"

#include "core/status.h"
#include "setup/store.h"

namespace ringcomm::links {
namespace {

const std::string kFailure = "none";  // in place of an engine's name

std::string key_of(int rank) { return "link/" + std::to_string(rank); }

}  // namespace

void publish_address(Store& store, int rank, const std::string& engine,
                     const std::string& address) {
  store.set(key_of(rank), engine + "\n" + address);
}

void publish_failure(Store& store, int rank, const std::string& why) {
  publish_address(store, rank, kFailure, why);
}

void withdraw_address(const std::shared_ptr<Store>& store, int rank) noexcept {
  error_of([&] { withdraw(store, {key_of(rank)}); });
}

void withdraw(const std::shared_ptr<Store>& store, const std::vector<std::string>& keys) noexcept {
  error_of([&] {
    PatientStore patient(store, std::chrono::seconds(1));
    for (const std::string& key : keys) patient.erase(key);
  });
}

std::optional<std::string> find_address(Store& store, int peer, const std::string& engine) {
  const std::optional<std::string> found = store.find(key_of(peer));
  if (!found) return std::nullopt;
  const std::size_t end = found->find('\n');
  const std::string theirs = found->substr(0, end);
  if (theirs == kFailure) {
    throw Error(ErrorKind::kPeerDied, found->substr(end + 1));
  }
  if (theirs != engine) {
    throw Error(ErrorKind::kMismatch, "it uses " + theirs + " between hosts, and this rank " +
                                          engine +
                                          ". Set RINGCOMM_LINKS to one of them on all ranks; "
                                          "`python -m ringcomm doctor` says what a host has");
  }
  return found->substr(end + 1);
}

}  // namespace ringcomm::links
