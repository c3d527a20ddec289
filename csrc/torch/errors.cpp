#include "torch/errors.h"

#include <c10/util/Exception.h>

#include "core/status.h"

namespace ringcomm {

void rethrow_for_torch(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInvalidArgument) TORCH_CHECK_VALUE(false, "ring: ", e.what());
    C10_THROW_ERROR(DistBackendError, c10::str("ring: ", e.what()));
  }
}

std::exception_ptr for_torch(std::exception_ptr error) {
  if (!error) return error;
  try {
    rethrow_for_torch(error);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace ringcomm
