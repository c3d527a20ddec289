// An engine by UCX: one worker, an endpoint per peer that is made when it is first needed, messages
// matched by tags of 64 bits. UCX cannot cancel a send, or a receive whose bytes are under way:
// that ends the connection.
#include <poll.h>

#include <algorithm>
#include <future>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/deadline.h"
#include "core/poll.h"
#include "core/process.h"
#include "core/status.h"
#include "core/thread.h"
#include "hosts/address.h"
#include "hosts/engine.h"
#include "hosts/ucx_library.h"
#include "setup/store.h"

namespace ringcomm::links {
namespace {

using namespace std::chrono_literals;

constexpr int kStreamBits = 4, kNumberBits = 40;
static_assert(kStreams == 1 << kStreamBits);

std::uint64_t encode(int sender, Tag tag) {
  return static_cast<std::uint64_t>(sender) << (kStreamBits + kNumberBits) |
         static_cast<std::uint64_t>(tag.stream) << kNumberBits | tag.number;
}

class UcxEngine : public Engine {
 public:
  UcxEngine(std::shared_ptr<Store> store, int rank)
      : ucx_(ucx_library()), store_(std::move(store)), rank_(rank) {
    const auto check = [&](ucp::Status status, const char* call) {
      if (status == ucp::Status::kOk) return;
      if (worker_ != nullptr) ucx_.worker_destroy(worker_);
      throw Error(ErrorKind::kLibrary, describe_failure(ucx_, status, call));
    };
    ucp::WorkerParams params{};
    params.field_mask = ucp::WorkerParams::kThreadMode;
    params.thread_mode = ucp::WorkerParams::kSerialized;
    check(ucx_.worker_create(ucx_.context, &params, &worker_), "ucp_worker_create");
    check(ucx_.worker_get_efd(worker_, &event_fd_), "ucp_worker_get_efd");
    ucp::WorkerAttr own{};
    own.field_mask = ucp::WorkerAttr::kAddress;
    check(ucx_.worker_query(worker_, &own), "ucp_worker_query");
    const std::string address(reinterpret_cast<const char*>(own.address), own.address_length);
    ucx_.worker_release_address(worker_, own.address);
    try {
      publish_address(*store_, rank_, "ucx", address);
    } catch (...) {
      ucx_.worker_destroy(worker_);
      throw;
    }
  }

  ~UcxEngine() override {
    if (!fork_guard_.is_here()) return;  // a child leaves all of it alone
    std::lock_guard lock(mutex_);
    std::vector<ucp::Endpoint*> endpoints;
    for (auto& [rank, peer] : peers_) {
      if (peer.endpoint != nullptr) endpoints.push_back(std::exchange(peer.endpoint, nullptr));
    }
    close(endpoints);
    for (auto& [rank, peer] : peers_) give_up(peer);
    if (flushing_ != nullptr) ucx_.request_free(flushing_);
    ucx_.worker_destroy(worker_);
    withdraw_address(store_, rank_);
  }

  std::string describe() const override { return "ucx " + ucx_.version; }

  void send(int to, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    std::lock_guard lock(mutex_);
    Peer& peer = this->peer(to);
    if (peer.lost) return request.state.store(Request::State::kFailed, std::memory_order_release);
    Posted& posted = add(peer, request);
    posted.is_send = true;
    posted.bytes = bytes;
    posted.tag = encode(rank_, tag);
    ++num_sends_;
    if (peer.endpoint != nullptr) hand_over(posted);
  }

  void recv(int from, Tag tag, std::span<std::byte> room, Request& request) override {
    std::lock_guard lock(mutex_);
    Peer& peer = this->peer(from);
    if (peer.lost) return request.state.store(Request::State::kFailed, std::memory_order_release);
    Posted& posted = add(peer, request);
    ucp::TagRecvInfo info{};
    ucp::RequestParam param{};
    param.op_attr_mask =
        ucp::RequestParam::kCallback | ucp::RequestParam::kUserData | ucp::RequestParam::kRecvInfo;
    param.callback.recv = on_received;
    param.user_data = &posted;
    param.recv_info = &info;
    void* const received = ucx_.tag_recv_nbx(worker_, room.data(), room.size(), encode(from, tag),
                                             ~std::uint64_t{0}, &param);
    if (received == nullptr) {
      request.nbytes = info.length;
      end(posted, Request::State::kDone);
    } else if (ucp::failed(received)) {
      end(posted, Request::State::kFailed);
    } else {
      posted.ucx = received;
    }
  }

  void cancel(Request& request) override {
    std::lock_guard lock(mutex_);
    if (!request.pending()) return;
    Posted& posted = *static_cast<Posted*>(request.handle);
    if (posted.ucx == nullptr) return end(posted, Request::State::kFailed);
    Peer& peer = *posted.peer;
    if (!posted.is_send) ucx_.request_cancel(worker_, posted.ucx);
    if (!request.pending()) return;
    lose(peer, "a message was cancelled that was under way");
    peer.cancelled = true;
    give_up(peer);
  }

  bool advance() override {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !stopped_.empty()) return false;  // another thread does it, or none
    if (peers_.empty()) return false;              // for example, its leader speaks for it
    look_for_peers();
    const std::size_t ended = num_ended_;
    while (ucx_.worker_progress(worker_) > 0 && num_ended_ == ended) {
    }
    if (num_losing_ > 0) {
      num_losing_ = 0;
      for (auto& [rank, peer] : peers_) {
        if (peer.lost && (peer.endpoint != nullptr || !peer.posted.empty())) give_up(peer);
      }
    }
    return num_ended_ != ended;
  }

  bool flushed() override {
    std::lock_guard lock(mutex_);
    if (num_sends_ > 0) return false;
    if (!stopped_.empty()) return true;
    if (flushing_ == nullptr) {
      if (!std::exchange(sent_since_flush_, false)) return true;
      ucp::RequestParam param{};
      void* request = ucx_.worker_flush_nbx(worker_, &param);
      if (!ucp::is_request(request)) return true;
      flushing_ = request;
    }
    if (ucx_.request_check_status(flushing_) == ucp::Status::kInProgress) return false;
    ucx_.request_free(std::exchange(flushing_, nullptr));
    return !sent_since_flush_;
  }

  void sleep(std::chrono::microseconds longest) override {
    if (advance()) return;  // what UCX has not looked at does not wake
    {
      std::lock_guard lock(mutex_);
      if (!stopped_.empty()) return;
      if (looking_.valid()) {
        longest = std::min<std::chrono::microseconds>(longest, 1ms);
      } else if (num_unknown_ > 0) {
        longest = std::min(longest,
                           std::chrono::ceil<std::chrono::microseconds>(next_look_ - Clock::now()));
      }
      if (longest <= 0us) return;
      if (ucx_.worker_arm(worker_) != ucp::Status::kOk) return;  // there is something already
    }
    pollfd wanted{.fd = event_fd_, .events = POLLIN, .revents = 0};
    const auto seconds = std::chrono::floor<std::chrono::seconds>(longest);
    const timespec limit{.tv_sec = seconds.count(),
                         .tv_nsec = std::chrono::nanoseconds(longest - seconds).count()};
    ppoll(&wanted, 1, &limit, nullptr);
  }

  std::string failure(int rank) override {
    std::lock_guard lock(mutex_);
    const auto found = peers_.find(rank);
    return found == peers_.end() ? "" : found->second.failure;
  }

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

  Posted& add(Peer& peer, Request& request) {
    if (unused_.empty()) unused_.emplace_back();
    peer.posted.splice(peer.posted.end(), unused_, unused_.begin());
    Posted& posted = peer.posted.back();
    posted = {.request = &request, .peer = &peer, .self = std::prev(peer.posted.end())};
    request.handle = &posted;
    request.state.store(Request::State::kPending, std::memory_order_release);
    return posted;
  }

  // UCX knows it no more.
  void end(Posted& posted, Request::State state) {
    if (posted.is_send) --num_sends_;
    ++num_ended_;
    Request* request = std::exchange(posted.request, nullptr);
    unused_.splice(unused_.begin(), request != nullptr ? posted.peer->posted : abandoned_,
                   posted.self);
    if (request != nullptr) request->state.store(state, std::memory_order_release);
  }

  void hand_over(Posted& posted) {
    ucp::RequestParam param{};
    param.op_attr_mask = ucp::RequestParam::kCallback | ucp::RequestParam::kUserData;
    param.callback.send = on_sent;
    param.user_data = &posted;
    sent_since_flush_ = true;
    void* const sent = ucx_.tag_send_nbx(posted.peer->endpoint, posted.bytes.data(),
                                         posted.bytes.size(), posted.tag, &param);
    if (sent == nullptr) return end(posted, Request::State::kDone);
    if (ucp::failed(sent)) return end(posted, Request::State::kFailed);
    posted.ucx = sent;
  }

  static void on_sent(void* ucx, ucp::Status status, void* arg) {
    Posted& posted = *static_cast<Posted*>(arg);
    UcxEngine& engine = *posted.peer->engine;
    engine.ucx_.request_free(ucx);
    engine.end(posted,
               status == ucp::Status::kOk ? Request::State::kDone : Request::State::kFailed);
  }

  static void on_received(void* ucx, ucp::Status status, const ucp::TagRecvInfo* info, void* arg) {
    Posted& posted = *static_cast<Posted*>(arg);
    UcxEngine& engine = *posted.peer->engine;
    engine.ucx_.request_free(ucx);
    if (status == ucp::Status::kOk && posted.request != nullptr)
      posted.request->nbytes = info->length;
    engine.end(posted,
               status == ucp::Status::kOk ? Request::State::kDone : Request::State::kFailed);
  }

  // ---- A peer, from its address in the store to its loss ----------------------------------------

  Peer& peer(int rank) {
    const auto [found, is_new] = peers_.try_emplace(rank, Peer{.rank = rank, .engine = this});
    if (is_new && !stopped_.empty()) {
      lose(found->second, stopped_);
    } else if (is_new) {  // also one from which is only received: its death is to be known
      ++num_unknown_;
      poll_.restart();
      next_look_ = {};
      look_for_peers();
    }
    return found->second;
  }

  // Never waits for the store: the one of a host that was cut off may not answer any more.
  void look_for_peers() {
    if (num_unknown_ == 0) return;
    if (!looking_.valid()) {
      if (Clock::now() >= next_look_) look();
      return;
    }
    if (looking_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    for (const Looked& looked : looking_.get()) {
      Peer& peer = peers_.at(looked.rank);
      if (!looked.address && looked.error.empty()) continue;
      --num_unknown_;
      if (peer.lost) continue;
      looked.address ? connect(peer, *looked.address) : lose(peer, looked.error);
    }
  }

  void look() {
    next_look_ = Clock::now() + poll_.next();
    std::vector<int> ranks;
    for (const auto& [rank, peer] : peers_) {
      if (peer.endpoint == nullptr && !peer.lost) ranks.push_back(rank);
    }
    num_unknown_ = ranks.size();
    if (ranks.empty()) return;
    looking_ = run_detached([store = store_, ranks = std::move(ranks)] {
      std::vector<Looked> all;
      for (const int rank : ranks) {
        Looked& looked = all.emplace_back(Looked{.rank = rank});
        try {
          looked.address = find_address(*store, rank, "ucx");
        } catch (const std::exception& error) {
          looked.error = error.what();
        }
      }
      return all;
    });
  }

  void connect(Peer& peer, const std::string& address) {
    ucp::EndpointParams params{};
    params.field_mask = ucp::EndpointParams::kRemoteAddress | ucp::EndpointParams::kErrorMode |
                        ucp::EndpointParams::kErrorHandler;
    params.address = reinterpret_cast<const ucp::Address*>(address.data());
    params.error_mode = ucp::EndpointParams::kPeer;
    params.error_handler = {.call = on_error, .arg = &peer};
    const ucp::Status status = ucx_.ep_create(worker_, &params, &peer.endpoint);
    if (status != ucp::Status::kOk) {
      peer.endpoint = nullptr;
      return lose(peer, std::string("no connection can be made: ") + ucx_.status_string(status));
    }
    sent_since_flush_ = true;  // a connection is made by messages
    for (auto it = peer.posted.begin(); it != peer.posted.end() && !peer.lost;) {
      Posted& posted = *it++;
      if (posted.is_send) hand_over(posted);
    }
  }

  static void on_error(void* arg, ucp::Endpoint*, ucp::Status status) {
    Peer& peer = *static_cast<Peer*>(arg);
    peer.engine->lose(peer, peer.engine->ucx_.status_string(status));
  }

  // What is pending is ended later: UCX may be in the midst of calling back.
  void lose(Peer& peer, const std::string& why) {
    if (peer.lost) return;
    peer.lost = true;
    peer.failure = why;
    ++num_losing_;
  }

  // Nothing of the peer's is pending when this returns.
  void give_up(Peer& peer) {
    std::vector<Posted*> receives;
    for (auto it = peer.posted.begin(); it != peer.posted.end();) {
      Posted& posted = *it++;
      if (posted.ucx == nullptr) {
        end(posted, Request::State::kFailed);
      } else if (!posted.is_send) {
        receives.push_back(&posted);
      }
    }
    for (Posted* posted : receives) ucx_.request_cancel(worker_, posted->ucx);
    if (peer.endpoint != nullptr) {
      close({std::exchange(peer.endpoint, nullptr)});
    }
    const Deadline deadline = Deadline::in(kPatience);
    while (!peer.posted.empty() && Clock::now() - deadline.start < deadline.timeout) {
      ucx_.worker_progress(worker_);
    }
    if (!peer.posted.empty() && peer.cancelled) stop(peer);
    abandon(peer);
  }

  // What UCX still knows of is ended for its owner: no connection is left by which UCX could touch
  // its bytes, or it does not get to.
  void abandon(Peer& peer) {
    for (Posted& posted : peer.posted) {
      if (std::exchange(posted.is_send, false)) --num_sends_;
      std::exchange(posted.request, nullptr)
          ->state.store(Request::State::kFailed, std::memory_order_release);
    }
    abandoned_.splice(abandoned_.end(), peer.posted);
  }

  // If a message comes in several packets, UCX writes the later ones where they belong even if the
  // receive was cancelled meanwhile. So after a receive that was cancelled in the middle of a
  // message, the engine carries no other.
  void stop(const Peer& because) {
    stopped_ = "a message of rank " + std::to_string(because.rank) +
               " was cancelled that was under way, after which UCX carries no others";
    for (auto& [rank, peer] : peers_) {
      lose(peer, stopped_);
      abandon(peer);
    }
  }

  // By force: to flush needs the peer, which may be busy, or gone. What was flushed is on its way.
  void close(const std::vector<ucp::Endpoint*>& endpoints) {
    ucp::RequestParam param{};
    param.op_attr_mask = ucp::RequestParam::kFlags;
    param.flags = ucp::RequestParam::kForce;
    std::vector<void*> closing;
    for (ucp::Endpoint* endpoint : endpoints) {
      void* request = ucx_.ep_close_nbx(endpoint, &param);
      if (ucp::is_request(request)) closing.push_back(request);
    }
    const Deadline deadline = Deadline::in(kPatience);
    while (!closing.empty() && Clock::now() - deadline.start < deadline.timeout) {
      ucx_.worker_progress(worker_);
      std::erase_if(closing, [&](void* request) {
        if (ucx_.request_check_status(request) == ucp::Status::kInProgress) return false;
        ucx_.request_free(request);
        return true;
      });
    }
    for (void* request : closing) ucx_.request_free(request);
  }

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

}  // namespace

std::unique_ptr<Engine> make_ucx_engine(std::shared_ptr<Store> store, int rank, int) {
  return std::make_unique<UcxEngine>(std::move(store), rank);
}

}  // namespace ringcomm::links
