// Marks a function for the host and, where nvcc compiles it, for the device.
#pragma once

#ifdef __CUDACC__
#define RINGCOMM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define RINGCOMM_HOST_DEVICE [[gnu::always_inline]] inline
#endif
