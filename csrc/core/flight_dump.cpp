// The files of a FlightRecorder.
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/flight_recorder.h"
#include "core/poll.h"
#include "core/process.h"
#include "core/status.h"
#include "core/text.h"
#include "core/thread.h"

namespace ringcomm {
namespace {

using Entry = FlightRecorder::Entry;
using RecordedGroup = FlightRecorder::Group;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kFormatVersion[] = "2.10";  // that of torch 2.11 to 2.15
// torchfrtrace takes names of its own libraries alone, and "nccl" in every version.
constexpr char kLibrary[] = "nccl:";

std::string ranks_text(const std::vector<std::uint64_t>& ranks) {
  std::string text;
  for (const std::uint64_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

// What the file calls the group of an entry and the operation.
struct Names {
  std::string group;
  std::vector<std::uint64_t> ranks;
  std::string operation;
};

Names names_of_message(const Entry& entry, const RecordedGroup& group) {
  const auto& [is_send, peer, tag] = *entry.message;
  const std::uint64_t self = group.global_ranks.at(group.rank);
  if (entry.sequence == 0) {
    return {group.name + " any->" + std::to_string(self), {self}, "recv 0<-0"};
  }
  const std::uint64_t other = group.global_ranks.at(peer);
  Names names;
  names.group = group.name + " " + std::to_string(is_send ? self : other) + "->" +
                std::to_string(is_send ? other : self);
  if (tag != 0) names.group += " tag " + std::to_string(tag);
  names.ranks = {std::min(self, other), std::max(self, other)};
  // Ranks within the group, as everywhere in the format.
  const std::string here = self < other ? "0" : "1";
  const std::string there = self < other ? "1" : "0";
  names.operation = is_send ? "send " + here + "->" + there : "recv " + here + "<-" + there;
  return names;
}

Names names_of(const Entry& entry, const RecordedGroup& group) {
  if (entry.message) return names_of_message(entry, group);
  return {group.name, group.global_ranks, entry.name};
}

// Writes what Python's pickle reads: numbers, text, tuples of two, lists and dicts of these.
class Writer {
 public:
  std::string write(const FlightRecorder::Snapshot& snapshot) && {
    add_dict([&] {
      field("version", kFormatVersion);
      field("comm_lib_version", "ringcomm");
      add("entries");
      add_list([&] {
        for (const Entry& it : snapshot.entries) {
          entry(it, snapshot.groups.at(it.group), snapshot.has_digests);
        }
      });
      add("pg_config");
      add_dict([&] { groups(snapshot); });
      add("pg_status");
      add_dict([&] {
        for (std::size_t i = 0; i < snapshot.groups.size(); ++i) status(i, snapshot.groups[i]);
      });
    });
    out_ += '.';
    return std::move(out_);
  }

 private:
  void add_none() { out_ += 'N'; }
  void add(std::same_as<bool> auto value) { out_ += value ? '\x88' : '\x89'; }
  void add(std::int64_t value) {
    out_ += "\x8a\x08";
    add_little_endian(static_cast<std::uint64_t>(value), 8);
  }
  void add(std::floating_point auto value) {
    out_ += 'G';
    const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(value));
    for (int byte = 7; byte >= 0; --byte) out_ += static_cast<char>(bits >> (8 * byte));
  }
  // Python reads UTF-8 and nothing else.
  void add(std::string_view value) {
    const std::string written = valid_utf8(value);
    out_ += 'X';
    add_little_endian(written.size(), 4);
    out_ += written;
  }
  void add_little_endian(std::uint64_t value, int num_bytes) {
    for (int byte = 0; byte < num_bytes; ++byte) out_ += static_cast<char>(value >> (8 * byte));
  }

  // `items` adds what it has: any number, or keys and values in turn.
  void add_list(const auto& items) {
    out_ += "](";
    items();
    out_ += 'e';
  }
  void add_dict(const auto& items) {
    out_ += "}(";
    items();
    out_ += 'u';
  }

  // In a dict.
  void field(std::string_view key, const auto& value) {
    add(key);
    add(value);
  }
  void time(std::string_view key, FlightRecorder::Nanoseconds value) {
    add(key);
    value == 0 ? add_none() : add(value);
  }

  void groups(const FlightRecorder::Snapshot& snapshot) {
    std::map<std::string, std::pair<const RecordedGroup*, std::vector<std::uint64_t>>> all;
    for (const RecordedGroup& group : snapshot.groups)
      all[group.name] = {&group, group.global_ranks};
    for (const Entry& entry : snapshot.entries) {
      const RecordedGroup& group = snapshot.groups.at(entry.group);
      Names names = names_of(entry, group);
      all[names.group] = {&group, std::move(names.ranks)};
    }
    for (const auto& [name, config] : all) {
      add(name);
      add_dict([&] {
        field("name", name);
        field("desc", config.first->description);
        field("ranks", ranks_text(config.second));
      });
    }
  }

  void status(std::size_t id, const RecordedGroup& group) {
    add(std::to_string(id));
    add_dict([&] {
      const auto number = [&](const char* name, std::uint64_t value) {
        field(name, std::to_string(value));
      };
      number("last_enqueued_collective", group.num_created);
      number("last_started_collective", group.last_started);
      number("last_completed_collective", group.last_completed);
    });
  }

  void entry(const Entry& entry, const RecordedGroup& group, bool with_digest) {
    const Names names = names_of(entry, group);
    add_dict([&] {
      field("record_id", entry.id);
      field("pg_id", entry.group);
      add("process_group");
      add(names.group);
      add(group.description);
      out_ += '\x86';  // a pair of the two
      field("collective_seq_id", entry.sequence);
      field("p2p_seq_id", entry.message ? entry.sequence : 0);
      field("op_id", entry.id);
      field("profiling_name", kLibrary + names.operation);
      time("time_created_ns", entry.created);
      shapes("input_sizes", "input_dtypes", entry.inputs);
      shapes("output_sizes", "output_dtypes", entry.in_place ? entry.inputs : entry.outputs);
      field("state", entry.completed != 0 ? "completed"
                     : entry.started != 0 ? "started"
                                          : "scheduled");
      time("time_discovered_started_ns", entry.started);
      time("time_discovered_completed_ns", entry.completed);
      if (entry.completed != 0) {
        field("duration_ms", static_cast<double>(entry.completed - entry.started) / 1e6);
      }
      field("retired", entry.retired);
      field("timeout_ms", entry.timeout.count());
      field("is_p2p", entry.message.has_value());
      if (with_digest) digest(entry);
      frames(entry.frames);
    });
  }

  void digest(const Entry& entry) {
    add("digest");
    if (!entry.has_digest) return add_none();
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(entry.digest));
    add(text);
  }

  void shapes(const char* sizes_name, const char* dtypes_name, const TensorShapes& shapes) {
    add(sizes_name);
    add_list([&] {
      shapes.each([&](const char*, std::span<const std::int64_t> sizes) {
        add_list([&] {
          for (const std::int64_t size : sizes) add(size);
        });
      });
    });
    add(dtypes_name);
    add_list([&] {
      shapes.each([&](const char* dtype, std::span<const std::int64_t>) { add(dtype); });
    });
  }

  void frames(const std::vector<FlightRecorder::Frame>& frames) {
    add("frames");
    add_list([&] {
      for (const auto& frame : frames) {
        add_dict([&] {
          field("name", frame.name);
          field("filename", frame.filename);
          field("line", frame.line);
        });
      }
    });
  }

  std::string out_ = "\x80\x02";  // protocol 2
};

[[noreturn]] void throw_unwritable(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kSystem, "cannot write the flight record to " + path + ": " + why);
}

bool is_failure(ErrorKind kind) {
  return kind != ErrorKind::kInvalidArgument && kind != ErrorKind::kClosed;
}

// The file is complete, or as it was before.
void write_file(const std::string& content, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_unwritable(path, error.message());
  // Under a name that torchfrtrace passes over, until it is complete.
  std::string draft = folder / ".flight-XXXXXX";
  const int descriptor = mkstemp(draft.data());
  if (descriptor < 0) throw_unwritable(path, std::strerror(errno));
  close(descriptor);
  std::ofstream file(draft, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file || std::rename(draft.c_str(), path.c_str()) != 0) {
    const int cause = errno;
    unlink(draft.c_str());
    throw_unwritable(path, std::strerror(cause));
  }
}

// Several ranks that fail ask one after the other, each in all its groups.
constexpr milliseconds kStillNew{100};

void await(const std::vector<FlightRecorder::DumpsWritten>& requests) {
  poll_for(kDumpGrace, Poll(kPollEvery), [&] {
    return std::ranges::all_of(requests, [](const auto& are_written) { return are_written(); });
  });
}

// What was written on request is written again: meanwhile torch's recorder may have written the
// same file, and knows less.
std::string dump_failure(FlightRecorder& recorder, std::size_t group, bool is_first) {
  auto& dumping = recorder.dumping;
  const std::lock_guard lock(dumping.file_mutex);
  const auto found = dumping.dumped_to.find(group);
  if (found == dumping.dumped_to.end()) {
    return dumping.dumped_to.emplace(group, dump(recorder)).first->second;
  }
  if (is_first && dumping.kept.contains(group)) write_file(dumping.kept[group], found->second);
  return found->second;
}

// A later failure of the group must not raise before the others have written.
std::string dump_with_all(FlightRecorder& recorder, std::size_t group) {
  const std::lock_guard lock(recorder.dumping.failure_mutex);
  const bool is_first = recorder.dumping.failed.insert(group).second;
  std::vector<FlightRecorder::DumpsWritten> requests;
  if (is_first) requests = recorder.request_dumps();
  std::string path;
  const std::exception_ptr error =
      error_of([&] { path = dump_failure(recorder, group, is_first); });
  await(requests);
  if (error) std::rethrow_exception(error);
  return path;
}

}  // namespace

std::string pickled(FlightRecorder::Snapshot snapshot) {
  for (RecordedGroup& group : snapshot.groups) {
    if (group.description.empty()) group.description = "undefined";  // torch's word for it
  }
  return Writer().write(snapshot);
}

std::string default_dump_path(std::uint64_t global_rank) {
  for (const char* name : {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}) {
    const char* prefix = value_of_variable(name);
    if (prefix != nullptr) return prefix + std::to_string(global_rank);
  }
  const char* home = value_of_variable("HOME");
  return std::string(home != nullptr ? home : "/tmp") + "/.cache/torch/comm_lib_trace_rank_" +
         std::to_string(global_rank);
}

std::string dump(FlightRecorder& recorder, std::string path) {
  if (path.empty()) path = default_dump_path(recorder.global_rank());
  write_file(pickled(recorder.snapshot()), path);
  return path;
}

std::exception_ptr failed(const FlightMark& mark, std::exception_ptr error) {
  if (mark.recorder == nullptr) return error;
  mark.recorder->fail(mark.id);
  if (!mark.recorder->dumps_failures()) return error;
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    if (!is_failure(cause.kind())) return error;
    const std::string before = std::string(cause.what()) + "\n";
    try {
      const std::string path = dump_with_all(*mark.recorder, mark.group);
      return make_error(cause.kind(), before + "What this rank did last is recorded in " + path);
    } catch (const std::exception& refused) {
      return make_error(cause.kind(), before + refused.what());
    }
  } catch (...) {  // not of ours: what a user's own plan throws
    return error;
  }
}

void dump_on_request(FlightRecorder& recorder, std::size_t group, bool is_broken) {
  auto& dumping = recorder.dumping;
  try {
    const std::lock_guard lock(dumping.file_mutex);
    if (is_broken && dumping.dumped_to.contains(group)) return;
    const std::string path = default_dump_path(recorder.global_rank());
    const auto now = steady_clock::now();
    if (dumping.last.empty() || now - dumping.last_at > kStillNew) {
      std::string content = pickled(recorder.snapshot());
      write_file(content, path);
      dumping.last = std::move(content);
      dumping.last_at = now;
    }
    if (!is_broken) return;
    dumping.kept[group] = dumping.last;
    dumping.dumped_to[group] = path;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ring: another rank has failed: %s\n", error.what());
  }
}

void dump_at_end(FlightRecorder& recorder) {
  if (!recorder.takes_digests() || !recorder.dumps_failures()) return;
  try {
    const std::lock_guard lock(recorder.dumping.file_mutex);
    if (recorder.dumping.dumped_to.empty()) dump(recorder);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ring: %s\n", error.what());
  }
}

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
