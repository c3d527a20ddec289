// A test program in plain C++: TEST(name) { CHECK(...); CHECK_EQ(a, b); } registers a test, main
// runs them all (or those whose name contains the first argument), prints each, and returns 1 if
// any failed. A failed check is printed and counted, and the test goes on.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#ifdef __SANITIZE_THREAD__
// An exception's count of references is libstdc++'s own, which is compiled without the sanitizer:
// it does not see that whoever lets go of an exception last comes after all who read it.
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
#endif

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline std::atomic<int> failures = 0;

struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline void fail(const char* file, int line, const std::string& what) {
  // The first few say what is wrong; thousands of them would hide it.
  if (++failures <= 20) std::cout << file << ":" << line << ": " << what << std::endl;
}

template <typename A, typename B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream what;
  what << "failed: " << text;
  if constexpr (requires { what << +a << +b; }) {  // + shows a character type as a number
    what << "; " << +a << " != " << +b;
  } else if constexpr (requires { what << a << b; }) {
    what << "; " << a << " != " << b;
  }
  fail(file, line, what.str());
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
  ((condition) ? void() : check::fail(__FILE__, __LINE__, "failed: " #condition "; " + (context)))

#define CHECK_EQ(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)

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

int main(int argc, char** argv) {
  bool all_passed = true;
  for (const check::Test& test : check::tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    check::failures = 0;
    try {
      test.run();
    } catch (const std::exception& error) {
      check::fail(__FILE__, __LINE__, std::string("unexpected exception: ") + error.what());
    }
    if (check::failures > 0) all_passed = false;
    std::printf("%s %s", check::failures == 0 ? "ok    " : "FAILED", test.name);
    if (check::failures > 0) std::printf(" (%d checks)", check::failures.load());
    std::printf("\n");
    std::fflush(stdout);
  }
  return all_passed ? 0 : 1;
}
