// Proof that plans do what their collective promises, for all ranks together and before any byte is
// moved: every send has its receive, no contribution is lost or counted twice, every rank ends with
// what it was promised, and no order of execution can deadlock.
//
// The plans are carried out on symbols: a chunk holds the set of ranks whose contributions it is
// made of. A reducing receive unites two sets, which must be disjoint; a copying one replaces the
// set. A step's sends read what the chunks held before the step's receives.
//
// They are carried out under rendezvous, the least that any transport offers: a transfer happens
// when both its ends have begun their step, a step is done when all its transfers are, and only
// then does the rank begin its next one. One order of execution stands for all, for two reasons.
//   - Transfers are paired in advance (plan/rendezvous.h), and beginning a step never keeps another
//     from beginning: whatever can happen stays possible until it happens. So every order of
//     execution carries out the same transfers, and if one gets stuck, all do, at the same place.
//   - A transfer reads its sender's chunks at the beginning of the sender's step and writes its
//     receiver's at the end of the receiver's, so its contents do not depend on the order either.
// A transport that buffers sends only lets ranks run further ahead.
//
// How much may the plans of a group hold? All that looks at them (verify, compile,
// bitwise_difference) takes time and memory for three numbers, whatever the plans do:
//
//     messages   a chunk of a send or of a receive; none at all counts as one
//     steps      of all ranks, empty ones too
//     values     pairs of a rank and a chunk that is promised to it
//
// compile (plan/program.h) needs the most, up to 400 bytes and a microsecond for each: an action
// with its two ends, its place in the wiring, and what sorting copies. With at most 2^21 of each
// this comes to 1 GB and to two seconds, and a group waits for minutes before it gives up. A ring
// or a direct exchange of up to 1024 ranks fits. All is counted before anything of that length is
// allocated. The library's own algorithms are compiled for groups of any size: what they hold is
// known.
#pragma once

#include <functional>
#include <vector>

#include "plan/collective.h"
#include "plan/plan.h"

namespace ringcomm {

// Throws PlanError if the plans of all ranks hold more than 2^21 of any of the three, and what
// check_plan throws. The contract is for as many ranks, and as many chunks as rank 0's plan has.
void check_bounds(const Contract& contract, const std::vector<Plan>& plans);

// plans[r] is rank r's. Throws PlanError, naming rank, step and chunk, at the first thing wrong,
// what check_bounds throws, and std::invalid_argument for a root outside of the group or a number
// of chunks that the collective cannot have. `root` is ignored by collectives without one.
void verify(Collective collective, const std::vector<Plan>& plans, int root = 0);

// As verify, for groups whose plans do not fit in memory together: plan_of is asked rank by rank,
// and only transfers that touch one of `chunks` are followed. It proves what becomes of these
// chunks, and that their transfers alone cannot deadlock. Throws std::invalid_argument also for a
// chunk that the plans do not have, hence for any barrier.
void verify_chunks(Collective collective, int world_size,
                   const std::function<Plan(int rank)>& plan_of, std::vector<int> chunks,
                   int root = 0);

}  // namespace ringcomm
