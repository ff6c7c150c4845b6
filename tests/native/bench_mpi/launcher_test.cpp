// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/launcher.h"

#include <gtest/gtest.h>

#include <map>

namespace powerccl::bench::mpi {
namespace {

Launcher launcher_of(const std::map<std::string, std::string>& environment) {
  return find_launcher(
      [&](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      false);
}

TEST(Launcher, NoneMeansOneRank) {
  const Launcher launcher = launcher_of({});
  EXPECT_EQ(launcher.kind, LauncherKind::kNone);
  EXPECT_EQ(launcher.ranks, 1);
  EXPECT_TRUE(launcher.folders.empty());
}

TEST(Launcher, HydraAnnouncesByPmi) {
  const Launcher launcher = launcher_of({{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"PMI_FD", "9"}});
  EXPECT_EQ(launcher.kind, LauncherKind::kPmi);
  EXPECT_EQ(launcher.ranks, 4);
  EXPECT_EQ(launcher.rank, 3);
}

TEST(Launcher, OpenMpiIsKnownThoughItSetsPmixToo) {
  const Launcher launcher = launcher_of({{"OMPI_COMM_WORLD_SIZE", "2"},
                                         {"OMPI_COMM_WORLD_RANK", "1"},
                                         {"PMIX_RANK", "1"},
                                         {"PMI_SIZE", "8"},
                                         {"OPAL_PREFIX", "/opt/mpi"}});
  EXPECT_EQ(launcher.kind, LauncherKind::kOpenMpi);
  EXPECT_EQ(launcher.ranks, 2);
  EXPECT_EQ(launcher.folders, std::vector<std::string>{"/opt/mpi/lib"});
}

TEST(Launcher, PmixAloneIsKnown) {
  const Launcher launcher = launcher_of({{"PMIX_RANK", "5"}, {"SLURM_STEP_NUM_TASKS", "6"}});
  EXPECT_EQ(launcher.kind, LauncherKind::kPmix);
  EXPECT_EQ(launcher.ranks, 6);
}

TEST(Launcher, NonsenseIsTakenForOneRank) {
  EXPECT_EQ(launcher_of({{"PMI_SIZE", "many"}}).ranks, 1);
  EXPECT_EQ(launcher_of({{"PMI_SIZE", "-3"}}).ranks, 1);
  EXPECT_EQ(launcher_of({{"PMI_SIZE", ""}}).ranks, 1);
}

TEST(Candidates, TheLaunchersOwnComeFirst) {
  const auto open = library_candidates(launcher_of({{"OMPI_COMM_WORLD_SIZE", "2"}}), "");
  EXPECT_EQ(open.front(), "libmpi.so.40");
  const auto hydra = library_candidates(launcher_of({{"PMI_SIZE", "2"}}), "");
  EXPECT_EQ(hydra.front(), "libmpi.so.12");
  EXPECT_EQ(open.size(), hydra.size());
}

TEST(Candidates, ANamedLibraryIsTheOnlyOne) {
  const auto named = library_candidates(launcher_of({{"PMI_SIZE", "2"}}), "/opt/libmpi.so");
  EXPECT_EQ(named, std::vector<std::string>{"/opt/libmpi.so"});
}

TEST(Mismatch, IsSaidWithBothNumbers) {
  const Launcher launcher = launcher_of({{"PMI_SIZE", "4"}});
  EXPECT_EQ(size_mismatch(launcher, 4, "libmpi.so.12"), "");
  const std::string wrong = size_mismatch(launcher, 1, "libmpi.so.40");
  EXPECT_NE(wrong.find("4 processes"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("libmpi.so.40"), std::string::npos) << wrong;
  EXPECT_EQ(size_mismatch(launcher_of({}), 1, "libmpi.so.40"), "");
}

}  // namespace
}  // namespace powerccl::bench::mpi
