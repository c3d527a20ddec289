#include "torch/program_bindings.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "plan/arguments.h"
#include "plan/bounds.h"
#include "plan/collective.h"
#include "plan/program.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

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

}  // namespace

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
      py::arg("collective"), py::arg("plans"), py::arg("rank"), py::arg("root") = 0,
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace ringcomm
