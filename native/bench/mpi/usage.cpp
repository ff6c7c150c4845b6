// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/options.h"

namespace powerccl::bench::mpi {

const char* usage_text() {
  return R"(powerccl-bench-mpi: measure an MPI library, and how its ranks wait

usage: mpiexec -n N powerccl-bench-mpi TEST [options]

TEST
  latency bw bibw         messages between two ranks
  barrier bcast reduce allreduce allgather reduce_scatter alltoall gather
  scatter                 time of each call, averaged over ranks; a barrier
                          follows each call (as in the OSU benchmarks)
  wait                    rank 0 waits in MPI_Recv while rank 1 computes: CPU
                          time used, and how late rank 0 continues
  stencil                 mini-application: Jacobi on slabs, with a halo
                          exchange and an all-reduce in each iteration
Defaults are in parentheses.

sweeps
  -b, --minbytes SIZE     first size (1)
  -e, --maxbytes SIZE     last size (1M)
  -f, --stepfactor N      factor from one size to the next (2)
  -i, --stepbytes SIZE    difference from one size to the next, instead of -f
  -n, --iters N           measured operations (OSU's: fewer above 8 KiB)
  -w, --warmup_iters N    operations before them (OSU's)
  -c, --check N           1: check results; 0: do not (1)
      --window N          messages in flight for bw and bibw (64)
      --back-to-back N    time N calls together, without barriers (1)
      --compute-us X      microseconds that each rank computes before each
                          operation (0)
      --imbalance-us X    extra microseconds of the last rank; those between
                          compute a part of them (0)
      --imbalance-pct X   the same, in percent of --compute-us

wait
      --wait-us X         microseconds that rank 1 computes (1000000)
      --repeat N          number of waits (5)
      --collective        all ranks wait for the last one in MPI_Barrier

stencil
      --step-us X         microseconds of computation per iteration (20000);
                          calibrated, unless --sweeps is given
      --sweeps N          sweeps over a rank's rows per iteration; the work is
                          then the same in all runs
      --imbalance-pct X   extra work of the last rank, in percent (0)
      --iterations N      number of iterations (50)
      --rows N            rows of a rank's slab (128)
      --columns N         columns of a rank's slab (512)
      --halo HOW          sendrecv, or isend (Irecv, Isend, Waitall)

all
      --json FILE         write all results as one object
                          (native/bench/README.md)
      --library FILE      MPI library (POWERCCL_BENCH_MPI_LIBRARY, else the
                          launcher's)

exit codes: 0 success; 1 wrong results; 2 wrong usage; 3 something is missing;
            4 a rank failed
)";
}

}  // namespace powerccl::bench::mpi
