#include "setup/participant.h"

#include <algorithm>

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

}  // namespace ringcomm
