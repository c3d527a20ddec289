// What torch.compile calls in a graph in place of a function of Python.
//
// torch's own functional collectives are two operators, one that begins and one that waits, so that
// Inductor can move them apart. A call whose result is needed at once costs less as one operator.
#include <torch/library.h>

#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace ringcomm {
namespace {

void all_reduce(at::Tensor& tensor, const std::string& group_name) {
  const auto group = c10d::resolve_process_group(group_name);
  const auto backend = group->getBackend(tensor.device().type());
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  backend->allreduce(tensors, options)->wait();
}

// A trace has no peers.
void all_reduce_in_trace(at::Tensor&, const std::string&) {}

}  // namespace
}  // namespace ringcomm

TORCH_LIBRARY(ringcomm, library) {
  library.def("all_reduce_(Tensor(a!) tensor, str group_name) -> ()");
}

TORCH_LIBRARY_IMPL(ringcomm, CPU, library) { library.impl("all_reduce_", &ringcomm::all_reduce); }

TORCH_LIBRARY_IMPL(ringcomm, Meta, library) {
  library.impl("all_reduce_", &ringcomm::all_reduce_in_trace);
}
