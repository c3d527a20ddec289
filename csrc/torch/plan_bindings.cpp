#include "torch/plan_bindings.h"

#include <pybind11/functional.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plan/barrier.h"
#include "plan/chain.h"
#include "plan/collective.h"
#include "plan/direct.h"
#include "plan/hierarchical.h"
#include "plan/matching.h"
#include "plan/network.h"
#include "plan/plan.h"
#include "plan/ring.h"
#include "plan/rooted.h"
#include "plan/simulate.h"
#include "plan/verify.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

void bind_types(py::module_& m) {
  py::class_<Transfer>(m, "Transfer")
      .def(py::init([](int peer, int first_chunk, int num_chunks, bool reduce) {
             return Transfer{peer, first_chunk, num_chunks, reduce};
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
      .def(py::init([](std::vector<Transfer> sends, std::vector<Transfer> recvs) {
             return Step{std::move(sends), std::move(recvs)};
           }),
           py::arg("sends") = std::vector<Transfer>(), py::arg("recvs") = std::vector<Transfer>())
      .def_readonly("sends", &Step::sends)
      .def_readonly("recvs", &Step::recvs)
      .def("__repr__",
           [](const Step& self) {
             return py::str("Step(sends={}, recvs={})").format(self.sends, self.recvs);
           })
      .def(py::self == py::self);

  py::class_<Plan>(m, "Plan")
      .def(py::init([](int num_chunks, std::vector<Step> steps) {
             return Plan{num_chunks, std::move(steps)};
           }),
           py::arg("num_chunks"), py::arg("steps"))
      .def_readonly("num_chunks", &Plan::num_chunks)
      .def_readonly("steps", &Plan::steps)
      .def("__repr__",
           [](const Plan& self) {
             return py::str("Plan(num_chunks={}, steps={})").format(self.num_chunks, self.steps);
           })
      .def(py::self == py::self);
}

void bind_generators(py::module_& m) {
  const auto without_root = [&](const char* name, Plan (*generator)(int, int)) {
    m.def(name, generator, py::arg("rank"), py::arg("world_size"));
  };
  const auto with_root = [&](const char* name, Plan (*generator)(int, int, int)) {
    m.def(name, generator, py::arg("rank"), py::arg("world_size"), py::arg("root"));
  };
  const auto two_level = [&](const char* name, Plan (*generator)(int, int, int)) {
    m.def(name, generator, py::arg("rank"), py::arg("world_size"), py::arg("ranks_per_host"));
  };
  without_root("ring_reduce_scatter", ring_reduce_scatter);
  without_root("ring_all_gather", ring_all_gather);
  without_root("ring_all_reduce", ring_all_reduce);
  without_root("direct_reduce_scatter", direct_reduce_scatter);
  without_root("direct_all_gather", direct_all_gather);
  without_root("direct_all_reduce", direct_all_reduce);
  without_root("one_shot_all_reduce", one_shot_all_reduce);
  without_root("all_to_all", all_to_all);
  without_root("barrier", barrier);
  two_level("hierarchical_reduce_scatter", hierarchical_reduce_scatter);
  two_level("hierarchical_all_gather", hierarchical_all_gather);
  two_level("hierarchical_all_reduce", hierarchical_all_reduce);
  with_root("direct_broadcast", direct_broadcast);
  with_root("direct_reduce", direct_reduce);
  with_root("chain_broadcast", chain_broadcast);
  with_root("chain_reduce", chain_reduce);
  with_root("gather", gather);
  with_root("scatter", scatter);
}

void bind_verify(py::module_& m) {
  py::register_exception<PlanError>(m, "PlanError", PyExc_RuntimeError);
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
  m.def("verify", verify, py::arg("collective"), py::arg("plans"), py::arg("root") = 0,
        py::call_guard<py::gil_scoped_release>());
  m.def("verify_chunks", verify_chunks, py::arg("collective"), py::arg("world_size"),
        py::arg("plan_of"), py::arg("chunks"), py::arg("root") = 0);
}

void bind_simulator(py::module_& m) {
  py::class_<Link>(m, "Link").def(py::init([](double latency, double overhead, double bandwidth) {
                                    return Link{latency, overhead, bandwidth};
                                  }),
                                  py::arg("latency"), py::arg("overhead"), py::arg("bandwidth"));
  py::class_<Network>(m, "Network")
      .def(py::init([](int ranks_per_host, int nics_per_host, Link inside, Link across,
                       double reduce_bandwidth) {
             return Network{ranks_per_host, nics_per_host, inside, across, reduce_bandwidth};
           }),
           py::arg("ranks_per_host"), py::arg("nics_per_host"), py::arg("inside"),
           py::arg("across"), py::arg("reduce_bandwidth"));
  py::class_<Simulation>(m, "Simulation")
      .def_readonly("seconds", &Simulation::seconds)
      .def_readonly("num_messages", &Simulation::num_messages)
      .def_readonly("ranks_simulated", &Simulation::ranks_simulated);
  py::class_<Simulator>(m, "Simulator")
      .def(
          py::init<int, const std::function<Plan(int)>&, const Network&, const std::vector<int>&>(),
          py::arg("world_size"), py::arg("plan_of"), py::arg("network"), py::arg("compared"))
      .def("run", &Simulator::run, py::arg("nbytes"), py::arg("slice_nbytes"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_plan(py::module_& module) {
  py::module_ m = module.def_submodule("plan", "Plans, their generators, proof and simulation.");
  bind_types(m);
  bind_generators(m);
  bind_verify(m);
  bind_simulator(m);
}

}  // namespace ringcomm
