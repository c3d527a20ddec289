// Shows executors' spans to torch's profilers.
#pragma once

namespace ringcomm {

// To be called when the module is loaded.
void show_spans_to_torch();

}  // namespace ringcomm
