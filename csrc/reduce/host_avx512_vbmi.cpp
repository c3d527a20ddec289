// The host kernels in AVX-512 instructions, with those that permute bytes.
#if defined(__x86_64__)
#define RINGCOMM_ISA avx512_vbmi
#define RINGCOMM_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,f16c")))
#define RINGCOMM_VBMI
#include "reduce/host_avx512.h"
#include "reduce/host_kernels.h"
#endif
