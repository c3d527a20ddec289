// What the ranks of a group go by between their hosts: as rank 0 tells all, so that they agree.
#pragma once

#include <string>

#include "plan/network.h"

namespace ringcomm {

struct Between {
  std::string engine = {};  // carries bytes; empty: there is one host, or the ranks leave it open
  Link across = {};

  // A line, without its end.
  std::string text() const;
  // Of such a line.
  static Between read(const std::string& line);
};

}  // namespace ringcomm
