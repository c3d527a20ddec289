#include "setup/host_assignment.h"

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "setup/record.h"

namespace ringcomm {
namespace {

const std::string kTag = "ringcomm-ticket-4";

}  // namespace

bool Participant::lives(const Participant& onlooker) const {
  const bool is_known = !boot.empty() && !onlooker.boot.empty();
  if (is_known && boot != onlooker.boot) return true;
  if (process.pid_namespace != onlooker.process.pid_namespace) return true;
  switch (process.look()) {
    case Process::Look::kRuns:
      return was_seen = true;
    case Process::Look::kUnknown:
      return true;
    case Process::Look::kEnded:
      break;
  }
  const bool is_here = is_known && process.pid_namespace != 0 && host == onlooker.host;
  return !was_seen && !is_here;
}

std::string Participant::text() const {
  RecordWriter record;
  record << kTag << ticket << rank << world_size << members << process.pid << process.start_time
         << process.pid_namespace << boot << host << is_host_given << refusal;
  return record.text();
}

std::optional<Participant> Participant::read(std::string_view text, std::string_view* rest) {
  RecordReader record(text);
  std::string tag;
  Participant a;
  record >> tag >> a.ticket >> a.rank >> a.world_size >> a.members >> a.process.pid >>
      a.process.start_time >> a.process.pid_namespace >> a.boot >> a.host >> a.is_host_given >>
      a.refusal;
  if (!record || tag != kTag || a.rank < 0 || a.rank >= a.world_size) return std::nullopt;
  a.host = printable_utf8(a.host);
  if (rest != nullptr) *rest = record.rest();
  return a;
}

std::vector<std::string> guesses_of(const std::vector<Participant>& participants) {
  const auto has_kernel = [](const Participant& a) { return !a.is_host_given && !a.boot.empty(); };
  const auto first = std::ranges::find_if(participants, has_kernel);
  std::vector<std::string> guesses;
  for (const Participant& participant : participants) {
    const bool is_with_first = participant.is_anywhere() && first != participants.end();
    guesses.push_back(is_with_first ? first->guess() : participant.guess());
  }
  return guesses;
}

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
