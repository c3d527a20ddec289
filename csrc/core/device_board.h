// Where ranks publish what they do with their devices. No rank waits for what the others have
// enqueued: it is read when something seems wrong.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/call.h"
#include "core/group.h"

namespace ringcomm {

inline constexpr std::size_t kUniqueIdNbytes = 128;  // a ncclUniqueId

class DeviceBoard {
 public:
  explicit DeviceBoard(Group& group) : group_(group) {}
  virtual ~DeviceBoard() = default;
  DeviceBoard(const DeviceBoard&) = delete;
  DeviceBoard& operator=(const DeviceBoard&) = delete;

  // This rank connects its device with all others', or has done so; with settings that must be the
  // same everywhere.
  using Settings = std::array<std::uint64_t, 4>;
  virtual void join(const Settings& settings) = 0;
  virtual bool joined(int rank) = 0;
  virtual Settings settings_of(int rank) = 0;  // once it has joined
  std::vector<int> not_joined();
  // This rank has connected its device with all others'.
  virtual void publish_connected() = 0;
  virtual bool is_connected(int rank) = 0;

  // How ranks meet: all of them with what rank 0 gives all, two for their first message with what
  // the lower one gives the other. A rank greets a peer once.
  using UniqueId = std::array<std::byte, kUniqueIdNbytes>;
  virtual void send_unique_id(int peer, const UniqueId& unique_id) = 0;
  void send_unique_id_to_all(const UniqueId& unique_id) { send_unique_id(group_.rank, unique_id); }
  std::optional<UniqueId> unique_id_of(int peer) { return unique_id(peer, group_.rank); }
  std::optional<UniqueId> unique_id_to_all(int from) { return unique_id(from, from); }

  // How ranks of one host share memory of their devices: each shows all others, once, where its own
  // is, says that it has written into theirs to prove it, and what it has found. What a rank says
  // only grows.
  //
  // Invariant: the memory of a rank goes only when no kernel of another rank uses it. A rank that
  // leaves says kLeaving, and no other rank begins a kernel from then on. It waits for those that
  // have begun: each ends, or its rank says kStopped. kReleased: the rank has closed all memory of
  // others.
  virtual void publish_ipc_handle(const UniqueId& ipc_handle) = 0;
  virtual std::optional<UniqueId> ipc_handle_of(int rank) = 0;
  enum class Access : std::uint32_t {
    kUnknown,
    kWritten,
    kAll,
    kNotAll,
    kLeaving,  // another rank's kernel must not begin to use this rank's memory
    kStopped,  // and this rank's kernels do not use others' memory any more
    kReleased
  };
  virtual void set_access(Access reach) = 0;
  virtual Access access_of(int rank) = 0;
  bool has_found(int rank) { return access_of(rank) >= Access::kAll; }

  // This rank holds so many bytes of its device for the group, besides those of NCCL.
  virtual void publish_held(std::size_t nbytes) = 0;

  // This rank has enqueued the call, whose sequence number is one more than that of the last.
  virtual void enqueue(const Call& call) = 0;
  // This rank's collectives up to this one are done.
  virtual void complete(std::uint64_t sequence) = 0;
  virtual std::uint64_t enqueued(int rank) = 0;
  virtual std::uint64_t completed(int rank) = 0;

  // What the rank has enqueued under this number; nothing if that is not known (yet, or any more).
  virtual std::optional<Call> find(int rank, std::uint64_t sequence) = 0;

  // This rank will enqueue nothing more, and nothing is under way. kHeld: something that others may
  // not know of still refers to what the ranks share, which must not be freed together then.
  enum class Closing : std::uint32_t { kNot, kFree, kHeld };
  virtual void close(Closing how) = 0;
  Closing least_closed(const std::vector<int>& ranks);
  Closing most_closed(const std::vector<int>& ranks);

  // Which ranks called something else than this rank did under this number, or an empty string.
  std::string describe_mismatch(std::uint64_t sequence);

  // What is known of the ranks that hold up this rank's collective: those that have not enqueued
  // it, or, if all have, those that are not done with it.
  std::string describe_awaited(std::uint64_t sequence);

 private:
  // What `from` gave `to`, or all ranks if that is itself.
  virtual std::optional<UniqueId> unique_id(int from, int to) = 0;
  virtual Closing closing(int rank) = 0;

  Group& group_;
};

// A message between two ranks' devices, as one of the two sees it.
struct PeerMessage {
  bool is_send;
  int peer;
  void* data;
  std::size_t nbytes;
};

}  // namespace ringcomm
