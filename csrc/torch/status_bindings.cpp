// Groups as others see them, for Python.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <tuple>

#include "shm/view.h"
#include "torch/backend.h"
#include "torch/bindings.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

py::dict to_dict(const shm::RankView& rank) {
  py::dict dict;
  dict["rank"] = rank.rank;
  dict["global_rank"] = rank.global_rank;
  dict["pid"] = rank.process.pid;
  dict["host"] = rank.host;
  dict["state"] = rank.state;
  dict["doing"] = rank.doing;
  dict["waits_for"] = rank.waits_for < 0 ? py::object(py::none()) : py::int_(rank.waits_for);
  dict["waits"] = rank.waits;
  dict["completed"] = rank.completed;
  dict["enqueued_on_device"] = rank.enqueued_on_device;
  dict["completed_on_device"] = rank.completed_on_device;
  dict["nbytes"] = rank.nbytes;
  dict["held"] = rank.held;
  return dict;
}

py::dict view_group(int descriptor) {
  const shm::GroupView group = shm::view(descriptor);
  py::list ranks;
  for (const shm::RankView& rank : group.ranks) ranks.append(to_dict(rank));
  py::dict dict;
  dict["name"] = group.name;
  dict["complete"] = group.complete;
  dict["failure"] = group.failure;
  dict["ranks"] = ranks;
  dict["host_of"] = group.host_of;
  dict["engine"] = group.inter_host.engine;
  const Link& link = group.inter_host.link;
  dict["across"] = std::make_tuple(link.latency, link.bandwidth, link.overhead);
  dict["tuned_by"] = group.tuned_by;
  py::list size_classes;
  for (const SizeClass& one : group.size_classes) size_classes.append(to_dict(one));
  dict["size_classes"] = size_classes;
  return dict;
}

shm::Group& group_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const auto* ring = dynamic_cast<const RingBackend*>(backend.get());
  TORCH_CHECK_TYPE(ring != nullptr, "ring: topology: not a backend \"ring\"");
  TORCH_CHECK(ring->communicator(), "ring: topology: this group has no members yet");
  return ring->communicator()->group();
}

}  // namespace

void bind_status(py::module_& m) {
  m.def("view_group", &view_group, py::arg("descriptor"),
        "Reads the group whose memory the open file is; RuntimeError where it is none.");
  m.def(
      "host_of",
      [](const c10::intrusive_ptr<c10d::Backend>& backend) {
        return group_of(backend).placement().host_of;
      },
      py::arg("backend"), "The number of each rank's host.");
  m.def(
      "host_names",
      [](const c10::intrusive_ptr<c10d::Backend>& backend) {
        return group_of(backend).host_names();
      },
      py::arg("backend"), "By those numbers.");
}

}  // namespace ringcomm
