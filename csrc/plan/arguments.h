// The checks that every plan generator makes on what it is given.
#pragma once

namespace ringcomm {

// Throw std::invalid_argument, naming what was passed and what is allowed, unless
// 1 <= world_size <= 2^30, 0 <= rank < world_size and 0 <= root < world_size. Up to 2^30 the sum of
// two ranks fits an int.
void check_rank(int rank, int world_size);
void check_root(int root, int world_size);

// Throws std::invalid_argument unless an int holds the square of world_size, the number of chunks
// of an all-to-all.
void check_square(int world_size);

// Throws std::invalid_argument unless ranks_per_host is a positive divisor of world_size.
void check_ranks_per_host(int ranks_per_host, int world_size);

}  // namespace ringcomm
