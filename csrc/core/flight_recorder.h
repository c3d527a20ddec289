// The last operations of this process, and how far each has come.
//
// Every operation of every group takes the next entry of one ring of entries, in place of the
// oldest. An entry keeps its memory for the operation that takes it next, so recording allocates
// only where an operation has more tensors than any before it in that entry. A lock guards all of
// it, for as long as a few fields take.
//
// Collectives, barriers among them, are numbered within their group. Messages are numbered from
// sender to receiver, tag by tag: so both ends give a message the same number.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace ringcomm {

// Sizes and dtypes of tensors.
class TensorShapes {
 public:
  void clear() {
    tensors_.clear();
    sizes_.clear();
  }
  // `dtype` must live as long as the process.
  void add(const char* dtype, std::span<const std::int64_t> sizes) {
    tensors_.push_back({dtype, sizes.size()});
    sizes_.insert(sizes_.end(), sizes.begin(), sizes.end());
  }

  // Calls visit(dtype, sizes) for each tensor.
  template <typename Visit>
  void each(Visit&& visit) const {
    const std::int64_t* sizes = sizes_.data();
    for (const Tensor& tensor : tensors_) {
      visit(tensor.dtype, std::span(sizes, tensor.num_dims));
      sizes += tensor.num_dims;
    }
  }

 private:
  struct Tensor {
    const char* dtype;
    std::size_t num_dims;
  };
  std::vector<Tensor> tensors_;
  std::vector<std::int64_t> sizes_;  // of one tensor after the other
};

class FlightRecorder {
 public:
  using Nanoseconds = std::int64_t;  // since 1970; 0: not yet

  static constexpr int kAnybody = -1;
  static constexpr std::uint64_t kNoId = ~std::uint64_t{0};

  struct Frame {
    std::string name;
    std::string filename;
    int line;
  };

  struct MessageRecord {
    bool is_send;
    int peer;  // a receive may name kAnybody; then the rank it came from, once it is complete
    int tag;
  };

  struct Entry {
    std::uint64_t id = 0;
    std::size_t group = 0;
    const char* name = nullptr;
    std::optional<MessageRecord> message;  // none: it is a collective
    std::uint64_t sequence = 0;            // 0: a message whose sender is not known yet
    std::chrono::milliseconds timeout{};
    bool in_place = false;  // the outputs are the inputs
    bool has_digest = false;
    std::uint64_t digest = 0;  // of the result
    TensorShapes inputs;
    TensorShapes outputs;
    Nanoseconds created = 0;
    Nanoseconds started = 0;
    Nanoseconds completed = 0;  // with success
    bool retired = false;       // has ended, one way or the other
    std::vector<Frame> frames;  // the innermost first
  };

  // What all operations have.
  struct Operation {
    std::size_t group;
    std::chrono::milliseconds timeout;
    bool starts_at_once = false;
    std::vector<Frame> frames = {};
  };

  // Whether the ranks that were asked for their records have written them, as far as they can.
  // Empty: none was asked.
  using DumpsWritten = std::function<bool()>;

  // What the backend reports of a group that lives. Called by threads that dump.
  struct Life {
    std::function<std::string()> description;
    // Notes which operations have completed meanwhile, if no callback reports that.
    std::function<void()> look = [] {};
    // Asks the other ranks to write their records, and returns at once.
    std::function<DumpsWritten()> request_dumps = [] { return DumpsWritten(); };
  };

  struct Group {
    std::string name;
    std::string description;
    std::vector<std::uint64_t> global_ranks;
    int rank = 0;
    std::uint64_t num_created = 0;   // collectives; so the sequence number of the last
    std::uint64_t last_started = 0;  // sequence numbers
    std::uint64_t last_completed = 0;
  };

  struct Snapshot {
    bool has_digests = false;  // of the results that have one
    std::vector<Group> groups;
    std::vector<Entry> entries;  // the oldest first
  };

  // `dumps_failures`: the first failure of each group writes a file (core/flight_dump.cpp).
  // `takes_digests`: set_digest() is called for each operation that has a result here.
  explicit FlightRecorder(std::size_t capacity, bool dumps_failures = false,
                          bool takes_digests = false)
      : dumps_failures_(dumps_failures), entries_(capacity), takes_digests_(takes_digests) {}

  bool dumps_failures() const { return dumps_failures_; }
  bool takes_digests() const { return takes_digests_; }

  // A group of the same name that was there before is forgotten.
  std::size_t add_group(std::string name, std::vector<std::uint64_t> global_ranks, int rank,
                        Life life);
  // The group's Life is not called any more.
  void end_group(std::size_t group);

  // The id of a new entry, which shapes(entry) describes; if that throws, there is no new entry and
  // no number is taken. `name` must live as long as the process.
  template <typename Shapes>
  std::uint64_t create(Operation operation, const char* name, Shapes&& shapes,
                       const std::optional<MessageRecord>& message = {}) {
    std::lock_guard lock(mutex_);
    Entry& entry = next_entry(std::move(operation), name, message);
    shapes(entry);
    if (std::uint64_t* last = last_number(entry.group, message)) entry.sequence = ++*last;
    if (!message && entry.started != 0) records_[entry.group].group.last_started = entry.sequence;
    return num_created_++;
  }

  // The other ranks give the next number to a call that was refused here, and has no entry.
  void skip(std::size_t group, const std::optional<MessageRecord>& message = {});

  // What has been overwritten meanwhile is not looked for. `source`: of a message from any rank.
  void start(std::uint64_t id);
  void complete(std::uint64_t id, int source = kAnybody);
  void fail(std::uint64_t id);
  void set_digest(std::uint64_t id, std::uint64_t digest);
  // It has not been made, and its number is the next one's.
  void withdraw(std::uint64_t id);

  Snapshot snapshot();

  // This process's: of the group that was made last.
  std::uint64_t global_rank();

  // Asks all groups that live: a rank has failed, and the records of all others are to be compared.
  std::vector<DumpsWritten> request_dumps();

  // For those that write files: see core/flight_dump.cpp.
  struct Dumping {
    std::mutex failure_mutex;      // before file_mutex
    std::set<std::size_t> failed;  // groups
    std::mutex file_mutex;
    std::string last;  // what was written on request last
    std::chrono::steady_clock::time_point last_at;
    // By group that broke: the file of its failure, and what was written there on request.
    std::map<std::size_t, std::string> dumped_to, kept;
  };
  Dumping dumping;

 private:
  using Stream = std::tuple<int, int, int>;  // sender, receiver, tag

  struct Record {
    Group group;
    std::map<Stream, std::uint64_t> messages;  // how many there were
    bool replaced = false;
  };

  // It is counted once it is complete.
  Entry& next_entry(Operation operation, const char* name,
                    const std::optional<MessageRecord>& message);
  // How many collectives of the group, or messages of the stream, there were so far. Null: the
  // message's sender is not known yet.
  std::uint64_t* last_number(std::size_t group, const std::optional<MessageRecord>& message);
  Entry* find(std::uint64_t id);

  const bool dumps_failures_;

  std::mutex lives_mutex_;  // before mutex_, as what is called back may complete entries
  std::map<std::size_t, Life> lives_;

  std::mutex mutex_;
  std::vector<Record> records_;  // of groups; never removed
  std::vector<Entry> entries_;
  std::uint64_t num_created_ = 0;
  const bool takes_digests_;  // beside what each operation looks at
};

// One operation in a recorder, or none, where nothing is recorded.
struct FlightMark {
  FlightRecorder* recorder = nullptr;
  std::size_t group = 0;
  std::uint64_t id = 0;

  void start() const {
    if (recorder != nullptr) recorder->start(id);
  }
  void complete(int source = FlightRecorder::kAnybody) const {
    if (recorder != nullptr) recorder->complete(id, source);
  }
  bool takes_digest() const { return recorder != nullptr && recorder->takes_digests(); }
  void set_digest(std::uint64_t digest) const { recorder->set_digest(id, digest); }
  // See FlightRecorder::withdraw.
  void withdraw() const {
    if (recorder != nullptr) recorder->withdraw(id);
  }
};

// ---- Its files: flight_dump.cpp -----------------------------------------------------------------

// They have what a FlightRecorder holds, in the format of torch's Flight Recorder, which
// `torchfrtrace` analyses. To write one takes no lock of Python's, and no other rank.
//
// torchfrtrace compares the entries that all members of a group have under a sequence number, and
// names the members that have none. A message concerns two ranks of its group alone, so in the file
// each stream of messages (from one rank to another, with one tag) is a group of these two.

std::string pickled(FlightRecorder::Snapshot snapshot);

// Where torch's own recorder would write: a prefix, from TORCH_FR_DUMP_TEMP_FILE, else
// TORCH_NCCL_DEBUG_INFO_TEMP_FILE, else ~/.cache/torch/comm_lib_trace_rank_, and the global rank.
std::string default_dump_path(std::uint64_t global_rank);

// Writes the file, as a whole or not at all; an empty path means the default. Returns the path.
// Throws Error (kSystem) if it cannot be written.
std::string dump(FlightRecorder& recorder, std::string path = "");

// Notes that an operation has failed. Where the recorder dumps failures, the group's first writes a
// file, and the error returned, as those of later failures, names it. A call that was wrong and a
// group that its user has closed are no failures.
//
// The first failure also asks the ranks of all groups for their files, and waits for these: as soon
// as this rank raises, a launcher ends a rank that hangs. A file takes milliseconds. No rank is
// waited for longer than kDumpGrace.
std::exception_ptr failed(const FlightMark& mark, std::exception_ptr error);
inline constexpr std::chrono::milliseconds kDumpGrace{2000};

// Another rank of the group has asked for this rank's file. Errors go to stderr. `is_broken`: so
// this is the group's first failure here, too. A rank that comes late, and fails then, leaves the
// file as it is, which says that the rank had not come.
void dump_on_request(FlightRecorder& recorder, std::size_t group, bool is_broken);

// Writes the file as the process ends: with digests, where failures would have written one, too. A
// failure's file stays as it is. Errors go to stderr.
void dump_at_end(FlightRecorder& recorder);

// From now on, SIGUSR2 makes a thread write the record to its default path and report that on
// stderr, whatever the process is waiting for. The first call counts. Nothing is done if SIGUSR2
// has another handler already, or is ignored. `recorder` must outlive the process's last signal.
void dump_on_signal(FlightRecorder& recorder);

}  // namespace ringcomm
