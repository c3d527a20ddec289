#include "core/status.h"

#include <cstdio>
#include <new>
#include <string_view>
#include <utility>

namespace ringcomm {

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "there is not enough memory";
  } catch (const std::exception& e) {
    const std::string_view text = e.what();
    return std::string(text.substr(0, text.find('\n')));
  } catch (...) {
    return "an unknown error";
  }
}

std::string describe_seconds(double seconds) {
  const auto [unit, length] = seconds >= 2 * 3600 ? std::pair("h", 3600.0)
                              : seconds >= 2 * 60 ? std::pair("min", 60.0)
                                                  : std::pair("s", 1.0);
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g %s", seconds / length, unit);
  return text;
}

std::string after(const std::string& who, const Deadline& deadline) {
  return who + " after " + describe_seconds(deadline.waited());
}

std::string timed_out(const std::string& who, const Deadline& deadline) {
  return who + ": Timed out after " + describe_seconds(deadline.waited()) + " (its timeout is " +
         describe_seconds(std::chrono::duration<double>(deadline.timeout).count()) + ")";
}

std::string wait_timed_out(const std::string& who, std::chrono::milliseconds patience,
                           std::chrono::milliseconds timeout) {
  return who + ": wait(): Timed out after " + std::to_string(patience.count()) +
         " ms; the operation goes on until its own timeout of " + std::to_string(timeout.count()) +
         " ms";
}

std::string will_not_answer(const std::string& peer, const std::string& how) {
  return peer + " will not answer, " + how;
}

}  // namespace ringcomm
