// Streams for what ranks write to each other. They throw where memory is short: those of the
// standard library leave out what they have no memory for, and say nothing.
#pragma once

#include <sstream>
#include <string>

namespace ringcomm {

struct TextWriter : std::ostringstream {
  TextWriter() { exceptions(std::ios::badbit); }
};

struct TextReader : std::istringstream {
  explicit TextReader(const std::string& text) : std::istringstream(text) {
    exceptions(std::ios::badbit);
  }
};

}  // namespace ringcomm
