// Between 16 bytes of memory and the values that a kernel calculates with.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduce/device_arguments.h"
#include "reduce/device_float8.h"
#include "reduce/functors.h"

namespace ringcomm {

struct alignas(kPackBytes) Pack {
  std::uint32_t words[4];
};

// Values<dtype, op>: the type of the values, how many a pack holds, and conversions of packs and of
// single elements from and to memory.
template <DType dtype, ReduceOp op>
struct Values {
  // Narrow integers are compared in 32 bits, which takes fewer registers than doing it in 8.
  static constexpr bool kWidened =
      op == ReduceOp::kMin && (dtype == DType::kInt8 || dtype == DType::kInt16);
  static constexpr DType kComputed = kWidened ? DType::kInt32 : dtype;
  using Element = ringcomm::Element<dtype>;
  using Storage = typename Element::Storage;
  using T = Accumulator<kComputed, op>;
  static constexpr int kCount = static_cast<int>(kPackBytes / sizeof(Storage));

  RINGCOMM_HOST_DEVICE static void load(T (&values)[kCount], Pack pack,
                                        const DeviceArguments& args) {
    mirror(pack, args);
    if constexpr (kByFloat8Instructions) {
      RINGCOMM_UNROLL
      for (int i = 0; i < 4; ++i) Float8::decode(pack.words[i], values + 4 * i);
    } else {
      RINGCOMM_UNROLL
      for (int i = 0; i < kCount; ++i) {
        Storage stored;
        std::memcpy(&stored, reinterpret_cast<const char*>(&pack) + i * sizeof(Storage),
                    sizeof(Storage));
        values[i] = Element::load(stored);
      }
    }
  }

  RINGCOMM_HOST_DEVICE static Pack store(const T (&values)[kCount], const DeviceArguments& args) {
    Pack pack;
    if constexpr (kByFloat8Instructions) {
      RINGCOMM_UNROLL
      for (int i = 0; i < 4; ++i) pack.words[i] = Float8::encode(values + 4 * i);
    } else {
      RINGCOMM_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const Storage stored = Element::store(static_cast<Accumulator<dtype>>(values[i]));
        std::memcpy(reinterpret_cast<char*>(&pack) + i * sizeof(Storage), &stored, sizeof(Storage));
      }
    }
    mirror(pack, args);
    return pack;
  }

  RINGCOMM_HOST_DEVICE static T load_single(Storage stored, const DeviceArguments& args) {
    return Element::load(mirrored(stored, args));
  }

  RINGCOMM_HOST_DEVICE static Storage store_single(T value, const DeviceArguments& args) {
    return mirrored(Element::store(static_cast<Accumulator<dtype>>(value)), args);
  }

  RINGCOMM_HOST_DEVICE static T combine(T a, T b, const DeviceArguments&) {
    return ringcomm::combine<kComputed, op>(a, b);
  }

 private:
  using Float8 = Float8Words<Float8Instructions, dtype>;
  static constexpr bool kByFloat8Instructions =
      Float8Instructions::kExist && (dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2);

  RINGCOMM_HOST_DEVICE static void mirror(Pack& pack, const DeviceArguments& args) {
    if constexpr (op == ReduceOp::kMin) {
      RINGCOMM_UNROLL
      for (int i = 0; i < 4; ++i) pack.words[i] ^= args.mirror[i % 2];
    }
  }

  RINGCOMM_HOST_DEVICE static Storage mirrored(Storage stored, const DeviceArguments& args) {
    if constexpr (op == ReduceOp::kMin) {
      std::uint32_t words[2] = {};
      std::memcpy(words, &stored, sizeof(stored));
      words[0] ^= args.mirror[0];
      words[1] ^= args.mirror[1];
      std::memcpy(&stored, words, sizeof(stored));
    }
    return stored;
  }
};

// Bitwise ops work on words; a bool becomes 0 or 1 first, four at a time.
template <DType dtype>
struct Values<dtype, ReduceOp::kBor> {
  using Storage = std::uint8_t;
  using T = std::uint32_t;
  static constexpr int kCount = 4;

  RINGCOMM_HOST_DEVICE static void load(T (&values)[kCount], Pack pack, const DeviceArguments&) {
    RINGCOMM_UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = normal(pack.words[i]);
  }

  RINGCOMM_HOST_DEVICE static Pack store(const T (&values)[kCount], const DeviceArguments&) {
    return {{values[0], values[1], values[2], values[3]}};
  }

  RINGCOMM_HOST_DEVICE static T load_single(Storage stored, const DeviceArguments&) {
    return normal(stored);
  }

  RINGCOMM_HOST_DEVICE static Storage store_single(T value, const DeviceArguments&) {
    return static_cast<Storage>(value);
  }

  RINGCOMM_HOST_DEVICE static T combine(T a, T b, const DeviceArguments& args) {
    return args.truth_table(a, b);
  }

 private:
  RINGCOMM_HOST_DEVICE static T normal(T word) {
    if constexpr (dtype != DType::kBool) return word;
    // Adding 0x7f carries into a byte's highest bit unless the other seven are 0.
    const T nonzero = ((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word;
    return (nonzero >> 7) & 0x01010101u;
  }
};

}  // namespace ringcomm
