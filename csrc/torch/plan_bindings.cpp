// Python's view of plans, of the programs that executors make of them, and of the calls that these
// take on device streams: ringcomm._C.plan and ringcomm._C.streams.
#include <pybind11/functional.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/streams/cost.h"
#include "gpu/streams/device_collectives.h"
#include "plan/algorithms.h"
#include "plan/bitwise.h"
#include "plan/collective.h"
#include "plan/network.h"
#include "plan/plan.h"
#include "plan/program.h"
#include "plan/simulate.h"
#include "plan/verify.h"
#include "torch/bindings.h"
#include "torch/python.h"
#include "torch/tensors.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

// An int, of what Python takes for an integer. Throws TypeError for what is none, and ValueError
// for one that is too large.
int integer(const std::string& name, const py::handle& value) {
  if (!PyIndex_Check(value.ptr())) {
    throw py::type_error(name + " must be an integer, got " + std::string(py::repr(value)));
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const long long wide = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  using Limits = std::numeric_limits<int>;
  if (overflow != 0 || wide < Limits::min() || wide > Limits::max()) {
    throw py::value_error(name + " must be between " + std::to_string(Limits::min()) + " and " +
                          std::to_string(Limits::max()) + ", got " +
                          (overflow != 0 ? "one of more than 64 bits" : std::to_string(wide)));
  }
  return static_cast<int>(wide);
}

// What an iterable holds. Throws TypeError for something else, without what may be a million
// others.
template <typename T>
std::vector<T> all_of(const std::string& name, const std::string& type, const py::handle& values) {
  const auto iterator = py::reinterpret_steal<py::object>(PyObject_GetIter(values.ptr()));
  if (!iterator) {
    PyErr_Clear();
    throw py::type_error(name + " must be a sequence of " + type + ", got " +
                         std::string(py::repr(py::type::of(values))));
  }
  std::vector<T> all;
  for (const py::handle value : py::reinterpret_borrow<py::iterator>(iterator)) {
    if (!py::isinstance<T>(value)) {
      throw py::type_error(name + "[" + std::to_string(all.size()) + "] must be a " + type +
                           ", got " + std::string(py::repr(py::type::of(value))));
    }
    all.push_back(value.cast<const T&>());
  }
  return all;
}

void bind_types(py::module_& m) {
  py::class_<Transfer>(m, "Transfer")
      .def(py::init([](const py::object& peer, const py::object& first_chunk,
                       const py::object& num_chunks, bool reduce) {
             return Transfer{integer("peer", peer), integer("first_chunk", first_chunk),
                             integer("num_chunks", num_chunks), reduce};
           }),
           py::arg("peer"), py::arg("first_chunk"), py::arg("num_chunks") = 1,
           py::arg("reduce") = false)
      .def_readonly("peer", &Transfer::peer)
      .def_readonly("first_chunk", &Transfer::first_chunk)
      .def_readonly("num_chunks", &Transfer::num_chunks)
      .def_readonly("reduce", &Transfer::reduce)
      .def("__repr__",
           [](const Transfer& self) {
             return py::str("Transfer(peer={}, first_chunk={}, num_chunks={}, reduce={})")
                 .format(self.peer, self.first_chunk, self.num_chunks, self.reduce);
           })
      .def(py::self == py::self);

  py::class_<Step>(m, "Step")
      .def(py::init([](const py::object& sends, const py::object& recvs) {
             return Step{all_of<Transfer>("sends", "Transfer", sends),
                         all_of<Transfer>("recvs", "Transfer", recvs)};
           }),
           py::arg("sends") = py::tuple(), py::arg("recvs") = py::tuple())
      .def_readonly("sends", &Step::sends)
      .def_readonly("recvs", &Step::recvs)
      .def("__repr__",
           [](const Step& self) {
             return py::str("Step(sends={}, recvs={})").format(self.sends, self.recvs);
           })
      .def(py::self == py::self);

  py::class_<Plan>(m, "Plan")
      .def(py::init([](const py::object& num_chunks, const py::object& steps) {
             return Plan{integer("num_chunks", num_chunks), all_of<Step>("steps", "Step", steps)};
           }),
           py::arg("num_chunks"), py::arg("steps"))
      .def_readonly("num_chunks", &Plan::num_chunks)
      .def_readonly("steps", &Plan::steps)
      .def_property_readonly("num_steps", [](const Plan& self) { return self.steps.size(); })
      .def_property_readonly("num_transfers",
                             [](const Plan& self) {
                               std::size_t sum = 0;
                               for (const Step& step : self.steps) {
                                 sum += step.sends.size() + step.recvs.size();
                               }
                               return sum;
                             })
      .def("__repr__",
           [](const Plan& self) {
             return py::str("Plan(num_chunks={}, steps={})").format(self.num_chunks, self.steps);
           })
      .def(py::self == py::self);
}

const Algorithm& named(Collective collective, const std::string& name) {
  if (const Algorithm* found = find_algorithm(collective, name)) return *found;
  throw std::invalid_argument(std::string(to_string(collective)) + " has no algorithm '" + name +
                              "'; algorithms() lists those that there are");
}

void bind_algorithms(py::module_& m) {
  py::class_<Setting>(m, "Setting")
      .def(py::init([](int world_size, int root, std::vector<int> host_of) {
             return Setting{world_size, root, std::move(host_of)};
           }),
           py::arg("world_size"), py::arg("root") = 0, py::arg("host_of") = std::vector<int>());
  m.def("algorithms", [] {
    py::list lines;
    for (const Algorithm& algorithm : algorithms()) {
      lines.append(py::make_tuple(algorithm.collective, algorithm.name, algorithm.about,
                                  algorithm.two_level, algorithm.needs_all_counts));
    }
    return lines;
  });
  m.def(
      "generate",
      [](Collective collective, const std::string& name, int rank, const Setting& setting) {
        return named(collective, name).generate(rank, setting);
      },
      py::arg("collective"), py::arg("name"), py::arg("rank"), py::arg("setting"));
  m.def(
      "phases",
      [](Collective collective, const std::string& name, const Setting& setting) {
        const Algorithm& algorithm = named(collective, name);
        std::vector<std::pair<std::string_view, int>> result;
        if (!algorithm.phases) return result;
        for (const Phase& phase : algorithm.phases(setting)) {
          result.emplace_back(phase.name, phase.num_steps);
        }
        return result;
      },
      py::arg("collective"), py::arg("name"), py::arg("setting"));
}

PyObject* plan_error = nullptr;

void bind_verify(py::module_& m) {
  // Never destroyed, as calls may fail until the process ends.
  plan_error =
      py::register_exception<PlanError>(m, "PlanError", PyExc_RuntimeError).inc_ref().ptr();
  py::enum_<Collective>(m, "Collective")
      .value("ALL_REDUCE", Collective::kAllReduce)
      .value("REDUCE_SCATTER", Collective::kReduceScatter)
      .value("REDUCE", Collective::kReduce)
      .value("ALL_GATHER", Collective::kAllGather)
      .value("GATHER", Collective::kGather)
      .value("SCATTER", Collective::kScatter)
      .value("BROADCAST", Collective::kBroadcast)
      .value("ALL_TO_ALL", Collective::kAllToAll)
      .value("BARRIER", Collective::kBarrier);
  m.def("verify", verify, py::arg("collective"), py::arg("plans"), py::arg("root") = 0, Unlocked());
  m.def("bitwise_difference", bitwise_difference, py::arg("collective"), py::arg("plans"),
        py::arg("root") = 0, Unlocked());
  py::enum_<Rounding>(m, "Rounding")
      .value("EVERY_ADDITION", Rounding::kEveryAddition)
      .value("EVERY_STEP", Rounding::kEveryStep);
  m.def("association_difference", association_difference, py::arg("collective"), py::arg("plans"),
        py::arg("rounding"), py::arg("root") = 0, Unlocked());
  py::class_<SumTable>(m, "SumTable")
      .def_readonly("sums", &SumTable::sums)
      .def_readonly("of_chunks", &SumTable::of_chunks);
  m.def("sums_of_chunks", sums_of_chunks, py::arg("collective"), py::arg("plans"),
        py::arg("rank") = std::nullopt, py::arg("root") = 0, Unlocked());
}

void bind_simulator(py::module_& m) {
  py::class_<Link>(m, "Link").def(py::init([](double latency, double overhead, double bandwidth) {
                                    return Link{latency, overhead, bandwidth};
                                  }),
                                  py::arg("latency"), py::arg("overhead"), py::arg("bandwidth"));
  py::class_<Network>(m, "Network")
      .def(py::init([](int ranks_per_host, int nics_per_host, Link inside, Link link,
                       double reduce_bandwidth, double egress, double ingress) {
             return Network{ranks_per_host,   nics_per_host, inside, link,
                            reduce_bandwidth, egress,        ingress};
           }),
           py::arg("ranks_per_host"), py::arg("nics_per_host"), py::arg("inside"),
           py::arg("across"), py::arg("reduce_bandwidth"), py::arg("egress"), py::arg("ingress"));
  py::class_<Simulation>(m, "Simulation")
      .def_readonly("seconds", &Simulation::seconds)
      .def_readonly("num_messages", &Simulation::num_messages)
      .def_readonly("ranks_simulated", &Simulation::ranks_simulated);
  py::class_<Simulator>(m, "Simulator")
      .def(
          py::init<int, const std::function<Plan(int)>&, const Network&, const std::vector<int>&>(),
          py::arg("world_size"), py::arg("plan_of"), py::arg("network"), py::arg("compared"))
      .def("run", &Simulator::run, py::arg("nbytes"), py::arg("slice_nbytes"), Unlocked());
}

template <typename Peers>
std::vector<int> ranks_of(const Peers& peers) {
  std::vector<int> ranks;
  for (const auto& each : peers) ranks.push_back(each.peer);
  return ranks;
}

// The other end of each message: rank, and its action.
template <typename Peers>
std::vector<std::pair<int, int>> actions_of(const Peers& peers) {
  std::vector<std::pair<int, int>> actions;
  for (const auto& each : peers) actions.emplace_back(each.peer, each.action);
  return actions;
}

void bind_program(py::module_& m) {
  py::enum_<Location::Kind>(m, "LocationKind")
      .value("NOWHERE", Location::kNowhere)
      .value("INPUT", Location::kInput)
      .value("OUTPUT", Location::kOutput)
      .value("SCRATCH", Location::kScratch);
  py::class_<Location>(m, "Location")
      .def_readonly("kind", &Location::kind)
      .def_readonly("index", &Location::index);
  py::class_<Action>(m, "Action")
      .def_readonly("chunk", &Action::chunk)
      .def_property_readonly("sources", [](const Action& a) { return ranks_of(a.from); })
      .def_property_readonly("readers", [](const Action& a) { return ranks_of(a.to); })
      .def_property_readonly("published_by", [](const Action& a) { return actions_of(a.from); })
      .def_property_readonly("taken_by", [](const Action& a) { return actions_of(a.to); })
      .def_readonly("reduce", &Action::reduce)
      .def_readonly("own", &Action::own)
      .def_readonly("store", &Action::store)
      .def_readonly("finish", &Action::finish)
      .def_readonly("slot", &Action::slot)
      .def_readonly("replaces", &Action::replaces)
      .def_readonly("recv_step", &Action::recv_step)
      .def_readonly("send_step", &Action::send_step);
  py::class_<Program>(m, "CompiledProgram")
      .def_readonly("num_chunks", &Program::num_chunks)
      .def_readonly("num_steps", &Program::num_steps)
      .def_readonly("num_slots", &Program::num_slots)
      .def_readonly("num_scratch", &Program::num_scratch)
      .def_readonly("actions", &Program::actions);
  m.def(
      "compile",
      [](Collective collective, const std::vector<Plan>& plans, int rank, int root) {
        const auto world_size = static_cast<int>(plans.size());
        check_rank(rank, world_size);
        check_bounds(Contract(collective, world_size, plans[0].num_chunks, root), plans);
        return compile(collective, world_size, [&](int r) { return plans[r]; }, rank, root);
      },
      py::arg("collective"), py::arg("plans"), py::arg("rank"), py::arg("root") = 0, Unlocked());
}

using streams::Calls;
using streams::Layout;

void bind_layout(py::module_& m) {
  const Layout layout;
  m.def(
      "describe_executor",
      [](const std::string& name) {
        return with_torch_errors([&] {
          return streams::describe(streams::executor_named(name), streams::kAutoIsFused);
        });
      },
      py::arg("name"));
  py::class_<Layout>(m, "Layout")
      .def(py::init(&Layout::with), py::arg("num_channels") = layout.num_channels,
           py::arg("slice_nbytes") = layout.slice_nbytes)
      .def_readonly("num_channels", &Layout::num_channels)
      .def_readonly("slices_in_flight", &Layout::slices_in_flight)
      .def_readonly("slice_nbytes", &Layout::slice_nbytes)
      .def_readonly("min_slice_nbytes", &Layout::min_slice_nbytes);
}

void bind_calls(py::module_& m) {
  py::class_<Calls>(m, "Calls")
      .def_readonly("groups", &Calls::groups)
      .def_readonly("launches", &Calls::launches)
      .def_readonly("sends", &Calls::sends)
      .def_readonly("recvs", &Calls::recvs)
      .def_readonly("reductions", &Calls::reductions)
      .def_readonly("copies", &Calls::copies)
      .def_readonly("records", &Calls::records)
      .def_readonly("waits", &Calls::waits)
      .def_property_readonly("host_seconds", &streams::host_seconds);
}

Calls count_calls(Collective collective, const std::string& algorithm, int world_size, int rank,
                  int root, std::size_t nbytes, at::ScalarType dtype, const Layout& layout) {
  const DType core = elements_to_move(dtype).dtype;
  return streams::count_calls({.collective = collective,
                               .algorithm = algorithm,
                               .world_size = world_size,
                               .rank = rank,
                               .root = root,
                               .count = nbytes / element_size(core),
                               .dtype = core},
                              layout);
}

}  // namespace

void bind_plan(py::module_& module) {
  py::module_ m = module.def_submodule("plan", "Plans, their algorithms, proof and simulation.");
  bind_types(m);
  bind_verify(m);
  bind_algorithms(m);
  bind_simulator(m);
  bind_policy(m);
  bind_program(m);
}

PyObject* plan_error_type() { return plan_error; }

void bind_streams(py::module_& module) {
  py::module_ m = module.def_submodule("streams", "Collectives on device streams: what they call.");
  bind_layout(m);
  bind_calls(m);
  m.def("count_calls", &count_calls, py::arg("collective"), py::arg("algorithm"),
        py::arg("world_size"), py::arg("rank"), py::arg("root"), py::arg("nbytes"),
        py::arg("dtype"), py::arg("layout"));
}

}  // namespace ringcomm
