#include "torch/errors.h"

#include <c10/util/Exception.h>

#include <new>
#include <system_error>

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

void rethrow_from_call(std::exception_ptr error, const std::string& where) {
  const auto named = [&] { return c10::str("ring: ", where, ": ", what_of(error)); };
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    C10_THROW_ERROR(DistBackendError, named());
  } catch (const std::bad_alloc&) {
    C10_THROW_ERROR(DistBackendError, named());
  } catch (const std::system_error&) {
    C10_THROW_ERROR(DistBackendError, named());
  }
}

std::string reason_of(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (...) {
    return what_of(error);
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
