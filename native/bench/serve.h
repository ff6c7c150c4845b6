// SPDX-License-Identifier: Apache-2.0
// A server of trials: ranks keep their processes and CUDA contexts, and each trial has an instance of NCCL of its own,
// which reads its variables anew. The supervisor reads requests on stdin and replies on stdout (README.md).
#ifndef POWERCCL_BENCH_SERVE_H
#define POWERCCL_BENCH_SERVE_H
#include "bench/options.h"
#include "bench/report.h"

namespace powerccl::bench {

// Runs until the client has had enough. Returns kExitOk, or throws the Failure that ended it.
int serve(const Options& options, const Setting& setting);

}  // namespace powerccl::bench
#endif
