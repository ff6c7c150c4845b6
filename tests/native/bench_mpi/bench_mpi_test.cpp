// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../bench/refusal.h"
#include "bench/mpi/report.h"

namespace powerccl::bench::mpi {
namespace {

TEST(Abi, IsToldFromWhatALibraryExports) {
  EXPECT_EQ(abi_of_library(false, -1), AbiKind::kMpich);
  EXPECT_EQ(abi_of_library(false, 0), AbiKind::kMpich);
  EXPECT_EQ(abi_of_library(true, -1), AbiKind::kOpenMpi);
  EXPECT_EQ(abi_of_library(false, 1), AbiKind::kStandard);
  EXPECT_EQ(abi_of_library(true, 1), AbiKind::kStandard);
}

TEST(Abi, HandlesDifferFromEachOther) {
  Handles named{};
  Handle next = 1;
  for (const HandleSymbol& each : kOpenMpiSymbols) named.*each.handle = next++;
  for (const Handles& h : {abi_of(AbiKind::kMpich).handles, abi_of(AbiKind::kStandard).handles, named}) {
    const std::set<Handle> all{h.world, h.byte, h.float32, h.float64, h.sum};
    EXPECT_EQ(all.size(), 5u);
    EXPECT_FALSE(all.contains(0));
  }
  EXPECT_EQ(abi_of(AbiKind::kOpenMpi).handles.world, 0u);
}

// In MPICH's ABI the size of a datatype stands in its handle: byte 1. In the standard's, those whose size the platform
// does not choose have its logarithm in bits 3 to 5.
TEST(Abi, DatatypesSayTheirSize) {
  const Handles& mpich = abi_of(AbiKind::kMpich).handles;
  const auto size = [](Handle type) { return (type >> 8) & 0xff; };
  EXPECT_EQ(size(mpich.byte), 1u);
  EXPECT_EQ(size(mpich.float32), sizeof(float));
  EXPECT_EQ(size(mpich.float64), sizeof(double));
  EXPECT_EQ(Handle{1} << ((abi_of(AbiKind::kStandard).handles.byte >> 3) & 7), 1u);
}

TEST(Requests, LieAsCloseAsTheAbiHasThem) {
  Requests ints(abi_of(AbiKind::kMpich), 4);
  EXPECT_EQ(static_cast<char*>(ints.at(3)) - static_cast<char*>(ints.data()), 12);
  Requests pointers(abi_of(AbiKind::kOpenMpi), 4);
  EXPECT_EQ(static_cast<char*>(pointers.at(3)) - static_cast<char*>(pointers.data()), 24);
}

// Handles are passed as words to functions that take ints.
int takes_int(int handle) {
  return handle;
}
TEST(Handles, PassAsInts) {
  const auto as_word = reinterpret_cast<int (*)(Handle)>(reinterpret_cast<void*>(&takes_int));
  EXPECT_EQ(as_word(abi_of(AbiKind::kMpich).handles.world), 0x44000000);
}

Launcher launcher_of(const std::map<std::string, std::string>& environment) {
  return find_launcher(
      [&](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      false);
}

TEST(Launcher, IsKnownByItsVariables) {
  const Launcher none = launcher_of({});
  EXPECT_EQ(none.kind, LauncherKind::kNone);
  EXPECT_EQ(none.ranks, 1);
  EXPECT_TRUE(none.folders.empty());
  const Launcher hydra = launcher_of({{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"PMI_FD", "9"}});
  EXPECT_EQ(hydra.kind, LauncherKind::kPmi);
  EXPECT_EQ(hydra.ranks, 4);
  EXPECT_EQ(hydra.rank, 3);
  // It sets PMIX_* too.
  const Launcher open = launcher_of({{"OMPI_COMM_WORLD_SIZE", "2"},
                                     {"OMPI_COMM_WORLD_RANK", "1"},
                                     {"PMIX_RANK", "1"},
                                     {"PMI_SIZE", "8"},
                                     {"OPAL_PREFIX", "/opt/mpi"}});
  EXPECT_EQ(open.kind, LauncherKind::kOpenMpi);
  EXPECT_EQ(open.ranks, 2);
  EXPECT_EQ(open.rank, 1);
  EXPECT_EQ(open.folders, std::vector<std::string>{"/opt/mpi/lib"});
  const Launcher pmix = launcher_of({{"PMIX_RANK", "5"}, {"SLURM_STEP_NUM_TASKS", "6"}});
  EXPECT_EQ(pmix.kind, LauncherKind::kPmix);
  EXPECT_EQ(pmix.ranks, 6);
  for (const char* nonsense : {"many", "-3", ""}) EXPECT_EQ(launcher_of({{"PMI_SIZE", nonsense}}).ranks, 1);
}

TEST(Candidates, TheLaunchersOwnComeFirstAndANamedOneIsAlone) {
  const auto open = library_candidates(launcher_of({{"OMPI_COMM_WORLD_SIZE", "2"}}), "");
  EXPECT_EQ(open.front(), "libmpi.so.40");
  const auto hydra = library_candidates(launcher_of({{"PMI_SIZE", "2"}}), "");
  EXPECT_EQ(hydra.front(), "libmpi.so.12");
  EXPECT_EQ(open.size(), hydra.size());
  EXPECT_EQ(library_candidates(launcher_of({{"PMI_SIZE", "2"}}), "/opt/libmpi.so"),
            std::vector<std::string>{"/opt/libmpi.so"});
}

TEST(Mismatch, IsSaidWithBothNumbers) {
  const Launcher launcher = launcher_of({{"PMI_SIZE", "4"}});
  EXPECT_EQ(size_mismatch(launcher, 4, "libmpi.so.12"), "");
  const std::string wrong = size_mismatch(launcher, 1, "libmpi.so.40");
  EXPECT_NE(wrong.find("4 processes"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("libmpi.so.40"), std::string::npos) << wrong;
  EXPECT_EQ(size_mismatch(launcher_of({}), 1, "libmpi.so.40"), "");
}

Options parse(const std::string& line) {
  return tests::with_words(line, parse_options);
}

std::string refusal(const std::string& line) {
  return tests::refusal_of([&] { parse(line); }).what;
}

TEST(Options, SweepAsInPowercclBench) {
  const Options options = parse("allreduce -b 8 -e 1K -f 4 -n 50 -w 0 -c 0");
  EXPECT_EQ(options.test, mpi::Test::kAllReduce);
  EXPECT_EQ(sizes_of(options, sizeof(float)), (std::vector<size_t>{8, 32, 128, 512}));
  EXPECT_EQ(iterations_of(options, 8).measured, 50);
  EXPECT_EQ(iterations_of(options, 8).warmup, 0);
  EXPECT_FALSE(options.check);
}

TEST(Options, EveryTestHasItsName) {
  for (const char* name : {"latency", "bw", "bibw", "barrier", "bcast", "reduce", "allreduce", "allgather",
                           "reduce_scatter", "alltoall", "gather", "scatter", "wait", "stencil"}) {
    EXPECT_STREQ(info_of(parse(name).test).name, name);
  }
}

TEST(Options, IterationsAreOsusWhereNotGiven) {
  EXPECT_EQ(iterations_of(parse("latency"), 8192).measured, 10000);
  EXPECT_EQ(iterations_of(parse("latency"), 8193).measured, 1000);
  EXPECT_EQ(iterations_of(parse("bw"), 1).measured, 100);
  EXPECT_EQ(iterations_of(parse("allreduce"), 1).warmup, 100);
  EXPECT_EQ(iterations_of(parse("allreduce"), 1 << 20).measured, 100);
}

TEST(Options, SizesAreWholeElementsAndEachOnce) {
  EXPECT_EQ(sizes_of(parse("allreduce -b 1 -e 16"), 4), (std::vector<size_t>{4, 8, 16}));
  EXPECT_EQ(sizes_of(parse("bcast -b 1 -e 4"), 1), (std::vector<size_t>{1, 2, 4}));
  EXPECT_EQ(sizes_of(parse("bcast -b 0 -e 0"), 1).size(), 1u);
  EXPECT_EQ(sizes_of(parse("bcast -b 10 -e 30 -i 10"), 1), (std::vector<size_t>{10, 20, 30}));
}

TEST(Options, ScenariosHaveTheirOwn) {
  const Options wait = parse("wait --wait-us 100 --repeat 9 --collective");
  EXPECT_EQ(wait.wait.wait_us, 100);
  EXPECT_EQ(wait.wait.repeat, 9);
  EXPECT_TRUE(wait.wait.collective);
  const Options stencil = parse("--imbalance-pct 20 stencil --sweeps 7 --halo isend");
  EXPECT_EQ(stencil.stencil.sweeps, 7);
  EXPECT_FALSE(stencil.stencil.sendrecv);
  EXPECT_EQ(stencil.imbalance_pct, 20);
}

TEST(Options, ImbalanceGrowsWithTheRank) {
  const Options by_time = parse("barrier --imbalance-us 90");
  EXPECT_EQ(by_time.compute_of_us(0, 4), 0);
  EXPECT_EQ(by_time.compute_of_us(1, 4), 30);
  EXPECT_EQ(by_time.compute_of_us(3, 4), 90);
  EXPECT_EQ(by_time.compute_of_us(0, 1), 0);
  const Options by_part = parse("barrier --compute-us 100 --imbalance-pct 20");
  EXPECT_EQ(by_part.compute_of_us(0, 2), 100);
  EXPECT_EQ(by_part.compute_of_us(1, 2), 120);
}

TEST(Options, WrongUseIsNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "no test"},
      {"allredoce", "'allredoce'"},
      {"barrier bcast", "'bcast'"},
      {"barrier --nonsense", "--nonsense"},
      {"wait --wait-us long", "--wait-us"},
      {"wait --repeat 0", "--repeat"},
      {"wait --repeat 1.5", "whole"},
      {"bcast -b 2K -e 1K", "-b"},
      {"bcast -b", "-b"},
      {"bcast -b big", "-b"},
      {"barrier --imbalance-pct 20", "--compute-us"},
      {"stencil --halo rma", "--halo"},
  };
  for (const auto& [line, says] : wrong) EXPECT_NE(refusal(line).find(says), std::string::npos) << line;
}

TEST(Options, HelpNeedsNoTest) {
  EXPECT_NE(parse("--help").says.find("usage: mpiexec"), std::string::npos);
  EXPECT_EQ(parse("--version").says, POWERCCL_BENCH_VERSION "\n");
}

TEST(Spread, HasQuartilesBetweenNeighbours) {
  const std::pair<std::vector<double>, std::vector<double>> known[] = {
      {{5, 1, 4, 2, 3}, {3, 3, 2, 4, 1, 5}}, {{4, 1, 3, 2}, {2.5, 2.5, 1.75, 3.25, 1, 4}}, {{7}, {7, 7, 7, 7, 7, 7}}};
  for (const auto& [values, spread] : known) {
    const auto [mean, median, low, high, min, max] = Spread::of(values);
    EXPECT_EQ((std::vector{mean, median, low, high, min, max}), spread);
  }
}

TEST(Spread, OfNothingIsNullInJson) {
  EXPECT_TRUE(std::isnan(Spread::of({}).median));
  EXPECT_NE(Spread::of({}).json().text.find("\"median\": null"), std::string::npos);
}

TEST(Clock, ComputingTakesItsTimeOfTheCore) {
  const int64_t begin_ns = host_now_ns();
  compute_us(2000);
  EXPECT_GE(host_now_ns() - begin_ns, 2'000'000);
  const int64_t without_ns = host_now_ns();
  compute_us(0);
  EXPECT_LT(host_now_ns() - without_ns, 2'000'000'000);
}

}  // namespace
}  // namespace powerccl::bench::mpi
