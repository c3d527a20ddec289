#include "core/flight_signal.h"

#include <semaphore.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <mutex>

#include "core/flight_dump.h"
#include "core/thread.h"

namespace ringcomm {
namespace {

sem_t signalled;

// A handler may do hardly anything, but it may post a semaphore.
void note(int) {
  const int interrupted = errno;
  sem_post(&signalled);
  errno = interrupted;
}

void dump_when_signalled(FlightRecorder& recorder) {
  while (true) {
    while (sem_wait(&signalled) != 0) {
    }
    try {
      std::fprintf(stderr, "ring: SIGUSR2: the flight record is in %s\n", dump(recorder).c_str());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "ring: SIGUSR2: %s\n", error.what());
    }
  }
}

void handle_signal(FlightRecorder& recorder) {
  struct sigaction current {};
  if (sigaction(SIGUSR2, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  sem_init(&signalled, 0, 0);
  {
    const SignalsBlocked blocked;  // signals are for the program's own threads
    start_thread([&recorder] { dump_when_signalled(recorder); }).detach();
  }
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
}

}  // namespace

void dump_on_signal(FlightRecorder& recorder) {
  static std::once_flag once;
  std::call_once(once, [&] { handle_signal(recorder); });
}

}  // namespace ringcomm
