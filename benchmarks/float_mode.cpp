// Times DefaultFloatMode (csrc/reduce/float_mode.h), of which each reduction on the host has one.
//
//     c++ -std=c++20 -O2 -Icsrc benchmarks/float_mode.cpp -o /tmp/float_mode
//     /tmp/float_mode >benchmarks/results/float_mode.json
//
// Prints nanoseconds, the least of many samples: in a thread that has the default mode, and in one
// that flushes subnormals, whose mode is set and given back.
#include "reduce/float_mode.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace {

using ringcomm::DefaultFloatMode;
using Register = ringcomm::FloatModeRegister;

constexpr int kSamples = 2000, kRepeats = 1000;

template <typename Body>
double nanoseconds(Body body) {
  double least = 1e9;
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) {
      body();
      asm volatile("" ::: "memory");  // the loop stays
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    least = std::min(least, took.count() / kRepeats);
  }
  return least;
}

double nanoseconds_of_a_mode() {
  const double loop = nanoseconds([] {});
  return std::max(0.0, nanoseconds([] { const DefaultFloatMode mode; }) - loop);
}

}  // namespace

int main() {
  const double in_default = nanoseconds_of_a_mode();
#if defined(__aarch64__)
  constexpr Register::Bits kFlush = 1u << 24;
#else
  constexpr Register::Bits kFlush = 0x8040;
#endif
  Register::write(Register::kDefault | kFlush);
  const double in_flushing = nanoseconds_of_a_mode();
  std::printf("{\n  \"default_ns\": %.1f,\n  \"flushing_ns\": %.1f\n}\n", in_default, in_flushing);
}
