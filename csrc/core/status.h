// What can go wrong while ranks wait for each other, and how it is reported.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/deadline.h"
#include "core/text.h"

namespace ringcomm {

enum class ErrorKind : std::int32_t {
  kInvalidArgument,  // this rank's call cannot be right
  kMismatch,         // the ranks' calls do not fit together; nothing was sent
  kTimeout,          // a rank did not come in time
  kPeerDied,         // a peer's process is gone
  kClosed,           // the communicator was closed or aborted
  kSystem,           // a call to the operating system failed
  kLibrary,          // a call to CUDA or NCCL failed
};

// Its text is valid UTF-8: names of hosts and files, which it may quote, need not be.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view message)
      : std::runtime_error(valid_utf8(message)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

inline std::exception_ptr make_error(ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(Error(kind, message));
}

// What body() throws, or null.
template <typename Body>
std::exception_ptr error_of(Body&& body) {
  try {
    body();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// body() in a destructor: once more if it throws, as memory may be there then.
template <typename Body>
void at_the_end(Body&& body) noexcept {
  if (error_of(body)) error_of(body);
}

// The first line of what an exception of any type says, for other ranks to read.
std::string what_of(const std::exception_ptr& error);

// "1.5 s", "90 s", "30 min", "2.5 h"
std::string describe_seconds(double seconds);

// The texts of errors that end a wait. `who`: "rank 0 in all_reduce(count=4, ...) #2".
//
// "rank 0 in ... after 3 s"
std::string after(const std::string& who, const Deadline& deadline);
// "rank 0 in ...: Timed out after 3 s (its timeout is 3 s)"
std::string timed_out(const std::string& who, const Deadline& deadline);
// "rank 0 in ...: wait(): Timed out after 5 ms; the operation goes on until ..."
std::string wait_timed_out(const std::string& who, std::chrono::milliseconds patience,
                           std::chrono::milliseconds timeout);
// "rank 1 will not answer, its process 4711 has ended"
std::string will_not_answer(const std::string& peer, const std::string& how);

}  // namespace ringcomm
