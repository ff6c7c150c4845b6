// SPDX-License-Identifier: Apache-2.0
// What `powerccl run` and the processes that it starts beside a job agree on.
//
// Batch systems and users signal every process of a job, and mean the job. The launcher therefore starts its helpers
// with all signals blocked: at no moment can one end them. Such a helper ends with its stdin. One that was started by
// hand ends at the usual signals as well.
#pragma once

#include <signal.h>

// Blocks `ending` for a signalfd, and leaves in it what was not blocked before. Before any thread starts.
static inline void powerccl_take_signals(sigset_t* ending) {
  sigset_t before;
  sigprocmask(SIG_BLOCK, ending, &before);
  for (int number = 1; number < NSIG; ++number)
    if (sigismember(&before, number) == 1) sigdelset(ending, number);
}
