// Marks a function for the host and, where nvcc compiles it, for the device, or there for the
// device alone; and loops that the device unrolls.
#pragma once

#ifdef __CUDACC__
#define RINGCOMM_HOST_DEVICE __host__ __device__ __forceinline__
#define RINGCOMM_DEVICE __device__ __forceinline__
#else
#define RINGCOMM_HOST_DEVICE [[gnu::always_inline]] inline
#define RINGCOMM_DEVICE inline
#endif

#ifdef __CUDA_ARCH__
#define RINGCOMM_UNROLL _Pragma("unroll")
#define RINGCOMM_NO_UNROLL _Pragma("unroll 1")
#else
#define RINGCOMM_UNROLL
#define RINGCOMM_NO_UNROLL
#endif
