// Bruck's algorithms: all-gather and all-to-all in ceil(log2 n) steps, for any number of ranks.
//
// All-gather. In step k = 0, 1, ... every rank gets from the one 2^k ahead all that this has, so
// that what it has doubles. Which chunks each of 5 ranks has:
//
//                        rank 0         rank 1         rank 2         rank 3         rank 4
//
//      before            0              1              2              3              4
//      from r+1          0 1            1 2            2 3            3 4            4 0
//      from r+2          0 1 2 3        1 2 3 4        2 3 4 0        3 4 0 1        4 0 1 2
//      from r+4          all: one chunk is left, and only that is sent
//
// All arithmetic on ranks is modulo n. In step k rank r sends to rank r - 2^k the chunks r, ...,
// r+m-1, where m is 2^k, or n - 2^k if that is less, and receives from rank r + 2^k as many from
// that rank's on.
//
// Invariant of all-gather: after step k rank r holds the chunks r, ..., r + 2^(k+1) - 1, or all.
//
// All-to-all. What rank i has for rank j has to travel d = j-i ranks ahead. It does so by the
// binary digits of d: in step k it moves on by 2^k if digit k of d is one. What rank 0 has for rank
// 5 of 8, as 5 = 1 + 4, and what it has for rank 6, as 6 = 2 + 4:
//
//                      step 0                  step 1                  step 2
//
//      for rank 5      rank 0 ---> rank 1                              rank 1 ---> rank 5
//      for rank 6                              rank 0 ---> rank 2      rank 2 ---> rank 6
//
// In step k rank r sends to rank r + 2^k, for every d below n with digit k set, what has that far
// to go and is here now: it comes from rank i = r - (d mod 2^k), and goes to i + d.
//
// Invariant of all-to-all: after step k, what rank i has for rank i+d is on rank i + (d mod
// 2^(k+1)).
//
// Cost, for nbytes of the whole result (all-gather) or of the input (all-to-all) on each rank:
//
//      all-gather    (n-1)/n * nbytes  sent by each rank, and  ceil(log2 n)  latencies
//      all-to-all    at most half of nbytes in each step, and  ceil(log2 n)  latencies
//
// The all-gather sends no more than any other; each step reaches further, though, where a ring only
// ever talks to neighbours. In the all-to-all a rank talks to ceil(log2 n) others instead of n-1,
// for up to log2(n) / 2 times the volume. This suits small buffers in large groups, on transports
// that send what goes to one peer in one step as one message: in a plan it is up to n/2 transfers,
// since the chunks are not side by side. Ranks pass on what is not theirs, so they must have room
// for it and, where chunks differ in size, know the sizes of all.
//
// J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: Efficient algorithms for all-to-all
// communications in multiport message-passing systems. IEEE Transactions on Parallel and
// Distributed Systems 8(11), 1143-1156, 1997. There blocks are moved to where the next step finds
// them side by side; here a chunk has one place in every rank's buffer.
#pragma once

#include <algorithm>

#include "plan/plan.h"

namespace ringcomm {

// A world_size of 1 needs no steps.

// The chunks first, ..., first+count-1 modulo num_chunks, in one range or two.
inline std::vector<Transfer> around(int peer, int first, int count, int num_chunks) {
  const int before_end = std::min(count, num_chunks - first);
  std::vector<Transfer> result = {{peer, first, before_end}};
  if (before_end < count) result.push_back({peer, 0, count - before_end});
  return result;
}

// world_size chunks. Before: chunk r on rank r. After: all chunks on every rank.
inline Plan bruck_all_gather(int rank, int world_size) {
  const int n = world_size;
  Plan plan{.num_chunks = n, .steps = {}};
  for (int distance = 1; distance < n; distance *= 2) {
    const int behind = (rank - distance + n) % n;
    const int ahead = (rank + distance) % n;
    const int count = std::min(distance, n - distance);
    plan.steps.push_back(
        {.sends = around(behind, rank, count, n), .recvs = around(ahead, ahead, count, n)});
  }
  return plan;
}

// world_size*world_size chunks, of which chunk i*world_size + j is what rank i has for rank j.
// Before: chunks r*world_size + j on rank r. After: also chunks i*world_size + r; others are
// what was passed on. Throws std::invalid_argument above a world_size of 46340, whose square an
// int does not hold.
inline Plan bruck_all_to_all(int rank, int world_size) {
  check_square(world_size);
  const int n = world_size;
  Plan plan{.num_chunks = n * n, .steps = {}};
  for (int distance = 1; distance < n; distance *= 2) {
    const int behind = (rank - distance + n) % n;
    const int ahead = (rank + distance) % n;
    // What is on `holder` before this step and has `total` ranks to go from where it began.
    const auto chunk = [&](int holder, int total) {
      const int from = (holder - total % distance + n) % n;
      return from * n + (from + total) % n;
    };
    Step& step = plan.steps.emplace_back();
    for (int total = distance; total < n; ++total) {
      if (!(total & distance)) continue;
      step.sends.push_back({ahead, chunk(rank, total), 1});
      step.recvs.push_back({behind, chunk(behind, total), 1});
    }
  }
  return plan;
}

}  // namespace ringcomm
