// The schedules of one rank, each made when it is first wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reduce/reduction.h"
#include "streams/schedule.h"

namespace ringcomm::streams {

// Programs are known by their addresses, and must outlive this. Which chunks have an input and an
// output on this rank is the program's affair.
class Schedules {
 public:
  Schedules(int rank, const Layout& layout) : rank_(rank), layout_(layout) {}

  // Stays as it is until the next call.
  const Schedule& find(const Program& program, std::span<const Chunk> chunks,
                       const Reduction& reduction);

 private:
  static constexpr std::size_t kMost = 64;

  struct Shape {
    std::size_t count;
    bool in_place;  // the input is the output

    bool operator==(const Shape&) const = default;
  };
  struct Entry {
    const Program* program;
    std::size_t element_nbytes;
    bool scales;
    std::vector<Shape> shapes;  // of the chunks
    Schedule schedule;
    std::uint64_t last_use;

    bool is_for(const Program& wanted, std::span<const Chunk> chunks, std::size_t nbytes,
                bool with_scaling) const;
  };

  static Shape shape_of(const Chunk& chunk) { return {chunk.count, chunk.input == chunk.output}; }
  Entry& vacant();

  const int rank_;
  const Layout layout_;
  std::vector<Entry> entries_;
  std::uint64_t num_uses_ = 0;
};

}  // namespace ringcomm::streams
