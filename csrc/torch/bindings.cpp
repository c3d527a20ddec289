// The Python module ringcomm._C: its backend, and groups as others see them.
#include "torch/bindings.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "core/flight_recorder.h"
#include "hosts/ucx_library.h"
#include "plan/plan.h"
#include "setup/bootstrap.h"
#include "shm/view.h"
#include "torch/backend.h"
#include "torch/links.h"
#include "torch/observer.h"
#include "torch/python.h"
#include "torch/shared_memory.h"
#include "torch/store_adapter.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

// A collective, an algorithm's name and, for a plan of the user's, what makes it: a function of
// world_size and root that returns the plans of all ranks.
using Choice = std::tuple<Collective, std::string, py::object>;

// Dropped by any thread, and outlived by none that could still take the lock.
std::shared_ptr<py::object> shared(const py::object& object) {
  return {new py::object(object), [](py::object* last) {
            const py::gil_scoped_acquire gil;
            delete last;
          }};
}

std::function<void(int)> caller_of(const py::object& function) {
  if (function.is_none()) return {};
  return [function = shared(function)](int descriptor) {
    const py::gil_scoped_acquire gil;
    (*function)(descriptor);
  };
}

PlanSource source_of(const std::string& name, const py::object& generator) {
  return [name, function = shared(generator)](int world_size, int root) {
    const py::gil_scoped_acquire gil;
    try {
      return (*function)(world_size, root).cast<std::vector<Plan>>();
    } catch (const py::error_already_set& error) {
      throw PlanError("its generator raised " + std::string(error.what()));
    } catch (const py::cast_error&) {
      throw PlanError("its generator returned something else than plans");
    }
  };
}

// World size, collective, bytes, and seconds.
using Time = std::tuple<int, Collective, std::uint64_t, double>;

CallTimes times_of(const std::vector<Time>& times) {
  std::vector<MeasuredCall> measured;
  for (const auto& [world_size, collective, nbytes, seconds] : times) {
    measured.push_back({world_size, collective, nbytes, seconds});
  }
  return CallTimes(measured);
}

Selection selection_of(const std::vector<Choice>& choices, std::vector<int> host_of,
                       const Link& link, const std::vector<Tuned>& tuned,
                       const std::string& tuned_by, const std::string& reproducible) {
  Selection selection{.choices = {},
                      .reproducible = reproducible_named(reproducible),
                      .host_of = std::move(host_of),
                      .link = link,
                      .tuned = rules_of(tuned),
                      .tuned_by = tuned_by};
  for (const auto& [collective, name, generator] : choices) {
    selection.choices[collective] = {
        name, generator.is_none() ? PlanSource() : source_of(name, generator)};
  }
  return selection;
}

// The other ranks are not to wait for this one, and are to raise the reason.
void decline_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                   std::chrono::milliseconds timeout, const std::string& group_name,
                   const std::vector<std::uint64_t>& global_ranks, const std::string& reason) {
  const py::gil_scoped_release release;
  C10dStore adapter(store);
  decline(adapter,
          {.rank = rank,
           .world_size = world_size,
           .timeout = timeout,
           .members = {.group = group_name, .global_ranks = global_ranks}},
          make_error(ErrorKind::kSystem, reason));
}

c10::intrusive_ptr<c10d::Backend> create_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
    std::chrono::milliseconds timeout, const std::vector<Choice>& algorithms,
    std::vector<int> host_of, int num_channels, std::size_t slice_nbytes,
    const std::optional<int>& max_ctas, const std::string& group_name,
    const std::vector<std::uint64_t>& global_ranks, const std::string& host,
    const std::string& links, const std::string& executor,
    const c10::intrusive_ptr<c10d::Backend>& relative, bool enable_reconfigure,
    const std::optional<Link>& link, const std::vector<Tuned>& tuned,
    std::chrono::milliseconds heartbeat_timeout, const std::vector<Time>& times,
    const std::string& tuned_by, const py::object& made, const std::string& async_errors,
    bool is_high_priority_stream, const std::string& reproducible, bool check_finite) {
  const auto make_options = [&] {
    auto options = c10::make_intrusive<RingBackend::Options>(timeout);
    options->selection = selection_of(algorithms, std::move(host_of), link.value_or(Link{}), tuned,
                                      tuned_by, reproducible);
    options->check_finite = check_finite;
    options->device.layout = streams::Layout::with(num_channels, slice_nbytes);
    options->device.shares_device = !max_ctas;
    options->device.max_ctas = max_ctas.value_or(options->device.max_ctas);
    options->device.is_high_priority_stream = is_high_priority_stream;
    options->device.executor = streams::executor_named(executor);
    options->device.async_errors = streams::async_errors_named(async_errors);
    options->group_name = group_name;
    options->global_ranks_in_group = global_ranks;
    options->host = host;
    options->links = links;
    options->heartbeat_timeout = heartbeat_timeout;
    options->times = times_of(times);
    options->made = caller_of(made);
    if (const auto* ring = dynamic_cast<const RingBackend*>(relative.get())) {
      options->relative = ring->communicator();
    }
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    options->enable_reconfigure = enable_reconfigure;
#else
    TORCH_CHECK_NOT_IMPLEMENTED(!enable_reconfigure, "ring: enable_reconfigure needs torch 2.14");
#endif
    return options;
  };
  const Members members{.group = group_name, .global_ranks = global_ranks};
  c10::intrusive_ptr<RingBackend::Options> options;
  const auto decline_for = [&](const std::exception_ptr& error) {
    decline_group(store, rank, world_size, timeout, group_name, global_ranks, reason_of(error));
  };
  if (const std::exception_ptr error = error_of([&] { options = make_options(); })) {
    decline_for(error);
    std::rethrow_exception(error);
  }
  try {
    const py::gil_scoped_release release;
    return c10::make_intrusive<RingBackend>(store, rank, world_size, std::move(options));
  } catch (const std::bad_alloc&) {
    const std::exception_ptr error = std::current_exception();
    decline_for(error);
    rethrow_from_call(error, members.name(rank) + ", making a group");
  }
}

// Null: of another kind.
RingBackend* as_ring(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return dynamic_cast<RingBackend*>(backend.get());
}

std::tuple<c10::intrusive_ptr<c10d::Backend>, std::vector<int>, std::string> shrink(
    const c10::intrusive_ptr<c10d::Backend>& backend, const std::vector<std::int64_t>& exclude,
    std::optional<std::chrono::milliseconds> timeout) {
  RingBackend* ring = as_ring(backend);
  TORCH_CHECK_TYPE(ring != nullptr, "ring: shrink: not a backend \"ring\"");
  RingBackend::Shrunk made = ring->shrink_to_living(exclude, /*exact=*/false, timeout, nullptr);
  return {std::move(made.backend), std::move(made.survivors.ranks), std::move(made.survivors.key)};
}

void announce_refusal(const c10::intrusive_ptr<c10d::Backend>& backend, const std::string& reason) {
  if (RingBackend* ring = as_ring(backend)) ring->announce_refusal(reason, 1);
}

void refuse_message(const c10::intrusive_ptr<c10d::Backend>& backend, bool is_send, int peer,
                    int tag, const std::string& reason) {
  using Kind = shm::Message::Kind;
  RingBackend* ring = as_ring(backend);
  if (ring != nullptr) ring->refuse_message(is_send ? Kind::kSend : Kind::kRecv, peer, tag, reason);
}

py::dict to_dict(const shm::DurationsView& durations) {
  py::dict dict;
  dict["counts"] = durations.counts;
  dict["seconds"] = durations.seconds;
  return dict;
}

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
  dict["held_on_device"] = rank.held_on_device;
  py::list times;
  for (const shm::CollectiveTimesView& one : rank.times) {
    py::dict of_one;
    of_one["collective"] = to_string(one.collective);
    of_one["waited"] = to_dict(one.waited);
    of_one["transferred"] = to_dict(one.transferred);
    times.append(of_one);
  }
  dict["times"] = times;
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
  dict["reproducible"] = to_string(group.reproducible);
  py::list size_classes;
  for (const SizeClass& one : group.size_classes) size_classes.append(to_dict(one));
  dict["size_classes"] = size_classes;
  return dict;
}

shm::Group& group_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const RingBackend* ring = as_ring(backend);
  TORCH_CHECK_TYPE(ring != nullptr, "ring: topology: not a backend \"ring\"");
  TORCH_CHECK(ring->communicator(), "ring: topology: this group has no members yet");
  return ring->communicator()->group();
}

// Paths are bytes here: the name of a file need not be UTF-8.
py::bytes dump_flight_record(const std::string& path) {
  FlightRecorder* recorder = flight_recorder();
  if (recorder == nullptr) return "";
  std::string written;
  try {
    const py::gil_scoped_release release;
    written = dump(*recorder, path);
  } catch (const Error& error) {
    PyErr_SetString(PyExc_OSError, error.what());
    throw py::error_already_set();
  }
  return written;
}

}  // namespace

}  // namespace ringcomm

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace ringcomm;
  m.doc() = "ringcomm's compiled half: the backend \"ring\", and plans.";
  py::class_<RingBackend, c10d::Backend, c10::intrusive_ptr<RingBackend>>(
      m, "RingBackend", "The backend \"ring\" of one rank.")
      .def(
          "perform_nocolor_split", [](RingBackend&, const py::object&) {}, py::arg("device"),
          "What torch calls on the ranks outside of a new group: they have no part in it.")
      .def_property_readonly(
          "reproducible", [](const RingBackend& ring) { return to_string(ring.reproducible()); },
          "\"off\", \"ranks\" or \"world\", as of the group's options.");
  m.def("create_backend", &create_backend, py::arg("store"), py::arg("rank"), py::arg("world_size"),
        py::arg("timeout"), py::arg("algorithms"), py::arg("host_of"), py::arg("num_channels"),
        py::arg("slice_nbytes"), py::arg("max_ctas"), py::arg("group_name"),
        py::arg("global_ranks"), py::arg("host") = "", py::arg("links") = "auto",
        py::arg("executor") = "auto", py::arg("relative") = nullptr,
        py::arg("enable_reconfigure") = false, py::arg("link") = py::none(),
        py::arg("tuned") = std::vector<Tuned>{}, py::arg("heartbeat_timeout") = kHeartbeatTimeout,
        py::arg("times") = std::vector<Time>{}, py::arg("tuned_by") = "",
        py::arg("made") = py::none(), py::arg("async_errors") = "exit",
        py::arg("is_high_priority_stream") = true, py::arg("reproducible") = "off",
        py::arg("check_finite") = false,
        "One rank's backend. Blocks until all ranks of the group have joined.");
  m.def("decline_group", &decline_group, py::arg("store"), py::arg("rank"), py::arg("world_size"),
        py::arg("timeout"), py::arg("group_name"), py::arg("global_ranks"), py::arg("reason"),
        "In place of making a backend: the other ranks raise the reason. Returns when they have "
        "read it, or after a few seconds.");
  m.def("shrink", &shrink, py::arg("backend"), py::arg("exclude"), py::arg("timeout"), Unlocked(),
        "A new backend of the ranks that live, their ranks in the old one, and a key of their own. "
        "They all call it.");
  m.def("announce_refusal", &announce_refusal, py::arg("backend"), py::arg("reason"), Unlocked(),
        "In place of this rank's next collective on the host: the others' raises the reason.");
  m.def("refuse_message", &refuse_message, py::arg("backend"), py::arg("is_send"), py::arg("peer"),
        py::arg("tag"), py::arg("reason"), Unlocked(),
        "In place of a message on the host to or from a rank of the group, or from any (-1): the "
        "peer's raises the reason.");
  m.def("start_flight_recorder", &start_flight_recorder, py::arg("capacity"), py::arg("stacks"),
        py::arg("dump_failures"), py::arg("digests"),
        "From now on, groups record their operations; the first call counts.");
  m.def("dump_flight_record", &dump_flight_record, py::arg("path"),
        "Writes the record and returns the path; empty if nothing is recorded.");
  m.def("missing_for_cuda", &missing_for_cuda,
        "Why this build cannot send CUDA tensors, and what to do; empty if it can.");
  m.def("close_all", &close_all, Unlocked(),
        "Closes all groups, as the interpreter is about to end.");
  m.def("begin_shared_memory", &begin_shared_memory,
        "From now on, what this thread makes on the CPU lies in memory that peers can map.");
  m.def("end_shared_memory", &end_shared_memory, "Ends the last beginning of this thread.");
  m.def("add_in_pairs", &add_in_pairs, py::arg("tensors"), Unlocked(),
        "The sum of contiguous CPU tensors of one shape and dtype, added as those of ranks are.");
  m.def("is_shared", &is_shared, py::arg("tensor"),
        "Whether the tensor lies in memory of this process that peers can map.");
  watch_signals();
  py::module_ engines = m.def_submodule("links", "What carries bytes between hosts.");
  engines.def("look_for_ucx_in", &links::look_for_ucx_in, py::arg("place"),
              "Where UCX's libraries are; empty: the system's.");
  engines.def(
      "describe", &describe_links, py::arg("wanted"), Unlocked(),
      "The engine that \"auto\", \"ucx\" or \"gloo\" means here, and why it is not another.");
  bind_fast_path(m);
  bind_plan(m);
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
  bind_streams(m);
#ifdef RINGCOMM_WITH_TESTS
  bind_tests(m);
#endif
  show_spans_to_torch();
}
