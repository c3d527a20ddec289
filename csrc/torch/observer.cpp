#include "torch/observer.h"

#include <Python.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include "core/spans.h"
#include "torch/operation.h"
#include "torch/python.h"
#include "torch/tensors.h"

namespace ringcomm {
namespace {

bool ends_group(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    switch (cause.kind()) {
      case ErrorKind::kTimeout:
      case ErrorKind::kPeerDied:
      case ErrorKind::kSystem:
      case ErrorKind::kLibrary:
        return true;
      default:
        return false;
    }
  } catch (...) {
    return false;
  }
}

// Returns the error with what is to be added to it.
std::exception_ptr record_failures(std::span<const FlightMark> marks, std::exception_ptr error) {
  for (const FlightMark& mark : marks) error = failed(mark, std::move(error));
  return error;
}

using Entry = FlightRecorder::Entry;

// Never destroyed: threads may record and dump until the process ends.
const ForkGuard* recording_process = nullptr;
std::atomic<FlightRecorder*> process_recorder{nullptr};
std::atomic<bool> record_stacks{false};

void add(TensorShapes& shapes, const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  shapes.add(c10::toString(tensor.scalar_type()), std::span(sizes.data(), sizes.size()));
}

void add(TensorShapes& shapes, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) add(shapes, tensor);
}

// torch's analyzer expects a list with one tensor per rank as the one tensor it is a part of.
void add_joined(TensorShapes& shapes, const std::vector<at::Tensor>& tensors) {
  std::int64_t numel = 0;
  for (const at::Tensor& tensor : tensors) numel += tensor.numel();
  shapes.add(c10::toString(tensors.front().scalar_type()), std::span(&numel, 1));
}

std::string text_of(PyObject* text) {
  const char* utf8 = PyUnicode_AsUTF8(text);
  if (utf8 != nullptr) return utf8;
  PyErr_Clear();  // it is no text that UTF-8 has
  return "?";
}

std::vector<FlightRecorder::Frame> python_frames() {
  if (!Py_IsInitialized()) return {};
  std::vector<FlightRecorder::Frame> frames;
  with_gil([&] {
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != nullptr) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      frames.push_back(
          {text_of(code->co_name), text_of(code->co_filename), PyFrame_GetLineNumber(frame)});
      Py_DECREF(code);
      PyFrameObject* caller = PyFrame_GetBack(frame);
      Py_DECREF(frame);
      frame = caller;
    }
  });
  return frames;
}

// torch.profiler, and emit_nvtx for nsys, listen to record functions.
class RecordFunctionSpans : public SpanSink {
 public:
  void begin(const std::string& name) override {
    at::RecordFunction& span = open_.emplace_back(at::RecordScope::USER_SCOPE);
    if (span.isActive()) span.before(name);
  }
  void end() override { open_.pop_back(); }

 private:
  std::deque<at::RecordFunction> open_;
};

SpanSink* sink_of_this_thread() {
  if (!at::hasCallbacks()) return nullptr;
  thread_local RecordFunctionSpans spans;
  return &spans;
}

}  // namespace

void record_digest(const FlightMark& mark, std::span<const at::Tensor> result) noexcept {
  error_of([&] { mark.set_digest(digest_of(result)); });
}

Report::Report(std::shared_ptr<const Observer> observer)
    : observer_(std::move(observer)), completion_key_(Observer::next_completion_key()) {}

std::shared_ptr<const char> Report::under_way() const {
  return observer_ ? observer_->under_way() : nullptr;
}

bool Report::is_timed() const { return observer_ && observer_->times_calls(); }

void Report::call_completion_hooks(std::optional<float> milliseconds) const noexcept {
  if (observer_) observer_->call_completion_hooks(completion_key_, milliseconds);
}

bool Report::wants_work_info() const { return observer_ && !observer_->hooks.work_info.is_empty(); }

void Report::call_work_info_hook(const std::shared_ptr<c10d::WorkInfo>& info) const noexcept {
  observer_->hooks.work_info.call(info);
}

std::exception_ptr Report::failed(std::exception_ptr error) const {
  return observer_ ? observer_->failed(marks_, std::move(error)) : for_torch(error);
}

void Report::record_failure(std::exception_ptr error) const {
  record_failures(marks_, std::move(error));
}

void Observer::begin_record(const std::string& name, std::vector<std::uint64_t> global_ranks,
                            int rank, int world_size, FlightRecorder::Life life) {
  end_record();
  recorder_ = flight_recorder();
  if (recorder_ == nullptr) return;
  if (global_ranks.empty()) {
    global_ranks.resize(world_size);
    std::iota(global_ranks.begin(), global_ranks.end(), 0);
  }
  group_ = recorder_->add_group(name, std::move(global_ranks), rank, std::move(life));
}

void Observer::end_record() {
  if (!fork_guard_.is_here()) return;
  if (recorder_ != nullptr) recorder_->end_group(group_);
}

std::function<void(bool)> Observer::on_dump_request() const {
  if (recorder_ == nullptr || !recorder_->dumps_failures()) return nullptr;
  return [recorder = recorder_, group = group_](bool is_broken) {
    dump_on_request(*recorder, group, is_broken);
  };
}

FlightRecorder::Operation Observer::operation(std::chrono::milliseconds timeout,
                                              bool starts_at_once) const {
  FlightRecorder::Operation operation{group_, timeout, starts_at_once};
  // This comes before the recorder's lock is taken: a thread that holds Python's lock may be
  // waiting for the recorder's.
  if (record_stacks) operation.frames = python_frames();
  return operation;
}

Report Observer::report_of(const FlightMark& mark) const {
  Report report(shared_from_this());
  report.add(mark);
  return report;
}

Report Observer::collective(c10d::OpType type, const std::vector<at::Tensor>& inputs,
                            const std::vector<at::Tensor>& outputs,
                            std::chrono::milliseconds timeout) const {
  if (recorder_ == nullptr) return report_of({});
  const bool joins_inputs = type == c10d::OpType::REDUCE_SCATTER || type == c10d::OpType::ALLTOALL;
  const bool joins_outputs = type == c10d::OpType::ALLGATHER || type == c10d::OpType::ALLTOALL;
  const auto shapes = [&](Entry& entry) {
    joins_inputs ? add_joined(entry.inputs, inputs) : add(entry.inputs, inputs);
    joins_outputs ? add_joined(entry.outputs, outputs) : add(entry.outputs, outputs);
  };
  const auto id = recorder_->create(operation(timeout, false), kind_of(type).name, shapes);
  return report_of({recorder_, group_, id});
}

Report Observer::message(const FlightRecorder::MessageRecord& message, const at::Tensor& tensor,
                         std::chrono::milliseconds timeout, bool starts_at_once) const {
  if (recorder_ == nullptr) return report_of({});
  const auto shapes = [&](Entry& entry) {
    add(entry.inputs, tensor);
    entry.in_place = true;
  };
  const char* name = message.is_send ? "send" : "recv";
  const auto id = recorder_->create(operation(timeout, starts_at_once), name, shapes, message);
  return report_of({recorder_, group_, id});
}

FlightMark Observer::begun(c10d::OpType type, const at::Tensor* input, const at::Tensor* output,
                           std::chrono::milliseconds timeout) const {
  if (recorder_ == nullptr) return {};
  const auto shapes = [&](Entry& entry) {
    if (input != nullptr) add(entry.inputs, *input);
    entry.in_place = input == output;
    if (!entry.in_place) add(entry.outputs, *output);
  };
  const auto id = recorder_->create(operation(timeout, true), kind_of(type).name, shapes);
  return {recorder_, group_, id};
}

std::exception_ptr Observer::failed(std::span<const FlightMark> marks,
                                    std::exception_ptr error) const {
  // First, as torch's recorder may write the same file, and knows less.
  if (ends_group(error)) aborted();
  return for_torch(record_failures(marks, std::move(error)));
}

void Observer::refused(const std::optional<FlightRecorder::MessageRecord>& message) const {
  if (recorder_ != nullptr) recorder_->skip(group_, message);
}

std::uint64_t Observer::next_completion_key() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

void start_flight_recorder(std::size_t capacity, bool stacks, bool dump_failures, bool digests) {
  static std::once_flag once;
  if (capacity == 0) return;
  std::call_once(once, [&] {
    auto* recorder = new FlightRecorder(capacity, dump_failures, digests);
    recording_process = new ForkGuard;
    record_stacks = stacks;
    process_recorder = recorder;
    dump_on_signal(*recorder);
  });
}

void end_flight_recorder() {
  FlightRecorder* recorder = flight_recorder();
  if (recorder != nullptr && recording_process->is_here()) dump_at_end(*recorder);
}

FlightRecorder* flight_recorder() { return process_recorder; }

void show_spans_to_torch() { span_source.store(&sink_of_this_thread); }

}  // namespace ringcomm
