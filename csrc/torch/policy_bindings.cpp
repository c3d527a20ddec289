// How the calls of any group go (core/policy.h), for Python.
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/policy.h"
#include "gpu/fused/layout.h"
#include "gpu/streams/device_collectives.h"
#include "torch/bindings.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

py::object or_none(std::uint64_t nbytes) {
  return nbytes == SizeClass::kNoLimit ? py::object(py::none()) : py::int_(nbytes);
}

DType dtype_named(const std::string& text) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (text == name(dtype)) return dtype;
  }
  throw std::invalid_argument("there is no dtype '" + text + "'");
}

ExecutorKind executor_of(const std::string& text) {
  if (text == "shm") return ExecutorKind::kShm;
  if (text == "messages") return ExecutorKind::kMessages;
  if (text == "fused") return ExecutorKind::kFused;
  throw std::invalid_argument("the executor must be shm, messages or fused, got '" + text + "'");
}

// What the ranks of such a group agree on if each of them has the default settings.
GroupFacts facts_of(ExecutorKind executor, std::vector<int> host_of, const Link& link,
                    const std::string& engine, const std::vector<TunedRule>& tuned) {
  GroupFacts facts{.world_size = static_cast<int>(host_of.size())};
  switch (executor) {
    case ExecutorKind::kShm:
      facts.with_call_nbytes = with_call_nbytes(host_of, link, engine);
      if (Placement::of(host_of).num_hosts() == 1) {
        facts.tuned = tuned_for(facts.world_size, tuned);
      }
      facts.host_of = std::move(host_of);
      facts.link = link;
      break;
    case ExecutorKind::kMessages:
      break;
    case ExecutorKind::kFused: {
      const bool spans_hosts = Placement::of(host_of).num_hosts() > 1;
      const std::string why = why_no_kernels(facts.world_size, spans_hosts, fused::kMaxRanks);
      if (!why.empty()) throw std::invalid_argument("calls are not kernels if " + why);
      facts.with_call_nbytes =
          fused::eager_nbytes_for_each(streams::DeviceOptions().eager_nbytes, facts.world_size);
    }
  }
  return facts;
}

py::list size_classes_of(Collective collective, const std::string& dtype,
                         const std::string& executor, std::vector<int> host_of, const Link& link,
                         const std::string& engine, const std::string& algorithm,
                         const std::vector<Tuned>& tuned, bool reproducible) {
  const ExecutorKind kind = executor_of(executor);
  GroupFacts facts = facts_of(kind, std::move(host_of), link, engine, rules_of(tuned));
  facts.reproducible = reproducible;
  if (algorithm != "auto") {
    if (find_algorithm(collective, algorithm) == nullptr) {
      throw std::invalid_argument(std::string(to_string(collective)) + " has no algorithm '" +
                                  algorithm + "'");
    }
    facts.choices[collective] = {algorithm};
  }
  py::list found;
  for (const SizeClass& one : size_classes(Policy(facts), kind, collective, dtype_named(dtype))) {
    found.append(to_dict(one));
  }
  return found;
}

}  // namespace

std::vector<TunedRule> rules_of(const std::vector<Tuned>& tuned) {
  std::vector<TunedRule> rules;
  for (const auto& [world_size, collective, name, most_nbytes] : tuned) {
    const Algorithm* algorithm = find_algorithm(collective, name);
    if (algorithm == nullptr) {
      throw py::value_error("a tuning names an algorithm \"" + name + "\", which " +
                            to_string(collective) + " does not have");
    }
    rules.push_back({most_nbytes, world_size, collective, id_of(*algorithm)});
  }
  return rules;
}

py::dict to_dict(const SizeClass& one) {
  py::dict dict;
  dict["collective"] = to_string(one.collective);
  dict["dtype"] = name(one.dtype);
  dict["most_nbytes"] = or_none(one.most_nbytes);
  dict["path"] = one.path == Path::kWithCall ? "with the call" : "plan";
  dict["algorithm"] = one.algorithm.str();
  dict["zero_copy_from"] = or_none(one.zero_copy_from);
  return dict;
}

void bind_policy(py::module_& plan) {
  plan.def("size_classes", &size_classes_of, py::arg("collective"), py::arg("dtype"),
           py::arg("executor"), py::arg("host_of"), py::arg("link"), py::arg("engine") = "",
           py::arg("algorithm") = "auto", py::arg("tuned") = std::vector<Tuned>{},
           py::arg("reproducible") = false);
}

}  // namespace ringcomm
