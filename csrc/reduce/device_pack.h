// Between 16 bytes of memory and the values that a kernel calculates with.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduce/device_arguments.h"
#include "reduce/functors.h"

namespace ringcomm {

struct alignas(kPackBytes) Pack {
  std::uint32_t words[4];
};

// float8 by the conversions that devices have from compute capability 8.9 on, two values at a time.
//
// The instructions saturate to the largest finite value. That is what e4m3fn wants. e5m2 wants
// infinity from 61440 on, which lies half-way between the largest finite value, 57344, and the next
// power of two, and is a tie that goes to the even one. There the instruction gives the largest
// finite code, and infinity is the next code:
//
//   |x| <  61440   rounded: at most 57344, nothing saturates
//   |x| >= 61440   57344 by saturation; plus 1 in the code, infinity
//   NaN            the comparison is false, and NaN stays
//
// Decoding goes through float16, which holds every value of both; a code of e5m2 is the upper half
// of a float16.
// Invariant: the bits of SmallFloat, but for the sign and payload of a NaN.
//
// Two values at a time, `low` in the lower half; each rounds to nearest even.
struct Float8Instructions {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  __device__ __forceinline__ static std::uint32_t e4m3x2_to_float16x2(std::uint32_t codes) {
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
    return halves;
  }
  __device__ __forceinline__ static std::uint32_t to_e4m3x2(float low, float high) {
    unsigned short codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
  }
  __device__ __forceinline__ static std::uint32_t to_e5m2x2(float low, float high) {
    unsigned short codes;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
  }
  static constexpr bool kExist = true;
#else
  static constexpr bool kExist = false;
#endif
};

// Four values of a word, the lowest byte first.
template <typename Instructions, DType dtype>
struct Float8Words {
  RINGCOMM_HOST_DEVICE static void decode(std::uint32_t word, float* values) {
    std::uint32_t low, high;
    if constexpr (dtype == DType::kFloat8E4M3FN) {
      low = Instructions::e4m3x2_to_float16x2(word & 0xffffu);
      high = Instructions::e4m3x2_to_float16x2(word >> 16);
    } else {
      low = (word & 0xffu) << 8 | (word & 0xff00u) << 16;
      high = (word & 0xff0000u) >> 8 | (word & 0xff000000u);
    }
    values[0] = Float16::decode(low & 0xffffu);
    values[1] = Float16::decode(low >> 16);
    values[2] = Float16::decode(high & 0xffffu);
    values[3] = Float16::decode(high >> 16);
  }

  RINGCOMM_HOST_DEVICE static std::uint32_t encode(const float* values) {
    return encode_pair(values[0], values[1]) | encode_pair(values[2], values[3]) << 16;
  }

 private:
  RINGCOMM_HOST_DEVICE static std::uint32_t encode_pair(float low, float high) {
    if constexpr (dtype == DType::kFloat8E4M3FN) {
      return Instructions::to_e4m3x2(low, high);
    } else {
      constexpr float kOverflow = 61440.0f;
      std::uint32_t codes = Instructions::to_e5m2x2(low, high);
      if (std::fabs(low) >= kOverflow) codes += 1u;
      if (std::fabs(high) >= kOverflow) codes += 1u << 8;
      return codes;
    }
  }
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
