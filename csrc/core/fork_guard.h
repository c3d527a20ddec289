// What a child inherits by fork(): memory that is shared with peers who know nothing of it, and
// threads that do not run. It must leave both alone.
#pragma once

namespace ringcomm {

// Whether this process is the one that made the object, and not a child that inherited it.
class ForkGuard {
 public:
  ForkGuard() : generation_(generation()) {}
  bool is_here() const { return generation_ == generation(); }

 private:
  // The number of forks between this process and the first.
  static int generation();

  const int generation_;
};

}  // namespace ringcomm
