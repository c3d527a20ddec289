// immintrin.h without the warnings of GCC 12, which takes the operands that its own AVX-512
// intrinsics leave undefined for a mistake.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
