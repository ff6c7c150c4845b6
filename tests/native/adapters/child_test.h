// SPDX-License-Identifier: Apache-2.0
// Tests whose bodies run in a process of their own, because the runtime arms once a process.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "../record/trace_reader.h"

namespace powerccl::test {

// A policy table: per-call manages all-reduces and all-to-alls of a MiB and more.
constexpr char kTable[] =
    "powerccl-policy-table 1\nplatform test\ngpu Tesla T4\nclock_max_mhz 1590\n"
    "overhead_bytes all_reduce 1048576\nmin_clock_mhz all_reduce 1048576 inf 480\n"
    "overhead_bytes all_to_all 1048576\nmin_clock_mhz all_to_all 1048576 inf 510\n"
    "overhead_bytes send_receive never\nend 8\n";

class ChildTest : public testing::Test {
 protected:
  // What a child process prints and fails with becomes this test's.
  void in_child(const std::function<void()>& body) {
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      setenv("POWERCCL_RUN_FOLDER", folder.path().c_str(), 0);
      setenv("POWERCCL_SHM", "/", 0);  // with room, whatever this machine has for shared memory
      body();
      fflush(nullptr);
      exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  void use_table() {
    folder.write("table", kTable);
    setenv("POWERCCL_POLICY", "per-call", 1);
    setenv("POWERCCL_POLICY_TABLE", (folder / "table").c_str(), 1);
  }
  TraceFile only_trace() {
    const auto traces = folder.traces();
    EXPECT_EQ(traces.size(), 1u);
    return traces.empty() ? TraceFile() : read_trace(traces[0]);
  }
  // Whether so many clocks are set and reset, some time. The trace is written a moment after.
  bool clocks_change(size_t times) {
    for (int i = 0; i < 10000; ++i) {
      if (only_trace().of(POWERCCL_REC_CLOCK).size() >= times) return true;
      usleep(2000);
    }
    return false;
  }

  Folder folder;
};

}  // namespace powerccl::test
