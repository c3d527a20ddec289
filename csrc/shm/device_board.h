// The board in shared memory, in the device area of each rank. How far a rank is stands in its
// state, so that other ranks need the area only if there is something to read in it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device_board.h"

namespace ringcomm::shm {

class Group;
struct DeviceUniqueId;

class DeviceBoard final : public ringcomm::DeviceBoard {
 public:
  explicit DeviceBoard(Group& group);

  void join(const Settings& settings) override;
  bool joined(int rank) override;
  Settings settings_of(int rank) override;
  void publish_connected() override;
  bool is_connected(int rank) override;
  void send_unique_id(int peer, const UniqueId& unique_id) override;
  void publish_ipc_handle(const UniqueId& ipc_handle) override;
  std::optional<UniqueId> ipc_handle_of(int rank) override;
  void set_access(Access reach) override;
  Access access_of(int rank) override;
  void publish_held(std::size_t nbytes) override;
  void enqueue(const Call& call) override;
  void complete(std::uint64_t sequence) override;
  std::uint64_t enqueued(int rank) override;
  std::uint64_t completed(int rank) override;
  std::optional<Call> find(int rank, std::uint64_t sequence) override;
  void close(Closing how) override;

  // From a rank on another host: what it has published there. Throw Error (kSystem).
  void mirror(int from, int to, const UniqueId& unique_id);
  void mirror(int rank, const Call& call);

 private:
  static void write(DeviceUniqueId& entry, const UniqueId& unique_id);
  static std::optional<UniqueId> read(const DeviceUniqueId& entry);
  void write(int rank, const Call& call);
  std::optional<UniqueId> unique_id(int from, int to) override;
  Closing closing(int rank) override;

  Group& group_;
};

}  // namespace ringcomm::shm
