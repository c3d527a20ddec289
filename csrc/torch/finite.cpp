#include "torch/finite.h"

#include <algorithm>
#include <string>
#include <vector>

namespace ringcomm {
namespace {

// The first element whose exponent is all ones, or the number of elements.
template <typename Word>
std::int64_t first_not_finite(const void* data, std::int64_t count, Word exponent) {
  constexpr std::int64_t kBlock = 4096;  // in which the loop has no branch
  const auto* words = static_cast<const Word*>(data);
  const auto is_bad = [=](Word word) { return (word & exponent) == exponent; };
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    Word bad = 0;
    for (std::int64_t i = begin; i < end; ++i) bad |= is_bad(words[i]);
    if (bad != 0) return std::find_if(words + begin, words + end, is_bad) - words;
  }
  return count;
}

std::int64_t first_not_finite(const at::Tensor& flat) {
  const void* data = flat.const_data_ptr();
  switch (flat.scalar_type()) {
    case at::kDouble:
      return first_not_finite<std::uint64_t>(data, flat.numel(), 0x7ff0'0000'0000'0000);
    case at::kFloat:
      return first_not_finite<std::uint32_t>(data, flat.numel(), 0x7f80'0000);
    case at::kHalf:
      return first_not_finite<std::uint16_t>(data, flat.numel(), 0x7c00);
    case at::kBFloat16:
      return first_not_finite<std::uint16_t>(data, flat.numel(), 0x7f80);
    default:  // the formats of 8 bits differ, and smaller ones have numbers alone
      return at::isFloat8Type(flat.scalar_type()) ? first_not_finite(flat.to(at::kFloat))
                                                  : flat.numel();
  }
}

// The place of the element in the shape.
std::vector<std::int64_t> index_of(std::int64_t element, at::IntArrayRef sizes) {
  std::vector<std::int64_t> index(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0; element /= sizes[i]) index[i] = element % sizes[i];
  return index;
}

bool has_floats(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.numel() > 0 &&
         (tensor.is_floating_point() || tensor.is_complex());
}

// Its numbers in logical order: of a complex one its parts, of a sparse one those that it has.
at::Tensor numbers_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.is_sparse() ? tensor._values() : tensor;
  return (dense.is_complex() ? at::view_as_real(dense.resolve_conj()) : dense).contiguous();
}

}  // namespace

void check_finite(std::span<const at::Tensor> tensors, const char* what, std::uint64_t sequence) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!has_floats(tensor)) continue;
    const at::Tensor numbers = numbers_of(tensor);
    const std::int64_t found = first_not_finite(numbers);
    if (found == numbers.numel()) continue;
    const std::int64_t element = tensor.is_complex() ? found / 2 : found;
    const auto sizes = tensor.is_sparse() ? tensor._values().sizes() : tensor.sizes();
    const std::string number = sequence > 0 ? " #" + std::to_string(sequence) : "";
    const std::string which = tensors.size() > 1 ? "tensor " + std::to_string(i) : "the tensor";
    TORCH_CHECK_VALUE(false, "ring: ", what, number, ": ", which, " of shape ", tensor.sizes(),
                      " has ", numbers.flatten()[found].to(at::kDouble).item<double>(),
                      " at index ", at::IntArrayRef(index_of(element, sizes)),
                      "; check_finite of the group makes that an error");
  }
}

}  // namespace ringcomm
