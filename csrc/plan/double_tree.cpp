#include "plan/double_tree.h"

#include <bit>

#include "plan/arguments.h"
#include "plan/compose.h"

namespace ringcomm {
namespace {

constexpr int kNoPosition = 0;

int largest_power_of_two(int n) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
}

int floor_log2(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }

// Where a position is in the tree over the positions 1, ..., size.
struct Place {
  int depth = 0;
  int parent = kNoPosition;  // of the root
  std::vector<int> children;
};

Place find(int position, int size) {
  Place place;
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
struct Trees {
  int world_size;
  int first;
  int size;

  int height() const { return floor_log2(size); }

  // `tree`, 0 or 1, is how far to the left everyone stands, and the number of its chunk.
  int position(int rank, int tree) const {
    return ((rank - first + world_size) % world_size - tree + size) % size + 1;
  }
  int rank_at(int position, int tree) const {
    return (first + (position - 1 + tree) % size) % world_size;
  }
  int root(int tree) const { return rank_at(largest_power_of_two(size), tree); }
};

Trees over_all(int world_size) { return {world_size, 0, world_size}; }

Trees over_all_but(int root, int world_size) {
  return {world_size, (root + 1) % world_size, world_size - 1};
}

// Towards the roots of the trees, in height() steps.
Plan up(int rank, const Trees& trees) {
  Plan plan{.num_chunks = 2, .steps = {}};
  plan.steps.resize(trees.height());
  for (const int tree : {0, 1}) {
    const Place place = find(trees.position(rank, tree), trees.size);
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
Plan reversed(const Plan& plan) {
  Plan result{.num_chunks = plan.num_chunks, .steps = {}};
  for (auto step = plan.steps.rbegin(); step != plan.steps.rend(); ++step) {
    result.steps.push_back({.sends = step->recvs, .recvs = step->sends});
    for (Transfer& send : result.steps.back().sends) send.reduce = false;
  }
  return result;
}

// One step, in which the roots of the trees hand their chunks to the root of all.
Plan to_root(int rank, const Trees& trees, int root) {
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

}  // namespace

Plan double_tree_all_reduce(int rank, int world_size) {
  check_rank(rank, world_size);
  const Plan reduce = up(rank, over_all(world_size));
  return then(reduce, reversed(reduce));
}

std::vector<Phase> double_tree_all_reduce_phases(int world_size) {
  const int height = over_all(world_size).height();
  return {{"reduce", height}, {"broadcast", height}};
}

Plan double_tree_reduce(int rank, int world_size, int root) {
  check_rank(rank, world_size);
  check_root(root, world_size);
  if (world_size == 1) return {.num_chunks = 2, .steps = {}};
  const Trees trees = over_all_but(root, world_size);
  Plan inside{.num_chunks = 2, .steps = {}};
  inside.steps.resize(trees.height());
  if (rank != root) inside = up(rank, trees);
  return then(inside, to_root(rank, trees, root));
}

Plan double_tree_broadcast(int rank, int world_size, int root) {
  return reversed(double_tree_reduce(rank, world_size, root));
}

}  // namespace ringcomm
