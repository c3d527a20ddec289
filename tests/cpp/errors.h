// Checks of what is thrown, and of texts.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "core/status.h"

namespace check {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What `body` throws, as text; its Error must be of this kind.
template <typename Body>
std::string error_of(ringcomm::ErrorKind kind, Body&& body) {
  try {
    body();
  } catch (const ringcomm::Error& error) {
    CHECK_WITH(error.kind() == kind, std::string(error.what()));
    return error.what();
  } catch (const std::exception& error) {
    fail(__FILE__, __LINE__, std::string("another exception: ") + error.what());
  }
  return "no error";
}

// That `body` throws an Error of this kind, whose text has all the parts.
template <typename Body>
void check_error(ringcomm::ErrorKind kind, const std::vector<std::string>& parts, Body&& body) {
  const std::string text = error_of(kind, body);
  for (const std::string& part : parts) CHECK_WITH(contains(text, part), part + " in: " + text);
}

}  // namespace check

#define CHECK_CONTAINS(text, part) \
  CHECK_WITH(check::contains(text, part), std::string(part) + " in: " + (text))
