// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "bench/mpi/report.h"
#include "bench/values.h"

namespace powerccl::bench::mpi {
namespace {

void complain(const Failure& failure) {
  if (*failure.what() == '\0') return;
  std::fprintf(stderr, "powerccl-bench-mpi: error: %s\n", failure.what());
  if (!failure.hint().empty()) std::fprintf(stderr, "hint: %s\n", failure.hint().c_str());
}

void run_test(const Options& options, const Mpi& mpi, Report& report) {
  const bool collective = options.test == Test::kBarrier || info_of(options.test).pattern;
  if (collective) return run_collective(options, mpi, report);
  if (options.test == Test::kWait) return run_wait(options, mpi, report);
  if (options.test == Test::kStencil) return run_stencil(options, mpi, report);
  run_point_to_point(options, mpi, report);
}

int run(int argc, char** argv) {
  const Launcher launcher = find_launcher([](const char* name) -> const char* { return std::getenv(name); }, true);
  Options options;
  try {
    options = parse_options(argc, argv);
  } catch (const Failure& failure) {
    if (launcher.rank == 0) complain(failure);
    return failure.code();
  }
  if (!options.says.empty()) {
    if (launcher.rank == 0) std::fputs(options.says.c_str(), stdout);
    return kExitOk;
  }
  if (options.library.empty()) options.library = environment("POWERCCL_BENCH_MPI_LIBRARY");
  // Never destroyed: an MPI library does not survive what happens to it after main.
  Mpi* mpi = nullptr;
  try {
    mpi = new Mpi(launcher, options.library, &argc, &argv);
  } catch (const Failure& failure) {
    if (launcher.rank == 0) complain(failure);
    return failure.code();
  }
  Report report(options, *mpi);
  int code = kExitOk;
  try {
    run_test(options, *mpi, report);
    report.conclude();
    code = report.wrong() ? kExitWrongElements : kExitOk;
  } catch (const Failure& failure) {
    // All ranks find the same fault before they communicate, except for a file that rank 0 cannot write.
    if (mpi->leads()) complain(failure);
    code = failure.code();
  }
  mpi->call().finalize();
  return code;
}

}  // namespace
}  // namespace powerccl::bench::mpi

int main(int argc, char** argv) {
  try {
    return powerccl::bench::mpi::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "powerccl-bench-mpi: error: %s\n", error.what());
    return powerccl::bench::kExitRankFailed;
  }
}
