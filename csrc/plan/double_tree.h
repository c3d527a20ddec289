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

#include <bit>

#include "plan/plan.h"

namespace ringcomm {

// Two chunks, one for each tree; a world_size of 1 needs no steps.

inline constexpr int kNoPosition = 0;

inline int largest_power_of_two(int n) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
}

// Where a position is in the tree over the positions 1, ..., size.
struct TreePlace {
  int depth = 0;
  int parent = kNoPosition;  // of the root
  std::vector<int> children;
};

inline TreePlace place_in_tree(int position, int size) {
  TreePlace place;
  // The root is sought in ever smaller ranges, of `size` positions after `before`.
  int before = 0;
  int root = largest_power_of_two(size);
  while (before + root != position) {
    place.parent = before + root;
    ++place.depth;
    if (position < place.parent) {
      size = root - 1;
    } else {
      size -= root;
      before = place.parent;
    }
    root = largest_power_of_two(size);
  }
  const int num_left = root - 1;
  const int num_right = size - root;
  if (num_left > 0) place.children.push_back(before + largest_power_of_two(num_left));
  if (num_right > 0) place.children.push_back(position + largest_power_of_two(num_right));
  return place;
}

// The two trees over `size` ranks: first, first+1, ..., modulo world_size.
struct TwoTrees {
  int world_size;
  int first;
  int size;

  int height() const { return std::bit_width(static_cast<unsigned>(size)) - 1; }

  // `tree`, 0 or 1, is how far to the left everyone stands, and the number of its chunk.
  int position(int rank, int tree) const {
    return ((rank - first + world_size) % world_size - tree + size) % size + 1;
  }
  int rank_at(int position, int tree) const {
    return (first + (position - 1 + tree) % size) % world_size;
  }
  int root(int tree) const { return rank_at(largest_power_of_two(size), tree); }
};

inline TwoTrees over_all(int world_size) { return {world_size, 0, world_size}; }

inline TwoTrees over_all_but(int root, int world_size) {
  return {world_size, (root + 1) % world_size, world_size - 1};
}

// In height() steps.
inline Plan towards_roots(int rank, const TwoTrees& trees) {
  Plan plan{.num_chunks = 2, .steps = {}};
  plan.steps.resize(trees.height());
  for (const int tree : {0, 1}) {
    const TreePlace place = place_in_tree(trees.position(rank, tree), trees.size);
    const int step = trees.height() - place.depth;
    if (place.parent != kNoPosition) {
      plan.steps[step].sends.push_back({trees.rank_at(place.parent, tree), tree, 1});
    }
    for (const int child : place.children) {
      plan.steps[step - 1].recvs.push_back({trees.rank_at(child, tree), tree, 1, /*reduce=*/true});
    }
  }
  return plan;
}

// The same transfers backwards: what was sent is received, and copied.
inline Plan reversed(const Plan& plan) {
  Plan result{.num_chunks = plan.num_chunks, .steps = {}};
  for (auto step = plan.steps.rbegin(); step != plan.steps.rend(); ++step) {
    result.steps.push_back({.sends = step->recvs, .recvs = step->sends});
    for (Transfer& send : result.steps.back().sends) send.reduce = false;
  }
  return result;
}

// One step, in which the roots of the trees hand their chunks to the root of all.
inline Plan from_trees_to_root(int rank, const TwoTrees& trees, int root) {
  Plan plan{.num_chunks = 2, .steps = {{}}};
  for (const int tree : {0, 1}) {
    if (rank == root) {
      plan.steps[0].recvs.push_back({trees.root(tree), tree, 1, /*reduce=*/true});
    } else if (rank == trees.root(tree)) {
      plan.steps[0].sends.push_back({root, tree, 1});
    }
  }
  return plan;
}

// Before: every rank's buffer. After: the sum on every rank.
inline Plan double_tree_all_reduce(int rank, int world_size) {
  const Plan reduce = towards_roots(rank, over_all(world_size));
  return then(reduce, reversed(reduce));
}

inline std::vector<Phase> double_tree_all_reduce_phases(int world_size) {
  const int height = over_all(world_size).height();
  return {{"reduce", height}, {"broadcast", height}};
}

// Before: every rank's buffer. After: the sum on the root, partial sums on the other ranks.
inline Plan double_tree_reduce(int rank, int world_size, int root) {
  if (world_size == 1) return {.num_chunks = 2, .steps = {}};
  const TwoTrees trees = over_all_but(root, world_size);
  Plan inside{.num_chunks = 2, .steps = {}};
  inside.steps.resize(trees.height());
  if (rank != root) inside = towards_roots(rank, trees);
  return then(inside, from_trees_to_root(rank, trees, root));
}

// Before: the root's buffer. After: the same on every rank.
inline Plan double_tree_broadcast(int rank, int world_size, int root) {
  return reversed(double_tree_reduce(rank, world_size, root));
}

}  // namespace ringcomm
