// The host kernels in whatever instructions the compiler takes for granted.
#define RINGCOMM_ISA portable
#define RINGCOMM_TARGET
#include "reduce/host_kernels.h"
