// The headers of torch that most sources of this folder include, most of what there is to compile.
// setup.py compiles them once, where the compiler can, and includes them by the command line; the
// sources include what they use all the same. Not pybind11: what includes it gets code of it, too.
#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
