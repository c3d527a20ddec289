// What stands between an engine and a peer: an endpoint, from its address in the store to its loss.
#include <utility>

#include "core/status.h"
#include "core/thread.h"
#include "hosts/address.h"
#include "hosts/ucx_engine.h"

namespace ringcomm::links {

UcxEngine::Peer& UcxEngine::peer(int rank) {
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
void UcxEngine::look_for_peers() {
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

void UcxEngine::look() {
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

void UcxEngine::connect(Peer& peer, const std::string& address) {
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

void UcxEngine::on_error(void* arg, ucp::Endpoint*, ucp::Status status) {
  Peer& peer = *static_cast<Peer*>(arg);
  peer.engine->lose(peer, peer.engine->ucx_.status_string(status));
}

// What is pending is ended later: UCX may be in the midst of calling back.
void UcxEngine::lose(Peer& peer, const std::string& why) {
  if (peer.lost) return;
  peer.lost = true;
  peer.failure = why;
  ++num_losing_;
}

// Nothing of the peer's is pending when this returns.
void UcxEngine::give_up(Peer& peer) {
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
void UcxEngine::abandon(Peer& peer) {
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
void UcxEngine::stop(const Peer& because) {
  stopped_ = "a message of rank " + std::to_string(because.rank) +
             " was cancelled that was under way, after which UCX carries no others";
  for (auto& [rank, peer] : peers_) {
    lose(peer, stopped_);
    abandon(peer);
  }
}

// By force: to flush needs the peer, which may be busy, or gone. What was flushed is on its way.
void UcxEngine::close(const std::vector<ucp::Endpoint*>& endpoints) {
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

}  // namespace ringcomm::links
