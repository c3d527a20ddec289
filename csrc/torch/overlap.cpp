#include "torch/overlap.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

namespace ringcomm {
namespace {

using Tensors = std::vector<at::Tensor>;

// From the first byte of a tensor to behind its last; strides are never negative.
struct Extent {
  std::uintptr_t begin, end;
  const at::Tensor* tensor;
};

Extent extent_of(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  if (tensor.numel() == 0) return {begin, begin, &tensor};
  std::uintptr_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    elements += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return {begin, begin + elements * tensor.element_size(), &tensor};
}

// Whether every stride leads past all that smaller strides reach, as in slices of a larger tensor.
bool is_nested(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::ranges::sort(steps);
  int64_t reached = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reached) return false;
    reached += stride * (size - 1);
  }
  return true;
}

// Marks the elements of all, and counts the marks.
bool share_by_marks(std::span<const Extent> extents, std::uintptr_t end) {
  const std::uintptr_t begin = extents.front().begin;
  const std::uintptr_t nbytes = extents.front().tensor->element_size();
  at::Tensor marks = at::zeros({static_cast<int64_t>((end - begin) / nbytes)}, at::kByte);
  int64_t elements = 0;
  for (const Extent& extent : extents) {
    const at::Tensor& tensor = *extent.tensor;
    const std::uintptr_t offset = extent.begin - begin;
    if (tensor.element_size() != static_cast<int64_t>(nbytes) || offset % nbytes != 0) return true;
    marks.as_strided(tensor.sizes(), tensor.strides(), static_cast<int64_t>(offset / nbytes))
        .fill_(1);
    elements += tensor.numel();
  }
  return marks.count_nonzero().item<int64_t>() < elements;
}

}  // namespace

bool shares_elements(const Tensors& tensors) {
  std::vector<Extent> extents;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) extents.push_back(extent_of(tensor));
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  for (std::size_t first = 0; first < extents.size();) {
    std::uintptr_t end = extents[first].end;
    std::size_t next = first + 1;
    for (; next < extents.size() && extents[next].begin < end; ++next) {
      end = std::max(end, extents[next].end);
    }
    const bool alone = next == first + 1;
    if (!(alone && is_nested(*extents[first].tensor)) &&
        share_by_marks(std::span(extents).subspan(first, next - first), end)) {
      return true;
    }
    first = next;
  }
  return false;
}

void check_apart(const Tensors& outputs, const char* what) {
  TORCH_CHECK_VALUE(!shares_elements(outputs), "ring: ", what,
                    ": output tensors share memory; pass tensors that own their elements");
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const Extent x = extent_of(a), y = extent_of(b);
  return x.begin < y.end && y.begin < x.end;
}

Tensors apart_from_others(const Tensors& inputs, const std::vector<Tensors>& outputs) {
  Tensors result = inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto reaches_input = [&](const at::Tensor& output) { return overlap(inputs[i], output); };
    for (std::size_t other = 0; other < outputs.size(); ++other) {
      if (other == i || !std::ranges::any_of(outputs[other], reaches_input)) continue;
      result[i] = inputs[i].clone();
      break;
    }
  }
  return result;
}

}  // namespace ringcomm
