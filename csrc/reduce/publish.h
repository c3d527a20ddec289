// Copies on the host that other cores will read, and which stores make them: ordinary ones, into
// the caches, or streaming ones, around them.
//
// A store into a cache first takes the line from the core that has read it last. Where cores share
// a cache that is cheap, and the reader then finds the line there; between chips or sockets it
// takes so long that the way through memory is two to three times as fast in all. Which of the two
// it is cannot be read off the machine: the topology that a virtual machine shows may be made up,
// and its cores move. So both are tried now and then, and the time of the stores alone decides,
// which is the part that differs: near cores write about as fast either way, far ones several times
// slower into caches, and slower than they could fetch lines from memory.
#pragma once

#include <cstddef>

namespace ringcomm {

// Which stores: for what one core writes and some others read, always the same. It is asked for
// every block.
class StoreChoice {
 public:
  // Bytes. Less than kLeast is hardly worth a choice. A trial takes the first kTrial bytes of a
  // block, which has to have kLeastTried of them for the clock not to matter.
  static constexpr std::size_t kLeast = 2 << 10;
  static constexpr std::size_t kLeastTried = 4 << 10;
  static constexpr std::size_t kTrial = 16 << 10;
  // Written between two trials: twice as much after each that speaks for what is done, up to
  // kSeldom, and kOften after one that does not, as in the beginning, when memory is cold.
  static constexpr std::size_t kOften = 64 << 10;
  static constexpr std::size_t kSeldom = 4 << 20;
  // How many times longer the caches have to take: kMuchLonger, as near ones are at times behind by
  // as much as a core's buffers take in; and kLonger where they take kSlow seconds per byte or
  // more, as it is then not the buffers. (A core fetches about ten lines at once, so one from
  // memory takes it 10 ns, and 64 bytes in 10 ns are 6 GB/s.)
  static constexpr double kMuchLonger = 3.5;
  static constexpr double kLonger = 1.5;
  static constexpr double kSlow = 1 / 6e9;
  // Each trial counts by how far it is beyond that, but for no more than kMost, because a rank that
  // loses its core during a trial has measured nothing. The last trial counts for a quarter of the
  // mean, because readers may be near at one time and far at another.
  static constexpr double kMost = 2.3;
  static constexpr double kNewest = 0.25;

  enum class Stores { kCached, kStreaming };
  struct Next {
    Stores stores;
    bool is_trial;  // took() is to be called with its time
  };

  // For a block of so many bytes.
  Next next(std::size_t nbytes);
  void took(double seconds_per_byte);

  Stores current() const { return current_; }

 private:
  static Stores stores_for(double evidence);

  Stores current_ = Stores::kCached;
  std::size_t interval_ = kOften;  // bytes, between the last trial and the next
  std::size_t until_trial_ = 0;
  bool tries_streaming_ = false;  // the second half of a trial
  double cached_ = 0;             // seconds per byte of the first half
  double evidence_ = 0;           // for streaming, from 1 on: the mean
};

// Copies nbytes as memcpy does, with the stores that have been found faster for these readers. A
// release store afterwards publishes them, whichever they were.
void publish(void* to, const void* from, std::size_t nbytes, StoreChoice& stores);

// The same for everything that the readers are about to be notified of. Little data leaves this
// core's caches as it is written, if the processor can do that (x86's CLDEMOTE): a reader waits for
// a line in the cache that the cores share for less than half as long as for one in another core's
// first cache.
void publish_message(void* to, const void* from, std::size_t nbytes, StoreChoice& stores);

// The second way, for which publish() may decide. As memcpy where the processor has no such stores.
void stream(void* to, const void* from, std::size_t nbytes);

}  // namespace ringcomm
