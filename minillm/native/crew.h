// Threads that share out one phase of work after another. A phase is over when its work is done, not when every thread
// has arrived: a thread that the system has taken off its processor between two pieces of work is not waited for.
#pragma once

#include <atomic>
#include <memory>
#include <sched.h>

class Crew {
  public:
    explicit Crew(int phases) : phases_(new Phase[phases]) {}

    // Take pieces 0..pieces-1 in turn, as long as there are any, then wait until the others have finished theirs. Each
    // thread calls `prepare` before its first piece, and may read there what earlier phases wrote.
    template <class Prepare, class Work> void share(int phase, int pieces, Prepare prepare, Work work) {
        Phase& state = phases_[phase];
        bool prepared = false;
        for (int piece; (piece = state.taken.fetch_add(1, std::memory_order_acq_rel)) < pieces;) {
            if (!prepared) prepare();
            prepared = true;
            work(piece);
            state.done.fetch_add(1, std::memory_order_acq_rel);
        }
        for (int turns = 0; state.done.load(std::memory_order_acquire) < pieces; turns++)
            if (turns > 10000) sched_yield();  // somebody else's turn on this processor: perhaps whom we wait for
    }

  private:
    struct alignas(64) Phase {
        std::atomic<int> taken{0};
        alignas(64) std::atomic<int> done{0};
    };
    std::unique_ptr<Phase[]> phases_;
};
