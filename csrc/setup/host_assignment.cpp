#include "setup/host_assignment.h"

#include <algorithm>
#include <utility>

#include "setup/record.h"

namespace ringcomm {

HostAssignment::HostAssignment(std::vector<std::int64_t> tickets,
                               const std::vector<std::string>& guesses, int first)
    : tickets_(std::move(tickets)), attempt_of_(Placement::of(guesses).host_of) {
  for (int& attempt : attempt_of_) attempts_.try_emplace(attempt += first);
}

// To an attempt of their own.
void HostAssignment::move(const std::vector<int>& ranks, bool named) {
  const int attempt = next_attempt();
  attempts_[attempt] = {.named = named};
  for (const int rank : ranks) attempt_of_[rank] = attempt;
}

void HostAssignment::set_joined(int attempt) {
  const auto it = attempts_.find(attempt);
  if (it != attempts_.end()) it->second.joined = true;
}

void HostAssignment::set_out_of_reach(int attempt, bool named, const std::vector<int>& ranks) {
  if (!attempts_.contains(attempt)) return;
  if (named) return move(ranks, /*named=*/false);
  std::vector<int> all;
  for (int rank = 0; rank < static_cast<int>(attempt_of_.size()); ++rank) {
    if (attempt_of_[rank] == attempt) all.push_back(rank);
  }
  move(all, /*named=*/true);
  attempts_.erase(attempt);
}

bool HostAssignment::is_complete() const {
  return std::ranges::all_of(attempts_, [](const auto& entry) { return entry.second.joined; });
}

std::string HostAssignment::text() const {
  RecordWriter record;
  record << attempt_of_.size();
  for (std::size_t rank = 0; rank < attempt_of_.size(); ++rank) {
    record << tickets_[rank] << attempt_of_[rank];
  }
  for (const auto& [number, attempt] : attempts_) record << number << attempt.named;
  return record.text();
}

std::optional<HostAssignment> HostAssignment::read(std::string_view text, int world_size) {
  RecordReader record(text);
  int written = 0;
  if (!(record >> written) || written != world_size) return std::nullopt;
  HostAssignment assignment;
  assignment.tickets_.resize(static_cast<std::size_t>(world_size));
  assignment.attempt_of_.resize(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    record >> assignment.tickets_[rank] >> assignment.attempt_of_[rank];
  }
  while (record && !record.is_at_end()) {
    int number = 0;
    bool named = false;
    record >> number >> named;
    assignment.attempts_[number] = {.named = named};
  }
  const bool is_whole = std::ranges::all_of(
      assignment.attempt_of_, [&](int attempt) { return assignment.attempts_.contains(attempt); });
  if (!record || !is_whole) return std::nullopt;
  return assignment;
}

}  // namespace ringcomm
