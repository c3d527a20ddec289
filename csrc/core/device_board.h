// Where ranks publish what they do with their devices. No rank waits for what the others have
// enqueued: it is read when something seems wrong. How far a rank is stands in its state, so that
// other ranks need its area only if there is something to read in it.
#pragma once

#include <array>
#include <atomic>
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
  DeviceBoard(const DeviceBoard&) = delete;
  DeviceBoard& operator=(const DeviceBoard&) = delete;

  // This rank connects its device with all others', or has done so; with settings that must be the
  // same everywhere.
  using Settings = std::array<std::uint64_t, 4>;
  void join(const Settings& settings);
  bool joined(int rank);
  Settings settings_of(int rank);  // once it has joined
  std::vector<int> not_joined();
  // This rank has connected its device with all others'.
  void publish_connected();
  bool is_connected(int rank);

  // How ranks meet: all of them with what rank 0 gives all, two for their first message with what
  // the lower one gives the other. A rank greets a peer once.
  using UniqueId = std::array<std::byte, kUniqueIdNbytes>;
  void send_unique_id(int peer, const UniqueId& unique_id);
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
  void publish_ipc_handle(const UniqueId& ipc_handle);
  std::optional<UniqueId> ipc_handle_of(int rank);
  enum class Access : std::uint32_t {
    kUnknown,
    kWritten,
    kAll,
    kNotAll,
    kLeaving,  // another rank's kernel must not begin to use this rank's memory
    kStopped,  // and this rank's kernels do not use others' memory any more
    kReleased
  };
  void set_access(Access reach);
  Access access_of(int rank);
  bool has_found(int rank) { return access_of(rank) >= Access::kAll; }

  // This rank holds so many bytes of its device for the group, besides those of NCCL.
  void publish_held(std::size_t nbytes);

  // This rank has enqueued the call, whose sequence number is one more than that of the last.
  void enqueue(const Call& call);
  // This rank's collectives up to this one are done.
  void complete(std::uint64_t sequence);
  std::uint64_t enqueued(int rank);
  std::uint64_t completed(int rank);

  // What the rank has enqueued under this number; nothing if that is not known (yet, or any more).
  std::optional<Call> find(int rank, std::uint64_t sequence);

  // This rank will enqueue nothing more, and nothing is under way. kHeld: something that others may
  // not know of still refers to what the ranks share, which must not be freed together then.
  enum class Closing : std::uint32_t { kNot, kFree, kHeld };
  void close(Closing how);
  Closing least_closed(const std::vector<int>& ranks);
  Closing most_closed(const std::vector<int>& ranks);

  // Which ranks called something else than this rank did under this number, or an empty string.
  std::string describe_mismatch(std::uint64_t sequence);

  // What is known of the ranks that hold up this rank's collective: those that have not enqueued
  // it, or, if all have, those that are not done with it.
  std::string describe_awaited(std::uint64_t sequence);

  // What a rank has published, by itself; or by this one, for a rank on another host. Throw Error
  // (kSystem).
  void write(int from, int to, const UniqueId& unique_id);
  void write(int rank, const Call& call);

 private:
  DeviceState& state(int rank) { return group_.device_state(rank); }
  DeviceState& own_state() { return state(group_.rank); }
  // What `from` gave `to`, or all ranks if that is itself.
  std::optional<UniqueId> unique_id(int from, int to);
  Closing closing(int rank);

  Group& group_;
};

// How far a rank is. Collectives on a device are numbered on their own.
struct DeviceState {
  std::atomic<std::uint64_t> enqueued, completed;  // the last collective
  std::atomic<std::uint64_t> held;                 // bytes of its device, besides NCCL's
  std::atomic<std::uint32_t> unique_ids;           // how many it has given
  std::atomic<std::uint32_t> joining;              // 1: it connects its device; 2: it has
  DeviceBoard::Settings settings;                  // written before that
  std::atomic<DeviceBoard::Access> access;
  std::atomic<DeviceBoard::Closing> closing;
};

// Device call number s is in place s % kDeviceCalls as long as its sequence says s. It is kept in
// words, as it may be read while it is overwritten.
inline constexpr int kDeviceCalls = 64;
inline constexpr std::size_t kCallWords = (sizeof(Call) + 7) / 8;

struct alignas(64) DeviceCall {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> words[kCallWords];
};

struct alignas(64) DeviceUniqueId {
  std::atomic<std::uint32_t> ready;
  DeviceBoard::UniqueId data;
};

// Written by one rank, and read by the others.
struct DeviceArea {
  DeviceCall calls[kDeviceCalls];

  static std::size_t nbytes(int world_size) {
    return sizeof(DeviceArea) + (world_size + 1) * sizeof(DeviceUniqueId);
  }
  // What the rank gives that one, or at its own place all. Number world_size is its IPC handle.
  DeviceUniqueId& unique_id(int to) { return reinterpret_cast<DeviceUniqueId*>(this + 1)[to]; }
};

// A message between two ranks' devices, as one of the two sees it.
struct PeerMessage {
  bool is_send;
  int peer;
  void* data;
  std::size_t nbytes;
};

}  // namespace ringcomm
