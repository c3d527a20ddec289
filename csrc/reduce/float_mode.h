// The floating-point mode that sums are computed in, whatever the calling thread's is.
//
// A library that was linked with -ffast-math, torch.set_flush_denormal(True) and fesetround()
// change a thread's rounding, or make subnormals zero. Where they do so on one rank, it would end
// with other bits than its peers. DefaultFloatMode is IEEE 754's mode, rounding to nearest with
// subnormals and without traps, for as long as it lives, and gives the thread its own one back. As
// a rule a thread has this mode already, and its register is only read.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ringcomm {

#if defined(__x86_64__)
// MXCSR. The six lowest bits are flags: what exceptions have happened, no mode.
struct FloatModeRegister {
  using Bits = unsigned;
  static constexpr Bits kMode = 0xffc0;
  static constexpr Bits kDefault = 0x1f80;
  static Bits read() { return _mm_getcsr(); }
  static void write(Bits bits) { _mm_setcsr(bits); }
};
#elif defined(__aarch64__)
// FPCR. The flags are in another register.
struct FloatModeRegister {
  using Bits = std::uint64_t;
  static constexpr Bits kMode = ~Bits{0};
  static constexpr Bits kDefault = 0;
  static Bits read() {
    Bits bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static void write(Bits bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }
};
#else
// Other CPUs keep the thread's mode.
struct FloatModeRegister {
  using Bits = unsigned;
  static constexpr Bits kMode = 0;
  static constexpr Bits kDefault = 0;
  static Bits read() { return 0; }
  static void write(Bits) {}
};
#endif

class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(Register::read()), differs_((saved_ & kMode) != kDefault) {
    if (differs_) [[unlikely]]
      Register::write((saved_ & ~kMode) | kDefault);
  }
  ~DefaultFloatMode() {
    if (differs_) [[unlikely]]
      Register::write(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  using Register = FloatModeRegister;
  static constexpr Register::Bits kMode = Register::kMode, kDefault = Register::kDefault;

  const Register::Bits saved_;
  const bool differs_;
};

// Compilers do not know that arithmetic depends on the mode, and may move it out of the scope of a
// DefaultFloatMode. They leave it on its side of a call of this on its operand or its result.
template <typename T>
void pin(T& value) {
  asm volatile("" : "+m"(value));
}

}  // namespace ringcomm
