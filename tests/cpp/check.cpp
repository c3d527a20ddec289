#include "check.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <vector>

#ifdef __SANITIZE_THREAD__
// An exception's count of references is libstdc++'s own, which is compiled without the sanitizer:
// it does not see that the thread which lets go of an exception last comes after all that read it.
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
#endif

namespace check {
namespace {

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

}  // namespace

std::atomic<int> failures = 0;

long from_environment(const char* name, long otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atol(value);
}

Registration::Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }

void fail(const char* file, int line, std::string_view what, std::string_view context) {
  // The first few say what is wrong; thousands of them would hide it.
  if (++failures > 20) return;
  std::ostringstream text;  // written at once: ranks fail together
  text << file << ":" << line << ": " << what << (context.empty() ? "" : "; ") << context << "\n";
  std::cout << text.str() << std::flush;
}

void fail_equal(const char* file, int line, const char* text, const std::string& a,
                const std::string& b) {
  fail(file, line, std::string("failed: ") + text,
       a.empty() && b.empty() ? std::string() : a + " != " + b);
}

std::string shown(long long value) { return std::to_string(value); }
std::string shown(unsigned long long value) { return std::to_string(value); }

std::string shown(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace check

int main(int argc, char** argv) {
  bool all_passed = true, any = false;
  for (const check::Test& test : check::tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    any = true;
    check::failures = 0;
    try {
      test.run();
    } catch (const std::exception& error) {
      check::fail(__FILE__, __LINE__, "unexpected exception", error.what());
    }
    if (check::failures > 0) all_passed = false;
    std::printf("%s %s", check::failures == 0 ? "ok    " : "FAILED", test.name);
    if (check::failures > 0) std::printf(" (%d checks)", check::failures.load());
    std::printf("\n");
    std::fflush(stdout);
  }
  if (!any) std::printf("FAILED there is no such test\n");
  return any && all_passed ? 0 : 1;
}
