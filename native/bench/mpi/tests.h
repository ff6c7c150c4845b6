// SPDX-License-Identifier: Apache-2.0
// The tests. Each is called by all ranks.
#ifndef POWERCCL_BENCH_MPI_TESTS_H
#define POWERCCL_BENCH_MPI_TESTS_H
#include "bench/mpi/mpi_api.h"
#include "bench/mpi/options.h"
#include "bench/mpi/report.h"

namespace powerccl::bench::mpi {

void run_collective(const Options& options, const Mpi& mpi, Report& report);
void run_point_to_point(const Options& options, const Mpi& mpi, Report& report);
void run_wait(const Options& options, const Mpi& mpi, Report& report);
void run_stencil(const Options& options, const Mpi& mpi, Report& report);

}  // namespace powerccl::bench::mpi
#endif
