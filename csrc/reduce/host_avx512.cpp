// The host kernels in AVX-512 instructions.
#if defined(__x86_64__)
#define RINGCOMM_ISA avx512
#define RINGCOMM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#include "reduce/host_avx512.h"

#include "reduce/host_kernels.h"
#endif
