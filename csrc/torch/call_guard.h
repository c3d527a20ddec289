// How Python leaves: by a signal in the middle of a wait, or for good at the end of the process.
#pragma once

namespace ringcomm {

class RingBackend;

// A thread that is in a call of the library, and will need Python when it comes back.
class CallGuard {
 public:
  CallGuard();
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
};

// Those that close_all() closes: all that live.
void add_backend(RingBackend* backend);
void remove_backend(RingBackend* backend);

// For atexit, without the GIL. Closes all groups, so that operations under way end, and waits a
// little until no thread is in a call and no callback runs: after that they would find no Python
// any more.
void close_all();

// Waits on Python's main thread run the handlers of signals from now on.
void watch_signals();

}  // namespace ringcomm
