// Threads that share out one phase of work after another. A phase is over when its work is done, not when every thread
// has arrived: a thread that the system has taken off its processor between two pieces of work is not waited for.
#pragma once

#include <atomic>
#include <memory>
#include <sched.h>
#include <type_traits>

class Crew {
  public:
    // Work may come in `groups`: each thread has one that it begins with, phase after phase, and helps with the others when
    // that is done. What a group's pieces read and write then stays, mostly, in the caches of the same cores.
    explicit Crew(int phases, int groups = 1)
        : groups_(groups), taken_(new Counter[phases * groups]), done_(new Counter[phases]) {}

    // Take pieces 0..pieces-1 of each group in turn, as long as there are any, then wait until the others have finished
    // theirs. Each thread calls `prepare` before its first piece, and may read there what earlier phases wrote.
    template <class Prepare, class Work>
    void share(int phase, int pieces, Prepare prepare, Work work, int first_group = 0) {
        std::atomic<int>& done = done_[phase].count;
        bool prepared = false;
        for (int n = 0; n < groups_; n++) {
            const int group = (first_group + n) % groups_;
            std::atomic<int>& taken = taken_[phase * groups_ + group].count;
            for (int piece; (piece = taken.fetch_add(1, std::memory_order_acq_rel)) < pieces;) {
                if (!prepared) prepare();
                prepared = true;
                if constexpr (std::is_invocable_v<Work, int, int>) work(group, piece);
                else work(piece);
                done.fetch_add(1, std::memory_order_acq_rel);
            }
        }
        for (int turns = 0; done.load(std::memory_order_acquire) < pieces * groups_; turns++)
            if (turns > 10000) sched_yield();  // somebody else's turn on this processor: perhaps whom we wait for
    }

  private:
    struct alignas(64) Counter {
        std::atomic<int> count{0};
    };
    const int groups_;
    std::unique_ptr<Counter[]> taken_, done_;
};
