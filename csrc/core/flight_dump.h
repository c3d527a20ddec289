// Writes what a FlightRecorder holds to a file, in the format of torch's Flight Recorder, which
// `torchfrtrace` analyses. It depends on nothing else: no lock of Python's, no other rank.
//
// torchfrtrace compares the entries that all members of a group have under a sequence number, and
// names the members that have none. A message concerns two ranks of its group alone, so in the file
// each stream of messages (from one rank to another, with one tag) is a group of these two.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "core/flight_recorder.h"

namespace ringcomm {

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

// From now on, SIGUSR2 makes a thread write the record to its default path and report that on
// stderr, whatever the process is waiting for. The first call counts. Nothing is done if SIGUSR2
// has another handler already, or is ignored. `recorder` must outlive the process's last signal.
void dump_on_signal(FlightRecorder& recorder);

}  // namespace ringcomm
