// The hierarchical plan: a ring inside each host, and rings across the hosts.
//
// A ring around all ranks moves everything at the pace of its slowest link, the one between hosts.
// Here only what a host has already summed up crosses it. With L ranks on each of H hosts, rank
// h*L + l is the l-th on host h. The ranks stand in a grid whose rows and columns are rings, here
// of 2 hosts of 3 ranks:
//
//                 column 0      column 1      column 2
//
//      host 0      rank 0 -----> rank 1 -----> rank 2 -----> back to rank 0
//                    |             |             |
//                    v             v             v
//      host 1      rank 3 -----> rank 4 -----> rank 5 -----> back to rank 3
//                    |             |             |
//                    v             v             v
//                 rank 0        rank 1        rank 2
//
// The H*L chunks fall into L parts of H chunks: part l is what the column l moves, and in it one
// chunk belongs to each host. All-reduce is reduce-scatter, then all-gather, in four phases:
//
//      phase               ring of     steps    sends in each step
//
//      reduce-scatter      the host     L-1     one part, H chunks
//      reduce-scatter      the column   H-1     one chunk of the own part
//      all-gather          the column   H-1     one chunk of the own part
//      all-gather          the host     L-1     one part, H chunks
//
// Each phase is plan/ring.h's with another unit: position l of L with parts, then position h of H
// with the chunks of part l.
//
// Invariant. After the first phase rank (h, l) holds part l summed over host h. After the second
// it holds its chunk of part l summed over column l of such sums, hence over all ranks. After the
// third it holds part l complete, after the fourth everything. Each chunk is summed along one path:
// all ranks end with the same bits.
//
// Cost of all-reduce, for nbytes on each rank:
//
//      inside a host    2 (L-1)/L * nbytes        in  2 (L-1)  latencies
//      across hosts     2 (H-1)/H * nbytes/L      in  2 (H-1)  latencies
//
// sent by each rank. Together that is the flat ring's volume, 2 (n-1)/n * nbytes, of which less
// than an L-th part crosses hosts, in 2 (H+L-2) instead of 2 (H*L-1) latencies.
//
// Which chunks make up part l? An all-reduce is free to choose: chunks l*H, ..., l*H + H-1, so that
// a part is one range. Reduce-scatter and all-gather promise chunk r to rank r, so that their part
// l is the chunks l, L+l, 2L+l, ..., and a step inside the host sends H ranges.
//
// H. Mikami, H. Suganuma, P. U-chupala, Y. Tanaka, Y. Kageyama: Massively distributed SGD:
// ImageNet/ResNet-50 training in a flash. arXiv:1811.05233, 2018 (there the "2D-torus all-reduce").
#pragma once

#include "plan/plan.h"

namespace ringcomm {

// world_size chunks. ranks_per_host consecutive ranks share a host. Throw std::invalid_argument for
// a rank outside of 0 ... world_size-1 and for a ranks_per_host that does not divide world_size.

// Before: all chunks on every rank. After: chunk r on rank r is the sum, the others are partial.
Plan hierarchical_reduce_scatter(int rank, int world_size, int ranks_per_host);

// Before: chunk r on rank r. After: all chunks on every rank.
Plan hierarchical_all_gather(int rank, int world_size, int ranks_per_host);

// The four phases, with parts of consecutive chunks.
Plan hierarchical_all_reduce(int rank, int world_size, int ranks_per_host);

}  // namespace ringcomm
