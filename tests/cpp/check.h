// A test program in plain C++: TEST(name) { CHECK(...); CHECK_EQ(a, b); } registers a test, main
// runs them all (or those whose name contains the first argument), prints each, and returns 1 if
// any failed. A failed check is printed and counted, and the test goes on.
//
// What a check does when it fails is in check.cpp: thousands of them are compiled.
#pragma once

#include <atomic>
#include <concepts>
#include <sstream>
#include <string>
#include <string_view>

namespace check {

struct Registration {
  Registration(const char* name, void (*run)());
};

extern std::atomic<int> failures;  // of the test that runs

// What an environment variable says, or `otherwise`: how much a test tries.
long from_environment(const char* name, long otherwise);

void fail(const char* file, int line, std::string_view what, std::string_view context = {});
void fail_equal(const char* file, int line, const char* text, const std::string& a,
                const std::string& b);

std::string shown(long long value);
std::string shown(unsigned long long value);
std::string shown(double value);

// "" for what has no text.
template <typename T>
std::string shown(const T& value) {
  if constexpr (std::unsigned_integral<T>) {
    return shown(static_cast<unsigned long long>(value));
  } else if constexpr (std::floating_point<T>) {
    return shown(static_cast<double>(value));
  } else if constexpr (std::convertible_to<T, long long>) {
    return shown(static_cast<long long>(value));
  } else if constexpr (std::convertible_to<const T&, std::string>) {
    return value;
  } else if constexpr (requires(std::ostringstream text) { text << value; }) {
    std::ostringstream text;
    text << value;
    return text.str();
  } else {
    return "";
  }
}

template <typename A, typename B>
void equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (!(a == b)) fail_equal(file, line, text, shown(a), shown(b));
}

}  // namespace check

#define TEST(test_name)                                                             \
  static void test_name();                                                          \
  static const check::Registration test_name##_registration(#test_name, test_name); \
  static void test_name()

#define CHECK(condition) \
  ((condition) ? void() : check::fail(__FILE__, __LINE__, "failed: " #condition))

// `context` (anything a std::string can be made of) is only evaluated on failure.
#define CHECK_WITH(condition, context) \
  ((condition) ? void() : check::fail(__FILE__, __LINE__, "failed: " #condition, (context)))

#define CHECK_EQ(a, b) check::equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

#define CHECK_THROWS(expression, exception_type)                                              \
  do {                                                                                        \
    bool thrown = false;                                                                      \
    try {                                                                                     \
      expression;                                                                             \
    } catch (const exception_type&) {                                                         \
      thrown = true;                                                                          \
    }                                                                                         \
    if (!thrown) check::fail(__FILE__, __LINE__, "no " #exception_type " from " #expression); \
  } while (false)
