// The record of operations: what an entry holds, what wraps, and threads that write and read it.
// What is in the files is tested in Python, which reads them: tests/test_flight_record.py.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/flight_recorder.h"
#include "core/status.h"

namespace {

using namespace ringcomm;
using namespace std::chrono_literals;
using Entry = FlightRecorder::Entry;

std::size_t add_group(FlightRecorder& recorder, const std::string& name = "0", int rank = 1) {
  return recorder.add_group(name, {4, 5, 6}, rank, {[] { return "a description"; }});
}

std::uint64_t create(FlightRecorder& recorder, std::size_t group, std::int64_t size = 3) {
  return recorder.create({group, 1s}, "all_reduce", [&](Entry& entry) {
    const std::vector<std::int64_t> sizes{size};
    entry.inputs.add("Float", sizes);
    entry.in_place = true;
  });
}

std::uint64_t create(FlightRecorder& recorder, std::size_t group,
                     const FlightRecorder::MessageRecord& message) {
  return recorder.create({group, 1s}, message.is_send ? "send" : "recv", [](Entry&) {}, message);
}

// A folder that is gone with it, and the prefix of dumps inside.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "flight-XXXXXX";
    path_ = mkdtemp(name.data());
    setenv("TORCH_FR_DUMP_TEMP_FILE", (path_ / "rank_").c_str(), 1);
  }
  ~Folder() {
    unsetenv("TORCH_FR_DUMP_TEMP_FILE");
    std::filesystem::remove_all(path_);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(an_entry_says_how_far_its_operation_has_come) {
  FlightRecorder recorder(8);
  const std::size_t group = add_group(recorder);
  const std::uint64_t done = create(recorder, group);
  const std::uint64_t failed = create(recorder, group);
  const std::uint64_t waiting = create(recorder, group);
  CHECK_EQ(waiting, 2u);
  recorder.start(done);
  recorder.complete(done);
  recorder.start(failed);
  recorder.fail(failed);
  const auto snapshot = recorder.snapshot();
  CHECK_EQ(snapshot.entries.size(), 3u);
  const Entry& first = snapshot.entries.at(0);
  CHECK_EQ(first.sequence, 1u);
  CHECK(0 < first.created && first.created <= first.started && first.started <= first.completed);
  CHECK(first.retired);
  const Entry& second = snapshot.entries.at(1);
  CHECK(second.started > 0 && second.completed == 0 && second.retired);
  const Entry& third = snapshot.entries.at(2);
  CHECK(third.started == 0 && !third.retired);
  const auto& status = snapshot.groups.at(0);
  CHECK_EQ(status.description, "a description");
  CHECK_EQ(status.num_created, 3u);
  CHECK_EQ(status.last_started, 2u);
  CHECK_EQ(status.last_completed, 1u);
}

TEST(the_oldest_entries_are_overwritten) {
  FlightRecorder recorder(4);
  const std::size_t group = add_group(recorder);
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(create(recorder, group, i));
  for (const std::uint64_t id : ids) {
    if (id < 6) recorder.complete(id);
  }
  const auto snapshot = recorder.snapshot();
  CHECK_EQ(snapshot.entries.size(), 4u);
  for (std::size_t i = 0; i < snapshot.entries.size(); ++i) {
    const Entry& entry = snapshot.entries[i];
    CHECK_EQ(entry.id, 6 + i);
    CHECK_EQ(entry.sequence, 7 + i);
    CHECK_EQ(entry.completed, 0);
    int tensors = 0;
    entry.inputs.each([&](const char* dtype, std::span<const std::int64_t> sizes) {
      ++tensors;
      CHECK_EQ(std::string(dtype), "Float");
      CHECK_EQ(sizes.size(), 1u);
      CHECK_EQ(sizes[0], static_cast<std::int64_t>(6 + i));
    });
    CHECK_EQ(tensors, 1);
  }
}

TEST(a_digest_goes_with_its_entry) {
  FlightRecorder recorder(2, /*dumps_failures=*/false, /*takes_digests=*/true);
  const std::size_t group = add_group(recorder);
  const std::uint64_t first = create(recorder, group);
  recorder.set_digest(first, ~std::uint64_t{0});
  create(recorder, group);
  const auto before = recorder.snapshot();
  CHECK(before.has_digests);
  CHECK(before.entries.at(0).has_digest && !before.entries.at(1).has_digest);
  CHECK_EQ(before.entries.at(0).digest, ~std::uint64_t{0});
  CHECK(pickled(before).find("ffffffffffffffff") != std::string::npos);
  create(recorder, group);  // in place of the first
  recorder.set_digest(first, 1);
  CHECK(!recorder.snapshot().entries.at(1).has_digest);
}

TEST(a_call_that_was_refused_has_a_number_and_no_entry) {
  FlightRecorder recorder(4);
  const std::size_t group = add_group(recorder);
  create(recorder, group);
  recorder.skip(group);
  create(recorder, group);
  const auto entries = recorder.snapshot().entries;
  CHECK_EQ(entries.size(), 2u);
  CHECK_EQ(entries.at(0).sequence, 1u);
  CHECK_EQ(entries.at(1).sequence, 3u);
}

TEST(an_operation_that_was_not_made_leaves_no_entry_and_no_number) {
  const auto refuse = [](Entry& entry) {
    entry.inputs.add("Float", std::vector<std::int64_t>{3});
    throw std::bad_alloc();
  };
  const FlightRecorder::MessageRecord to_rank_2{true, 2, 0};
  FlightRecorder recorder(2);  // the third overwrites the first
  const std::size_t group = add_group(recorder);
  for (int i = 0; i < 2; ++i) create(recorder, group);
  CHECK_THROWS(recorder.create({group, 1s}, "all_reduce", refuse), std::bad_alloc);
  CHECK_THROWS(recorder.create({group, 1s}, "send", refuse, to_rank_2), std::bad_alloc);
  CHECK_EQ(recorder.snapshot().entries.size(), 1u);
  CHECK_EQ(recorder.snapshot().groups.at(0).num_created, 2u);
  recorder.withdraw(create(recorder, group));
  const auto left = recorder.snapshot();
  CHECK_EQ(left.entries.size(), 1u);
  CHECK_EQ(left.entries.at(0).sequence, 2u);
  create(recorder, group);
  create(recorder, group, {true, 2, 0});
  std::vector<std::uint64_t> sequences;
  for (const Entry& entry : recorder.snapshot().entries) sequences.push_back(entry.sequence);
  CHECK(sequences == std::vector<std::uint64_t>({3, 1}));
}

TEST(a_message_that_was_refused_has_a_number_and_no_entry) {
  FlightRecorder recorder(4);
  const std::size_t group = add_group(recorder);
  recorder.skip(group, FlightRecorder::MessageRecord{true, 2, 0});
  // Its sender is not known.
  recorder.skip(group, FlightRecorder::MessageRecord{false, FlightRecorder::kAnybody, 0});
  create(recorder, group, {true, 2, 0});
  create(recorder, group, {false, 2, 0});
  const auto entries = recorder.snapshot().entries;
  CHECK_EQ(entries.size(), 2u);
  CHECK_EQ(entries.at(0).sequence, 2u);
  CHECK_EQ(entries.at(1).sequence, 1u);
}

TEST(both_ends_number_a_message_alike) {
  FlightRecorder recorder(16);
  const std::size_t group = add_group(recorder);
  create(recorder, group, {true, 2, 0});
  create(recorder, group, {true, 2, 7});
  create(recorder, group, {true, 2, 0});
  create(recorder, group, {false, 2, 0});
  const std::uint64_t from_anybody = create(recorder, group, {false, FlightRecorder::kAnybody, 0});
  CHECK_EQ(recorder.snapshot().entries.back().sequence, 0u);
  recorder.complete(from_anybody, 2);
  std::vector<std::uint64_t> sequences;
  for (const Entry& entry : recorder.snapshot().entries) sequences.push_back(entry.sequence);
  CHECK(sequences == std::vector<std::uint64_t>({1, 1, 2, 1, 2}));
}

TEST(a_group_takes_the_place_of_an_earlier_one_of_its_name) {
  FlightRecorder recorder(16);
  const std::size_t before = add_group(recorder);
  create(recorder, before);
  recorder.end_group(before);
  CHECK_EQ(recorder.snapshot().groups.at(0).description, "a description");
  const std::size_t after = add_group(recorder, "0", 2);
  create(recorder, after, 1);
  const auto snapshot = recorder.snapshot();
  CHECK_EQ(snapshot.groups.size(), 1u);
  CHECK_EQ(snapshot.entries.size(), 1u);
  CHECK_EQ(snapshot.entries.at(0).id, 1u);
  CHECK_EQ(recorder.global_rank(), 6u);
}

TEST(a_group_s_first_failure_is_dumped_and_all_of_its_failures_name_the_file) {
  const Folder folder;
  const auto late = make_error(ErrorKind::kTimeout, "late");
  FlightRecorder silent(16);
  const std::size_t unknown = add_group(silent);
  CHECK_EQ(text_of(failed({&silent, unknown, create(silent, unknown)}, late)), "late");
  FlightRecorder recorder(16, /*dumps_failures=*/true);
  const std::size_t group = add_group(recorder);
  const FlightMark mark{&recorder, group, create(recorder, group)};
  CHECK_EQ(text_of(failed(mark, make_error(ErrorKind::kClosed, "closed"))), "closed");
  CHECK(!std::filesystem::exists(folder / "rank_5"));
  const std::string named = "late\nWhat this rank did last is recorded in ";
  CHECK_EQ(text_of(failed(mark, late)), named + (folder / "rank_5").string());
  CHECK(std::filesystem::remove(folder / "rank_5"));
  CHECK_EQ(text_of(failed(mark, late)), named + (folder / "rank_5").string());
  CHECK(!std::filesystem::exists(folder / "rank_5"));
}

TEST(a_file_that_cannot_be_written_is_an_error_that_keeps_the_first_one) {
  FlightRecorder recorder(16, /*dumps_failures=*/true);
  const std::size_t group = add_group(recorder);
  CHECK_THROWS(dump(recorder, "/proc/no/such/place"), Error);
  setenv("TORCH_FR_DUMP_TEMP_FILE", "/proc/no/such/place", 1);
  const FlightMark mark{&recorder, group, create(recorder, group)};
  const std::string text = text_of(failed(mark, make_error(ErrorKind::kTimeout, "late")));
  unsetenv("TORCH_FR_DUMP_TEMP_FILE");
  CHECK_WITH(text.starts_with("late\ncannot write the flight record to /proc/no/such/place5: "),
             text);
}

// A group whose other ranks have written once that is said; `asked` counts requests.
std::size_t add_asked_group(FlightRecorder& recorder, const std::string& name, int& asked,
                            const std::function<bool()>& are_written) {
  FlightRecorder::Life life{[] { return "a description"; }};
  life.request_dumps = [&asked, are_written] {
    ++asked;
    return are_written;
  };
  return recorder.add_group(name, {4, 5, 6}, 1, life);
}

TEST(the_first_failure_has_the_ranks_of_all_groups_write_and_waits_for_them) {
  const Folder folder;
  FlightRecorder recorder(16, /*dumps_failures=*/true);
  int asked = 0, looks = 0;
  add_asked_group(recorder, "1", asked, [&] {
    CHECK(std::filesystem::exists(folder / "rank_5"));  // its own is written meanwhile
    return ++looks == 10;
  });
  recorder.end_group(add_asked_group(recorder, "2", asked, [] { return false; }));
  const std::size_t group = add_group(recorder);
  const FlightMark mark{&recorder, group, create(recorder, group)};
  failed(mark, make_error(ErrorKind::kInvalidArgument, "wrong"));
  CHECK_EQ(asked, 0);
  failed(mark, make_error(ErrorKind::kTimeout, "late"));
  CHECK_EQ(asked, 1);
  CHECK_EQ(looks, 10);
  failed(mark, make_error(ErrorKind::kTimeout, "late"));
  CHECK_EQ(asked, 1);
}

TEST(ranks_that_do_not_write_are_waited_for_no_longer_than_promised) {
  const Folder folder;
  FlightRecorder recorder(16, /*dumps_failures=*/true);
  int asked = 0;
  for (const char* name : {"0", "1", "2"}) {
    add_asked_group(recorder, name, asked, [] { return false; });
  }
  const auto start = std::chrono::steady_clock::now();
  failed({&recorder, 0, create(recorder, 0)}, make_error(ErrorKind::kTimeout, "late"));
  CHECK(std::chrono::steady_clock::now() - start >= kDumpGrace);
  CHECK_EQ(asked, 3);
  CHECK(std::filesystem::exists(folder / "rank_5"));
}

TEST(a_recorder_that_writes_no_files_asks_no_rank) {
  FlightRecorder recorder(16);
  int asked = 0;
  const std::size_t group = add_asked_group(recorder, "0", asked, [] { return false; });
  failed({&recorder, group, create(recorder, group)}, make_error(ErrorKind::kTimeout, "late"));
  CHECK_EQ(asked, 0);
}

TEST(what_was_written_on_request_says_that_a_rank_had_not_come) {
  const Folder folder;
  FlightRecorder recorder(16, /*dumps_failures=*/true);
  const std::size_t group = add_group(recorder);
  const std::string before = pickled(recorder.snapshot());
  dump_on_request(recorder, group, /*is_broken=*/true);
  CHECK_EQ(content_of(folder / "rank_5"), before);
  std::ofstream(folder / "rank_5") << "by torch";
  const FlightMark mark{&recorder, group, create(recorder, group)};
  const std::string text = text_of(failed(mark, make_error(ErrorKind::kTimeout, "late")));
  CHECK_EQ(text, "late\nWhat this rank did last is recorded in " + (folder / "rank_5").string());
  CHECK_EQ(content_of(folder / "rank_5"), before);
  dump_on_request(recorder, group, /*is_broken=*/true);
  CHECK_EQ(content_of(folder / "rank_5"), before);
}

TEST(what_was_written_for_another_group_gives_way_to_the_first_failure) {
  const Folder folder;
  FlightRecorder recorder(16, /*dumps_failures=*/true);
  const std::size_t group = add_group(recorder);
  dump_on_request(recorder, group, /*is_broken=*/false);
  const FlightMark mark{&recorder, group, create(recorder, group)};
  failed(mark, make_error(ErrorKind::kTimeout, "late"));
  CHECK_EQ(content_of(folder / "rank_5"), pickled(recorder.snapshot()));
}

TEST(requests_that_follow_on_each_other_are_answered_with_one_file) {
  const Folder folder;
  FlightRecorder recorder(16, /*dumps_failures=*/true);
  const std::size_t group = add_group(recorder);
  int files = 0;
  for (int i = 0; i < 100; ++i) {
    dump_on_request(recorder, group, /*is_broken=*/false);
    files += std::filesystem::remove(folder / "rank_5");
  }
  CHECK(files >= 1 && files < 50);
}

TEST(threads_record_while_others_read) {
  FlightRecorder recorder(32);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::size_t group = add_group(recorder, std::to_string(t));
        for (int j = 0; j < 20; ++j) {
          const std::uint64_t id = create(recorder, group, j);
          recorder.start(id);
          recorder.complete(id);
          create(recorder, group, {true, 0, j % 3});
        }
        recorder.end_group(group);
      }
    });
  }
  std::thread reader([&] {
    while (!stop) CHECK(pickled(recorder.snapshot()).size() > 0);
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  reader.join();
  CHECK_EQ(recorder.snapshot().entries.size(), 32u);
}

TEST(a_signal_makes_the_file) {
  const Folder folder;
  static FlightRecorder& recorder = *new FlightRecorder(16);
  create(recorder, add_group(recorder));
  dump_on_signal(recorder);
  raise(SIGUSR2);
  const auto patience = std::chrono::steady_clock::now() + 60s;
  while (!std::filesystem::exists(folder / "rank_5") &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK_EQ(content_of(folder / "rank_5"), pickled(recorder.snapshot()));
}

}  // namespace
