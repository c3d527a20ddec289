// The host kernels in whatever instructions the compiler takes for granted.
#define RINGCOMM_ISA portable
#define RINGCOMM_TARGET
#if defined(__aarch64__)
#define RINGCOMM_FLOAT16 "reduce/host_float16_neon.h"
#endif
#include "reduce/host_kernels.h"
