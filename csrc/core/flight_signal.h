// SIGUSR2 writes the flight record, whatever the process is waiting for.
#pragma once

#include "core/flight_recorder.h"

namespace ringcomm {

// From now on, SIGUSR2 makes a thread write the record to its default path and say so on stderr.
// The first call counts. Nothing is done where somebody else handles SIGUSR2, or ignores it.
// `recorder` must live for ever.
void dump_on_signal(FlightRecorder& recorder);

}  // namespace ringcomm
