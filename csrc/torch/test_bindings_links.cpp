#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "core/text.h"
#include "torch/links.h"
#include "torch/store_adapter.h"
#include "torch/test_bindings.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

using links::Tag;

// An engine, and what it needs to live.
class Engine {
 public:
  Engine(const std::string& wanted, const c10::intrusive_ptr<c10d::Store>& store, int rank,
         int world_size)
      : engine_(make_engine(wanted, std::make_shared<C10dStore>(store), rank, world_size)) {}

  links::Engine& get() { return *engine_; }

 private:
  const std::unique_ptr<links::Engine> engine_;
};

// A posted message, with its tensor. Its destructor cancels it, as nothing waits for it any more.
class Posted {
 public:
  Posted(std::shared_ptr<Engine> engine, at::Tensor tensor)
      : engine_(std::move(engine)), tensor_(std::move(tensor)) {}
  ~Posted() {
    const py::gil_scoped_release release;
    cancel();
  }

  std::byte* data() { return static_cast<std::byte*>(tensor_.data_ptr()); }
  links::Request& request() { return request_; }
  void cancel() { engine_->get().cancel(request_); }

  // Whether it succeeds within that many seconds.
  bool wait(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (int idle = 0; request_.pending() && std::chrono::steady_clock::now() < end; ++idle) {
      engine_->get().progress();
      if (request_.pending() && idle > 1000) engine_->get().sleep(std::chrono::milliseconds(1));
    }
    return !request_.pending() && !request_.failed();
  }

 private:
  const std::shared_ptr<Engine> engine_;
  const at::Tensor tensor_;
  links::Request request_;
};

std::shared_ptr<Posted> post(const std::shared_ptr<Engine>& engine, bool is_send, int peer, Tag tag,
                             const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous() && tensor.is_cpu(), "ring: not a dense CPU tensor");
  const auto posted = std::make_shared<Posted>(engine, tensor);
  const std::span bytes(posted->data(), tensor.nbytes());
  if (is_send) {
    engine->get().send(peer, tag, bytes, posted->request());
  } else {
    engine->get().recv(peer, tag, bytes, posted->request());
  }
  return posted;
}

}  // namespace

void bind_engines(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<Posted, std::shared_ptr<Posted>>(m, "Posted")
      .def("wait", &Posted::wait, py::arg("seconds"), Unlocked())
      .def("cancel", &Posted::cancel, Unlocked())
      .def_property_readonly("pending", [](Posted& posted) { return posted.request().pending(); })
      .def_property_readonly("failed", [](Posted& posted) { return posted.request().failed(); })
      .def_property_readonly("nbytes", [](Posted& posted) { return posted.request().nbytes; });
  py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
      .def(py::init<const std::string&, const c10::intrusive_ptr<c10d::Store>&, int, int>(),
           py::arg("wanted"), py::arg("store"), py::arg("rank"), py::arg("world_size"), Unlocked())
      .def(
          "send",
          [](const std::shared_ptr<Engine>& engine, int peer, std::uint8_t stream,
             std::uint64_t number, const at::Tensor& tensor) {
            return post(engine, true, peer, {stream, number}, tensor);
          },
          py::arg("peer"), py::arg("stream"), py::arg("number"), py::arg("tensor"), Unlocked())
      .def(
          "recv",
          [](const std::shared_ptr<Engine>& engine, int peer, std::uint8_t stream,
             std::uint64_t number, const at::Tensor& tensor) {
            return post(engine, false, peer, {stream, number}, tensor);
          },
          py::arg("peer"), py::arg("stream"), py::arg("number"), py::arg("tensor"), Unlocked())
      .def(
          "progress", [](Engine& engine) { engine.get().progress(); }, Unlocked())
      .def(
          "flushed", [](Engine& engine) { return engine.get().flushed(); }, Unlocked())
      .def("describe", [](Engine& engine) { return valid_utf8(engine.get().describe()); })
      .def(
          "failure",
          [](Engine& engine, int peer) { return valid_utf8(engine.get().failure(peer)); },
          py::arg("peer"), Unlocked());
}

}  // namespace ringcomm
