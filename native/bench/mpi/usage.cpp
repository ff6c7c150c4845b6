// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/options.h"

namespace powerccl::bench::mpi {

const char* usage_text() {
  return R"(powerccl-bench-mpi: latency and bandwidth of an MPI library, and how its ranks wait

usage: mpiexec -n N powerccl-bench-mpi TEST [options]

TEST
  latency bw bibw              between two ranks
  barrier bcast reduce allreduce allgather reduce_scatter alltoall gather scatter
                               each call's time, averaged over ranks; a barrier after each (OSU's conventions)
  wait                         rank 0 waits in MPI_Recv while rank 1 computes: CPU time used, and how late it goes on
  stencil                      a mini-application: Jacobi on slabs, halo exchange, an all-reduce each iteration

sweeps
  -b, --minbytes SIZE     first size (1)              -e, --maxbytes SIZE   last size (1M)
  -f, --stepfactor N      next size is N times (2)    -i, --stepbytes SIZE  next size is so much more
  -n, --iters N           operations measured (OSU's: fewer above 8 KiB)
  -w, --warmup_iters N    operations before that (OSU's)
  -c, --check N           0: leave results unchecked (1)
      --window N          messages in flight for bw and bibw (64)
      --back-to-back N    time N calls at once and leave the barriers out (1)
      --compute-us X      each rank computes so long before each operation (0)
      --imbalance-us X    the last rank computes X longer, those between a part of it (0)
      --imbalance-pct X   the same, in percent of --compute-us

wait
      --wait-us X         how long rank 1 computes (1000000)      --repeat N    how often (5)
      --collective        all ranks wait for the last one in MPI_Barrier instead

stencil
      --step-us X         computation in an iteration (20000), found by calibration unless --sweeps is given
      --sweeps N          sweeps over a rank's rows in one iteration: the same work in every run
      --imbalance-pct X   the last rank has so much more to do (0)
      --iterations N      (50)      --rows N  --columns N   of a rank's slab (128, 512)
      --halo HOW          sendrecv, or isend (Irecv, Isend, Waitall)

all
      --json FILE         all results as one object (native/bench/README.md says what is in it)
      --library FILE      the MPI library (else POWERCCL_BENCH_MPI_LIBRARY, else the launcher's)

exit codes: 0 fine, 1 wrong results, 2 wrong use, 3 something is missing, 4 a rank failed
)";
}

}  // namespace powerccl::bench::mpi
