#include "errors.h"

#include <exception>

namespace check {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

void check_contains(const char* file, int line, std::string_view text, std::string_view part) {
  if (contains(text, part)) return;
  fail(file, line, "failed: contains \"" + std::string(part) + "\"", text);
}

std::string error_of(ringcomm::ErrorKind kind, const std::function<void()>& body) {
  try {
    body();
  } catch (const ringcomm::Error& error) {
    CHECK_WITH(error.kind() == kind, error.what());
    return error.what();
  } catch (const std::exception& error) {
    fail(__FILE__, __LINE__, "another exception", error.what());
  }
  return "no error";
}

void check_error(ringcomm::ErrorKind kind, const Parts& parts, const std::function<void()>& body) {
  const std::string text = error_of(kind, body);
  for (const std::string_view part : parts) CHECK_CONTAINS(text, part);
}

}  // namespace check
