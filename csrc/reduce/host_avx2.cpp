// The host kernels in AVX2 and F16C instructions.
#if defined(__x86_64__)
#define RINGCOMM_ISA avx2
#define RINGCOMM_TARGET __attribute__((target("avx2,f16c")))
#define RINGCOMM_BFLOAT16 "reduce/host_bfloat16_avx2.h"
#define RINGCOMM_FLOAT16 "reduce/host_float16_avx2.h"
#define RINGCOMM_FLOAT8 "reduce/host_float8_avx2.h"
#include "reduce/host_kernels.h"
#endif
