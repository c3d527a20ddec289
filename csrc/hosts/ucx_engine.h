// An engine by UCX: one worker, an endpoint per peer that is made when it is first needed, messages
// matched by tags of 64 bits. UCX cannot cancel a send, or a receive whose bytes are under way:
// that ends the connection.
#pragma once

#include <future>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/deadline.h"
#include "core/poll.h"
#include "core/process.h"
#include "hosts/address.h"
#include "hosts/engine.h"
#include "hosts/ucx_library.h"
#include "setup/store.h"

namespace ringcomm::links {

class UcxEngine : public Engine {
 public:
  UcxEngine(std::shared_ptr<Store> store, int rank);
  ~UcxEngine() override;

  std::string describe() const override { return "ucx " + ucx_.version; }
  void send(int peer, Tag tag, std::span<const std::byte> bytes, Request& request) override;
  void recv(int peer, Tag tag, std::span<std::byte> room, Request& request) override;
  void cancel(Request& request) override;
  bool advance() override;
  bool flushed() override;
  void sleep(std::chrono::microseconds longest) override;
  std::string failure(int peer) override;

 private:
  struct Peer;
  // A request and what UCX calls it. UCX may know it for longer than its owner.
  struct Posted {
    Request* request;  // null: its owner knows its end
    Peer* peer;
    void* ucx = nullptr;  // null: not handed over yet
    std::uint64_t tag = 0;
    std::span<const std::byte> bytes = {};  // of a send
    bool is_send = false;
    std::list<Posted>::iterator self = {};
  };
  struct Peer {
    int rank;
    UcxEngine* engine;
    ucp::Endpoint* endpoint = nullptr;
    bool lost = false;
    bool cancelled = false;  // lost by this rank's own doing: its process may live
    std::string failure = {};
    std::list<Posted> posted = {};
  };

  static void on_error(void* peer, ucp::Endpoint*, ucp::Status status);
  static void on_sent(void* ucx, ucp::Status status, void* posted);
  static void on_received(void* ucx, ucp::Status status, const ucp::TagRecvInfo* info,
                          void* posted);

  Peer& peer(int rank);
  Posted& add(Peer& peer, Request& request);
  void end(Posted& posted, Request::State state);
  void hand_over(Posted& posted);
  void look_for_peers();
  void look();
  void connect(Peer& peer, const std::string& address);
  void lose(Peer& peer, const std::string& why);
  void give_up(Peer& peer);
  void abandon(Peer& peer);
  void stop(const Peer& because);
  void close(const std::vector<ucp::Endpoint*>& endpoints);

  // How long UCX has to let go of a connection, which takes microseconds unless something is wrong.
  static constexpr std::chrono::milliseconds kPatience{500};

  const ForkGuard fork_guard_;
  const UcxLibrary& ucx_;
  const std::shared_ptr<Store> store_;
  const int rank_;
  std::mutex mutex_;  // of all that follows, and of all calls to UCX
  ucp::Worker* worker_ = nullptr;
  int event_fd_ = -1;
  std::unordered_map<int, Peer> peers_;
  std::list<Posted> unused_;
  std::list<Posted> abandoned_;  // those without a request
  std::size_t num_sends_ = 0;    // pending
  std::size_t num_ended_ = 0;    // so far
  std::size_t num_unknown_ = 0;  // peers whose address was not found yet
  std::size_t num_losing_ = 0;   // peers that were found lost, and have requests to end
  // What the store holds of a peer; neither is set if that has not come.
  struct Looked {
    int rank;
    std::optional<std::string> address = {};
    std::string error = {};
  };
  std::future<std::vector<Looked>> looking_;
  Poll poll_ = look_for_peer();
  Clock::time_point next_look_ = {};
  bool sent_since_flush_ = false;
  std::string stopped_;  // why nothing moves any more; empty: it does
  void* flushing_ = nullptr;
};

}  // namespace ringcomm::links
