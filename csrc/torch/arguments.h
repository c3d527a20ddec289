// What the collectives of the backend have in common: checks of c10d's arguments, each a ValueError
// that says what was passed and what is wanted, and lists of tensors as the communicator wants
// them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "torch/backend.h"
#include "torch/tensors.h"

namespace ringcomm {

using Tensors = RingBackend::Tensors;
using TensorLists = RingBackend::TensorLists;
using Writables = std::vector<Writable>;

// The one tensor, or the one list of tensors, that c10d's plural arguments hold.
template <typename T>
const T& single(const std::vector<T>& items, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(items.size() == 1, "ring: ", what, ": takes one ", argument, " per rank, got ",
                    items.size());
  return items[0];
}

// Null tensors stand for no tensor.
inline const at::Tensor& first(const Tensors& tensors) {
  static const at::Tensor none;
  return tensors.empty() ? none : tensors[0];
}

inline void check_one_per_rank(std::size_t number, int world_size, const char* what,
                               const char* argument) {
  TORCH_CHECK_VALUE(number == static_cast<std::size_t>(world_size), "ring: ", what, ": takes ",
                    world_size, " ", argument, "s, one per rank, got ", number);
}

inline void check_root(int64_t root, int world_size, const char* what) {
  TORCH_CHECK_VALUE(root >= 0 && root < world_size, "ring: ", what, ": the root is rank ", root,
                    "; it must be 0 to ", world_size - 1);
}

inline void check_same_device(const at::Tensor& a, const at::Tensor& b, const char* what) {
  TORCH_CHECK_VALUE(a.device() == b.device(), "ring: ", what, ": got tensors on ", a.device(),
                    " and on ", b.device(), "; all must be on one device");
}

// Where this rank is among how many.
struct Place {
  int rank, world_size;
};

// The tensors of gather and scatter, one per rank, that only the root has. Empty on other ranks.
inline Tensors list_of_root(const TensorLists& lists, Place place, int64_t root, const char* what,
                            const std::string& argument) {
  if (place.rank != root) {
    TORCH_CHECK_VALUE(lists.empty() || (lists.size() == 1 && lists[0].empty()), "ring: ", what,
                      ": got ", argument, " tensors on rank ", place.rank,
                      ", but only the root, rank ", root, ", has ", argument, "s");
    return {};
  }
  const Tensors& list = single(lists, what, (argument + " list").c_str());
  check_one_per_rank(list.size(), place.world_size, what, (argument + " tensor").c_str());
  return list;
}

// One dtype, one device.
inline void check_alike(const at::Tensor& input, const at::Tensor& output, const char* what) {
  check_same_device(input, output, what);
  TORCH_CHECK_VALUE(input.scalar_type() == output.scalar_type(), "ring: ", what,
                    ": the input has dtype=", input.scalar_type(),
                    " and the output dtype=", output.scalar_type());
}

inline void check_numel(int64_t numel, int64_t wanted, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(numel == wanted, "ring: ", what, ": the ", argument, " has ", numel,
                    " elements; it must have ", wanted);
}

// A tensor without dimensions is one row.
inline int64_t num_rows(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
}

// Checks a tensor that is cut along dimension 0 into as many equal parts as there are ranks.
inline void check_equal_rows(const at::Tensor& tensor, int world_size, const char* what,
                             const char* argument) {
  const int64_t rows = num_rows(tensor);
  TORCH_CHECK_VALUE(rows % world_size == 0, "ring: ", what, ": without split sizes, the ", argument,
                    "'s dimension 0, ", rows, ", must be divisible by the world size, ",
                    world_size);
}

inline void check_list(const Tensors& tensors, const char* what) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor(tensor, what);
    check_alike(tensors[0], tensor, what);
  }
}

inline void check_outputs(const Tensors& tensors, const char* what) {
  check_list(tensors, what);
  for (const at::Tensor& tensor : tensors) check_output(tensor, what);
  check_apart(tensors, what);
}

inline Writables writable(const Tensors& tensors) {
  Writables result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) result.emplace_back(tensor, false);
  return result;
}

inline Tensors readable(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) result.push_back(readable(tensor));
  return result;
}

// A flat input, copied if outputs are written where it lies. in_place: it lies exactly where the
// collective puts what it is part of, and may stay.
inline at::Tensor apart(const at::Tensor& flat, const Writables& outputs, bool in_place) {
  const auto reaches_input = [&](const Writable& output) { return overlap(flat, output.flat()); };
  const bool stays = in_place || std::ranges::none_of(outputs, reaches_input);
  return stays ? flat : flat.clone();
}

inline bool same_place(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr();
}
// Whether `piece` is the one of this index of the equal pieces of `whole`.
inline bool is_piece(const at::Tensor& whole, const at::Tensor& piece, int index) {
  return static_cast<const std::byte*>(whole.const_data_ptr()) + index * piece.nbytes() ==
         piece.const_data_ptr();
}

// Which input may lie in an output: exactly where the collective puts what it is part of.
enum class InPlace {
  kAlways,         // the input is the output
  kInputIsPiece,   // this rank's piece of the output, or its own output of a list
  kOutputIsPiece,  // the output is this rank's piece of the input, or its own input of a list
  kNever,
};

inline bool lies_in_place(InPlace in_place, const at::Tensor& input, const at::Tensor& output,
                          int rank) {
  if (in_place == InPlace::kInputIsPiece) return is_piece(output, input, rank);
  if (in_place == InPlace::kOutputIsPiece) return is_piece(input, output, rank);
  return in_place == InPlace::kAlways;
}

// Whether a tensor can be used where it lies, by shared memory.
inline bool can_stay(const at::Tensor& tensor) { return tensor.is_cpu() && lies_flat(tensor); }

// The inputs of a call, flat and apart from its outputs, unless the own one lies in place.
inline Tensors readable_apart(const Tensors& inputs, const Writables& outputs, InPlace in_place,
                              int rank) {
  const bool one_input = in_place == InPlace::kInputIsPiece;
  const std::size_t own_input = one_input ? 0 : rank;
  const std::size_t own_output = one_input ? rank : 0;
  Tensors result = readable(inputs);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const bool may_stay =
        in_place != InPlace::kNever && i == own_input && own_output < outputs.size();
    result[i] =
        apart(result[i], outputs, may_stay && same_place(result[i], outputs[own_output].flat()));
  }
  return result;
}

// Checks what concerns more than one of the calls that are coalesced, and returns their inputs as
// apart_from_others does.
inline Tensors check_coalesced(const Tensors& inputs, const TensorLists& outputs,
                               const char* what) {
  Tensors all;
  for (const at::Tensor& input : inputs) check_tensor(input, what);
  for (const Tensors& list : outputs) {
    for (const at::Tensor& output : list) check_output(output, what);
    all.insert(all.end(), list.begin(), list.end());
  }
  check_apart(all, what);
  return apart_from_others(inputs, outputs);
}

inline std::vector<Input> inputs_of(const Tensors& flat, const Elements& elements) {
  std::vector<Input> inputs;
  for (const at::Tensor& tensor : flat) {
    inputs.push_back({tensor.const_data_ptr(), elements.count(tensor)});
  }
  return inputs;
}

inline std::vector<Output> outputs_of(const Writables& writables, const Elements& elements) {
  std::vector<Output> outputs;
  for (const Writable& writable : writables) {
    outputs.push_back({writable.flat().data_ptr(), elements.count(writable.flat())});
  }
  return outputs;
}

// What an operation reads and writes, for Operation::memory.
inline void add_memory(Tensors& memory, const at::Tensor& tensor) { memory.push_back(tensor); }
inline void add_memory(Tensors& memory, const Writable& data) { memory.push_back(data.flat()); }
template <typename Item>
void add_memory(Tensors& memory, const std::vector<Item>& items) {
  for (const Item& item : items) add_memory(memory, item);
}
template <typename... Items>
Tensors memory_of(const Items&... items) {
  Tensors memory;
  (add_memory(memory, items), ...);
  return memory;
}

// Equal pieces of a flat tensor, one per rank.
template <typename Block>
std::vector<Block> pieces(const at::Tensor& flat, const Elements& elements, int world_size) {
  const std::size_t count = elements.count(flat) / world_size;
  auto* data = static_cast<std::byte*>(flat.data_ptr());
  std::vector<Block> blocks;
  blocks.reserve(world_size);
  for (int r = 0; r < world_size; ++r) {
    blocks.push_back({data + r * count * element_size(elements.dtype), count});
  }
  return blocks;
}

}  // namespace ringcomm
