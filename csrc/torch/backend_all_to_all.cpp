// All-to-all, of lists of tensors and of rows of one tensor.
#include "torch/arguments.h"
#include "torch/backend.h"

namespace ringcomm {

namespace {

// Where each rank's rows of dimension 0 begin and how many elements they have. No splits: equal.
template <typename Block>
std::vector<Block> split_rows(const at::Tensor& flat, const std::vector<int64_t>& splits,
                              const Elements& elements, int world_size) {
  if (splits.empty()) return pieces<Block>(flat, elements, world_size);
  const std::size_t row = num_rows(flat) == 0 ? 0 : elements.count(flat) / num_rows(flat);
  auto* data = static_cast<std::byte*>(flat.data_ptr());
  std::vector<Block> blocks;
  for (const int64_t rows : splits) {
    blocks.push_back({data, rows * row});
    data += rows * row * element_size(elements.dtype);
  }
  return blocks;
}

void check_splits(const at::Tensor& tensor, const std::vector<int64_t>& splits, int world_size,
                  const char* what, const char* argument) {
  if (splits.empty()) return check_equal_rows(tensor, world_size, what, argument);
  const int64_t rows = num_rows(tensor);
  check_one_per_rank(splits.size(), world_size, what, "split size");
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "ring: ", what, ": a split size of the ", argument, " is ",
                      split);
    sum += split;
  }
  TORCH_CHECK_VALUE(sum == rows, "ring: ", what, ": the split sizes of the ", argument,
                    " add up to ", sum, "; its dimension 0 is ", rows);
}

}  // namespace

RingBackend::WorkPtr RingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& opts) {
  const char* what = "all_to_all";
  check_one_per_rank(inputs.size(), size_, what, "input tensor");
  check_one_per_rank(outputs.size(), size_, what, "output tensor");
  check_list(inputs, what);
  check_outputs(outputs, what);
  check_alike(inputs[0], outputs[0], what);
  const Elements elements = elements_to_move(inputs[0].scalar_type());
  const auto timeout = timeout_or_default(opts.timeout);
  const Writables data = writable(outputs);
  Tensors flat = readable(inputs);
  for (at::Tensor& input : flat) input = apart(input, data, /*in_place=*/false);
  return submit({c10d::OpType::ALLTOALL, "ring:all_to_all", inputs, outputs, memory_of(flat, data),
                 timeout, opts.asyncOp},
                [flat, data, elements, timeout](Collectives& collectives) {
                  collectives.all_to_all(inputs_of(flat, elements), outputs_of(data, elements),
                                         elements, timeout);
                  for (const Writable& output : data) output.commit();
                });
}

RingBackend::WorkPtr RingBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& opts) {
  const bool has_equal_parts = output_splits.empty() && input_splits.empty();
  if (has_equal_parts && runs_sync(opts) && try_all_to_all_sync(output, input)) {
    return done(c10d::OpType::ALLTOALL_BASE, output);
  }
  const char* what = "all_to_all_single";
  check_output(output, what);
  check_tensor(input, what);
  check_alike(input, output, what);
  check_splits(output, output_splits, size_, what, "output tensor");
  check_splits(input, input_splits, size_, what, "input tensor");
  const Elements elements = elements_to_move(input.scalar_type());
  const Writable data(output, false);
  const at::Tensor flat = apart(readable(input), {data}, /*in_place=*/false);
  const auto timeout = timeout_or_default(opts.timeout);
  return submit(
      {c10d::OpType::ALLTOALL_BASE,
       "ring:all_to_all",
       {input},
       {output},
       memory_of(flat, data),
       timeout,
       opts.asyncOp},
      [flat, data, elements, output_splits, input_splits, timeout](Collectives& collectives) {
        const int n = collectives.world_size();
        collectives.all_to_all(split_rows<Input>(flat, input_splits, elements, n),
                               split_rows<Output>(data.flat(), output_splits, elements, n),
                               elements, timeout);
        data.commit();
      });
}

}  // namespace ringcomm
