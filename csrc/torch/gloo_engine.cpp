// Bytes between hosts by gloo: how two ranks find each other, and connect.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "core/poll.h"
#include "core/process.h"
#include "core/status.h"
#include "hosts/address.h"
#include "torch/gloo_connection.h"
#include "torch/links.h"
#include "torch/store_adapter.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

using Closed = std::shared_ptr<const std::atomic<bool>>;
using links::Request;
using links::Tag;

// How long two ranks that have both come may take to connect.
constexpr std::chrono::seconds kConnectTimeout{30};

// A group of gloo's with this rank alone: it has gloo's devices, on the interfaces that the user
// has chosen, and makes others. C++ code outside of torch can make none, as gloo's headers are not
// installed. Throws Error. `timeout`: of its calls.
c10::intrusive_ptr<c10d::Backend> make_gloo(std::chrono::milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  try {
    const py::module_ c10d = py::module_::import("torch._C._distributed_c10d");
    if (!py::hasattr(c10d, "ProcessGroupGloo")) {
      throw Error(ErrorKind::kLibrary, "this torch was built without gloo");
    }
    const py::object group =
        c10d.attr("ProcessGroupGloo")(c10d.attr("HashStore")(), 0, 1, py::cast(timeout));
    return group.cast<c10::intrusive_ptr<c10d::Backend>>();
  } catch (const py::error_already_set& error) {
    throw Error(ErrorKind::kLibrary, std::string("gloo cannot be used: ") + error.what());
  }
}

class GlooEngine : public links::Engine {
 public:
  GlooEngine(std::shared_ptr<Store> store, int rank)
      : gloo_(make_gloo(kConnectTimeout)), store_(std::move(store)), rank_(rank) {
    links::publish_address(*store_, rank_, "gloo", "");
  }

  ~GlooEngine() override {
    if (fork_guard_.is_here()) {
      links::withdraw_address(store_, rank_);
      return;
    }
    // A child has no threads that could be joined.
    for (auto& [peer, connection] : connections_) (void)connection.release();
    (void)gloo_.release();
  }

  std::string describe() const override { return "gloo"; }

  void send(int peer, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    connection(peer).post(true, tag, const_cast<std::byte*>(bytes.data()), bytes.size(), request);
  }

  void recv(int peer, Tag tag, std::span<std::byte> room, Request& request) override {
    connection(peer).post(false, tag, room.data(), room.size(), request);
  }

  void cancel(Request& request) override {
    if (request.pending()) static_cast<GlooConnection*>(request.handle)->cancel(request);
  }

  // Gloo's own thread moves what there is.
  bool advance() override { return false; }
  bool flushed() override {
    std::lock_guard lock(mutex_);
    return std::none_of(connections_.begin(), connections_.end(),
                        [](const auto& item) { return item.second->is_sending(); });
  }

  void sleep(std::chrono::microseconds longest) override {
    std::unique_lock lock(ended_mutex_);
    ended_.wait_for(lock, longest, [&] { return std::exchange(has_ended_, false); });
  }

  std::string failure(int peer) override {
    std::lock_guard lock(mutex_);
    const auto found = connections_.find(peer);
    return found == connections_.end() ? "" : found->second->failure();
  }

 private:
  GlooConnection& connection(int peer) {
    std::lock_guard lock(mutex_);
    std::unique_ptr<GlooConnection>& connection = connections_[peer];
    if (!connection) {
      connection = std::make_unique<GlooConnection>(
          [this, peer](const Closed& closed) { return connect_or_say_so(peer, closed); },
          /*peer=*/rank_ < peer ? 1 : 0,
          [this] {
            {
              std::lock_guard lock(ended_mutex_);
              has_ended_ = true;
            }
            ended_.notify_all();
          });
    }
    return *connection;
  }

  // The peer waits in the store for what this rank has not written.
  c10::intrusive_ptr<c10d::Backend> connect_or_say_so(int peer, const Closed& closed) {
    c10::intrusive_ptr<c10d::Backend> connected;
    const std::exception_ptr error = error_of([&] { connected = connect(peer, closed); });
    if (!error) return connected;
    if (!*closed) {
      at_the_end([&] {
        links::publish_failure(*store_, rank_,
                               "it could not connect to other hosts: " + what_of(error));
      });
    }
    std::rethrow_exception(error);
  }

  c10::intrusive_ptr<c10d::Backend> connect(int peer, const Closed& closed) {
    for (Poll poll = links::look_for_peer(); !links::find_address(*store_, peer, "gloo");
         poll.sleep()) {
      if (*closed) throw Error(ErrorKind::kClosed, "it has not come");
    }
    const auto [low, high] = std::minmax(rank_, peer);
    const std::string prefix =
        "link/gloo/" + std::to_string(low) + "-" + std::to_string(high) + "/";
    const auto check_peer = [store = store_, peer] { links::find_address(*store, peer, "gloo"); };
    return gloo_->merge(c10::make_intrusive<GlooStore>(store_, prefix, closed, check_peer),
                        gloo_->getBackendOptions(), rank_ == low ? 0 : 1, 2);
  }

  const ForkGuard fork_guard_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  const std::shared_ptr<Store> store_;
  const int rank_;
  std::mutex ended_mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::mutex mutex_;  // of what follows
  std::map<int, std::unique_ptr<GlooConnection>> connections_;
};

}  // namespace

std::unique_ptr<links::Engine> make_gloo_engine(std::shared_ptr<Store> store, int rank, int) {
  return std::make_unique<GlooEngine>(std::move(store), rank);
}

}  // namespace ringcomm
