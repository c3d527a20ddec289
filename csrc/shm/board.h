// The board in shared memory, in the device area of each rank. How far a rank is stands in its
// state, so that nobody needs the area to see that there is nothing to read in it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/board.h"

namespace ringcomm::shm {

class Group;
struct DeviceGreeting;

class Board final : public ringcomm::Board {
 public:
  explicit Board(Group& group);

  void join(const Settings& settings) override;
  bool joined(int rank) override;
  Settings settings_of(int rank) override;
  void tell_connected() override;
  bool is_connected(int rank) override;
  void greet(int peer, const Greeting& greeting) override;
  void show(const Greeting& card) override;
  std::optional<Greeting> card_of(int rank) override;
  void tell_reach(Reach reach) override;
  Reach reach_of(int rank) override;
  void enqueue(const Call& call) override;
  void complete(std::uint64_t sequence) override;
  std::uint64_t enqueued(int rank) override;
  std::uint64_t completed(int rank) override;
  std::optional<Call> find(int rank, std::uint64_t sequence) override;
  void close(Closing how) override;

  // Of a rank on another host: what it has told there. Throw Error (kSystem).
  void mirror(int from, int to, const Greeting& greeting);
  void mirror(int rank, const Call& call);

 private:
  static void write(DeviceGreeting& entry, const Greeting& greeting);
  static std::optional<Greeting> read(const DeviceGreeting& entry);
  void write(int rank, const Call& call);
  std::optional<Greeting> greeting(int from, int to) override;
  Closing closing(int rank) override;

  Group& group_;
};

}  // namespace ringcomm::shm
