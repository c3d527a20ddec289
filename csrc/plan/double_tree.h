// The double binary tree: reduction up, and broadcast down, two trees at once.
//
// In a binary tree half of the ranks are leaves, which receive and never pass on: half of the links
// idle. So there are two trees over the same ranks, each for one half of the buffer, and an
// inner node of one tree is a leaf of the other. For 7 ranks:
//
//           first tree, chunk 0             second tree, chunk 1
//
//              .---- 3 ----.                    .---- 4 ----.
//              |           |                    |           |
//            .-1-.       .-5-.                .-2-.       .-6-.
//            |   |       |   |                |   |       |   |
//            0   2       4   6                1   3       5   0
//
// The first tree has its nodes in order, from left to right: rank r is at position r+1 of the
// positions 1, ..., n. The root of a range of m positions is the largest power of two, 2^k <= m,
// counted from its beginning; left of it is a complete tree, and right of it a tree of the m - 2^k
// positions that are left. All odd positions are leaves, and no even one is. The second tree is the
// same, with everyone one position further to the left, and rank 0, which falls off, at the end. So
// a position that was odd is even, and only rank 0 can be a leaf of both.
//
// Both trees have a height of h = floor(log2 n). All-reduce, where d is a rank's depth in a tree:
//
//      reduce       step h-d           sends the tree's chunk to its parent
//                   step h-d-1         receives it from its children, and adds
//      broadcast    step h+d-1         receives the tree's chunk from its parent
//                   step h+d           sends it to its children
//
// Invariant. When a rank sends a chunk upwards, it holds the sum over its subtree, as its children,
// one deeper, have sent theirs a step before. The root's is the sum over all ranks. When it sends a
// chunk downwards, it has received this from its parent a step before. Each chunk is summed along
// one tree: all ranks end with the same bits.
//
// Cost of all-reduce, for nbytes on each rank: an inner node passes on half of the buffer up once
// and down twice, and a leaf up once, so that a rank sends at most
//
//      2 * nbytes  in  2 floor(log2 n)  latencies.
//
// An executor that forwards slice k while slice k+1 arrives keeps all links busy from the first to
// the last, as in a chain (plan/chain.h): then large buffers take the time of the ring, whose
// latencies grow with n.
//
// Broadcast and reduce with a given root have the trees over the other n-1 ranks, in their order
// from root+1 on. The root feeds each half to the root of its tree in a first step, or receives it
// in a last one: each rank sends and receives at most nbytes, in floor(log2 (n-1)) + 1 latencies.
//
// P. Sanders, J. Speck, J. L. Traeff: Two-tree algorithms for full bandwidth broadcast, reduction
// and scan. Parallel Computing 35(12), 581-594, 2009.
#pragma once

#include <vector>

#include "plan/phase.h"
#include "plan/plan.h"

namespace ringcomm {

// Two chunks, one for each tree; a world_size of 1 needs no steps. Throw std::invalid_argument for
// a rank or root outside of 0 ... world_size-1.

// Before: every rank's buffer. After: the sum on every rank.
Plan double_tree_all_reduce(int rank, int world_size);
std::vector<Phase> double_tree_all_reduce_phases(int world_size);

// Before: the root's buffer. After: the same on every rank.
Plan double_tree_broadcast(int rank, int world_size, int root);

// Before: every rank's buffer. After: the sum on the root, partial sums on the other ranks.
Plan double_tree_reduce(int rank, int world_size, int root);

}  // namespace ringcomm
