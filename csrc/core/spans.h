// Named spans of an executor's work, for profilers.
//
// A profiler that can show spans gives a source here, once, when it is loaded. Executors ask it at
// the start of each collective whether a profiler records on their thread. If none does, that
// question is all that spans cost.
#pragma once

#include <atomic>
#include <string>

namespace ringcomm {

class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void begin(const std::string& name) = 0;
  virtual void end() = 0;  // of the span that began last
};

// The sink for the calling thread, or null if no profiler records there.
using SpanSource = SpanSink* (*)();

inline std::atomic<SpanSource> span_source{nullptr};

inline SpanSink* current_span_sink() {
  const SpanSource source = span_source.load(std::memory_order_relaxed);
  return source == nullptr ? nullptr : source();
}

class Span {
 public:
  // name() is only called if there is a sink.
  template <typename Name>
  Span(SpanSink* sink, const Name& name) : sink_(sink) {
    if (sink_ != nullptr) sink_->begin(name());
  }
  ~Span() {
    if (sink_ != nullptr) sink_->end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  SpanSink* const sink_;
};

}  // namespace ringcomm
