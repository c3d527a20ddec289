#include "torch/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/xxh64.h"
#include "reduce/host.h"
#include "torch/device.h"

namespace ringcomm {
namespace {

constexpr std::pair<at::ScalarType, DType> kDTypes[] = {
    {at::kDouble, DType::kFloat64},
    {at::kFloat, DType::kFloat32},
    {at::kHalf, DType::kFloat16},
    {at::kBFloat16, DType::kBFloat16},
    {at::kFloat8_e4m3fn, DType::kFloat8E4M3FN},
    {at::kFloat8_e5m2, DType::kFloat8E5M2},
    {at::kLong, DType::kInt64},
    {at::kInt, DType::kInt32},
    {at::kShort, DType::kInt16},
    {at::kChar, DType::kInt8},
    {at::kByte, DType::kUInt8},
    {at::kBool, DType::kBool},
};
static_assert(std::size(kDTypes) == kNumDTypes);

std::optional<DType> dtype_of(at::ScalarType type) {
  for (const auto& [theirs, ours] : kDTypes) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

// "complex64", also of what only torch knows.
std::string name_of(at::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }

Elements made_of(DType dtype, std::size_t per_element, at::ScalarType type) {
  UsersDType users{.per_element = static_cast<std::uint8_t>(per_element)};
  name_of(type).copy(users.name.data(), users.name.size() - 1);
  return {dtype, users};
}

constexpr bool is_same(c10d::ReduceOp::RedOpType theirs, ReduceOp ours) {
  return static_cast<int>(theirs) == static_cast<int>(ours);
}
static_assert(is_same(c10d::ReduceOp::SUM, ReduceOp::kSum));
static_assert(is_same(c10d::ReduceOp::AVG, ReduceOp::kAvg));
static_assert(is_same(c10d::ReduceOp::PRODUCT, ReduceOp::kProduct));
static_assert(is_same(c10d::ReduceOp::MIN, ReduceOp::kMin));
static_assert(is_same(c10d::ReduceOp::MAX, ReduceOp::kMax));
static_assert(is_same(c10d::ReduceOp::BAND, ReduceOp::kBand));
static_assert(is_same(c10d::ReduceOp::BOR, ReduceOp::kBor));
static_assert(is_same(c10d::ReduceOp::BXOR, ReduceOp::kBxor));
static_assert(is_same(c10d::ReduceOp::PREMUL_SUM, ReduceOp::kPremulSum));

ReduceOp op_of(const c10d::ReduceOp& op, const char* what) {
  const auto ours = static_cast<ReduceOp>(op.op_);
  TORCH_CHECK_VALUE(is_valid(ours), "ring: ", what, ": unknown reduce op ",
                    static_cast<int>(op.op_));
  return ours;
}

// The supplement goes by its older name, which torch 2.11 to 2.15 all know.
double premul_factor(const c10d::ReduceOp& op, const char* what) {
  auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "ring: ", what, ": PREMUL_SUM without a factor");
  if (supplement->tensor_factor.defined()) return supplement->tensor_factor.item<double>();
  return supplement->double_factor;
}

using c10::DispatchKey;
using c10::DispatchKeySet;

// Tensors with these keys have no bytes, or bytes that are not their values.
const DispatchKeySet kNotItsMemory({DispatchKey::Quantized, DispatchKey::ZeroTensor,
                                    DispatchKey::Functionalize, DispatchKey::FuncTorchBatched,
                                    DispatchKey::FuncTorchGradWrapper, DispatchKey::NestedTensor});

void check_memory(const at::Tensor& tensor, const char* what) {
  const DispatchKeySet keys = tensor.key_set() & kNotItsMemory;
  const bool is_wrapped = !keys.empty() || !tensor.has_storage();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_wrapped, "ring: ", what, ": got a tensor whose memory does not hold its values ",
      tensor.key_set(), "; pass an ordinary tensor, such as tensor.dequantize() or tensor.clone()");
  const std::size_t wanted = tensor.numel() == 0 ? 0
                                                 : at::detail::computeStorageNbytes(
                                                       tensor.sizes(), tensor.strides(),
                                                       tensor.itemsize(), tensor.storage_offset());
  TORCH_CHECK_VALUE(tensor.storage().nbytes() >= wanted, "ring: ", what,
                    ": the storage of a tensor has ", tensor.storage().nbytes(),
                    " bytes, and its elements need ", wanted, ". Was it freed, by resize_(0)?");
}

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

bool is_plain(const at::Tensor& tensor) {
  static const DispatchKeySet plain = at::empty({0}).key_set() |
                                      DispatchKeySet(DispatchKey::Negative) |
                                      DispatchKeySet(DispatchKey::Conjugate);
  const c10::impl::LocalDispatchKeySet thread = c10::impl::tls_local_dispatch_key_set();
  // A difference of key sets would keep the tensor's device, and be never empty.
  return plain.isSupersetOf(tensor.key_set()) &&
         c10::default_included_set.isSupersetOf(thread.included_);
}

void check_tensor(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.defined(), "ring: ", what, ": got an undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "ring: ", what, ": got a tensor of layout ",
                    tensor.layout(), "; only dense (strided) tensors can be sent");
  check_memory(tensor, what);
  if (tensor.device().is_cpu()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cuda(), "ring: ", what, ": got a tensor on ",
                              tensor.device(), "; only CPU and CUDA tensors can be sent");
  const std::string missing = missing_for_cuda();
  TORCH_CHECK_NOT_IMPLEMENTED(
      missing.empty(), "ring: ", what, ": got a tensor on ", tensor.device(), ", but ", missing,
      ". Or let another backend serve the device: init_process_group(\"cpu:ring,cuda:nccl\").");
}

void check_output(const at::Tensor& tensor, const char* what) {
  check_tensor(tensor, what);
  const at::MemOverlap overlap = at::has_internal_overlap(tensor);
  const bool shares = overlap == at::MemOverlap::Yes ||
                      (overlap == at::MemOverlap::TooHard && shares_elements({tensor}));
  TORCH_CHECK_VALUE(!shares, "ring: ", what, ": elements of an output tensor share memory (shape ",
                    tensor.sizes(), ", strides ", tensor.strides(),
                    "); pass a tensor that owns its elements");
}

bool lies_flat(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor readable(const at::Tensor& tensor) {
  return lies_flat(tensor) ? tensor : tensor.resolve_conj().resolve_neg().contiguous();
}

Writable::Writable(const at::Tensor& tensor, bool needs_contents) : tensor_(tensor) {
  if (lies_flat(tensor)) {
    flat_ = tensor;
  } else if (needs_contents) {
    flat_ = readable(tensor);
  } else {
    flat_ = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  }
}

void Writable::commit() const {
  if (flat_.is_same(tensor_)) return;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  tensor_.copy_(flat_);
}

Elements elements_to_move(at::ScalarType type) {
  if (const auto dtype = dtype_of(type)) return *dtype;
  return made_of(DType::kUInt8, c10::elementSize(type), type);
}

Elements elements_to_reduce(at::ScalarType type, const c10d::ReduceOp& op, const char* what) {
  const bool is_complex = c10::isComplexType(type);
  at::ScalarType real = type;
  if (is_complex) {
    TORCH_CHECK_VALUE(c10d::isComplexViewAsRealAllowed(op), "ring: ", what,
                      ": op=", name(op_of(op, what)), " is not defined for dtype=", name_of(type));
    real = c10::toRealValueType(type);
  }
  const auto dtype = dtype_of(real);
  TORCH_CHECK_VALUE(dtype.has_value(), "ring: ", what, ": dtype=", name_of(type),
                    " cannot be reduced; it can be moved (all_gather, broadcast, ...)");
  return is_complex ? made_of(*dtype, 2, type) : Elements(*dtype);
}

Reduce make_reduce(const Elements& elements, const c10d::ReduceOp& op, const char* what) {
  Reduce reduce{.dtype = elements.dtype, .op = op_of(op, what), .users = elements.users};
  TORCH_CHECK_VALUE(supports(reduce.dtype, reduce.op), "ring: ", what, ": op=", name(reduce.op),
                    " is not defined for dtype=", name(reduce.dtype));
  if (reduce.op == ReduceOp::kPremulSum) reduce.factor = premul_factor(op, what);
  return reduce;
}

at::Tensor add_in_pairs(const std::vector<at::Tensor>& tensors) {
  constexpr const char* kWhat = "add_in_pairs";
  TORCH_CHECK_VALUE(!tensors.empty(), "ring: ", kWhat, ": got no tensors");
  at::Tensor sum = at::empty_like(tensors[0]);
  std::vector<const void*> inputs;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.is_contiguous() &&
                          tensor.scalar_type() == sum.scalar_type() &&
                          tensor.sizes() == sum.sizes(),
                      "ring: ", kWhat, ": takes contiguous CPU tensors of one shape and dtype");
    inputs.push_back(tensor.const_data_ptr());
  }
  const Elements elements = elements_to_reduce(sum.scalar_type(), c10d::ReduceOp::SUM, kWhat);
  reduce_host({.dtype = elements.dtype, .op = ReduceOp::kSum}, inputs.data(),
              static_cast<int>(inputs.size()), sum.data_ptr(), {}, elements.count(sum));
  return sum;
}

std::uint64_t digest_of(std::span<const at::Tensor> tensors) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  Xxh64 hash;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor flat = readable(tensor);
    hash.add({static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()});
  };
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_sparse()) {
      add(tensor._indices());
      add(tensor._values());
    } else {
      add(tensor);
    }
  }
  return hash.value();
}

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
