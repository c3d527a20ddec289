#include "torch/report.h"

#include <utility>

#include "core/flight_dump.h"

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

}  // namespace

Report::Report(std::shared_ptr<const Hooks> hooks)
    : hooks_(std::move(hooks)), completion_key_(next_completion_key()) {}

void Report::started() const {
  for (const FlightMark& mark : marks_) mark.start();
}

void Report::succeeded(int source) const {
  for (const FlightMark& mark : marks_) mark.complete(source);
}

std::exception_ptr Report::failed(std::exception_ptr error) const {
  // First, as torch's recorder may write the same file, and knows less.
  if (hooks_) call_abort_hooks(*hooks_, error);
  return record_failure(std::move(error));
}

std::exception_ptr Report::record_failure(std::exception_ptr error) const {
  for (const FlightMark& mark : marks_) error = ringcomm::failed(mark, std::move(error));
  return error;
}

void call_abort_hooks(const Hooks& hooks, const std::exception_ptr& error) {
  if (ends_group(error)) hooks.abort.call();
}

}  // namespace ringcomm
