// SPDX-License-Identifier: Apache-2.0
// The plugin as NCCL sees it: dlopened, driven through its tables, with a fake libcuda beneath. Every test runs in a
// process of its own, because the plugin arms once a process.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "../runtime/trace_reader.h"
#include "nccl_driver.h"
#include "runtime/basics.h"

namespace powerccl::test {
namespace {

constexpr char kTable[] =
    "powerccl-policy-table 1\nplatform test\ngpu Tesla T4\nclock_max_mhz 1590\n"
    "overhead_bytes all_reduce 1048576\nmin_clock_mhz all_reduce 1048576 inf 480\n"
    "overhead_bytes all_to_all 1048576\nmin_clock_mhz all_to_all 1048576 inf 510\n"
    "overhead_bytes send_receive never\nend 8\n";

struct FakeCuda {
  void* library = dlopen(POWERCCL_FAKE_CUDA_PATH, RTLD_NOW | RTLD_GLOBAL);
  void (*set_device)(int) = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_set_device"));
  void (*set_launch_result)(int) = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_set_launch_result"));
  bool (*run_one)() = reinterpret_cast<bool (*)()>(dlsym(library, "fake_run_one"));
  int (*pending)() = reinterpret_cast<int (*)()>(dlsym(library, "fake_pending"));
  void* (*last_stream)() = reinterpret_cast<void* (*)()>(dlsym(library, "fake_last_stream"));
};

class Door : public testing::TestWithParam<int> {
 protected:
  // What a child process prints and fails with becomes this test's.
  void in_child(const std::function<void()>& body) {
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      setenv("POWERCCL_RUN_FOLDER", folder.path().c_str(), 0);
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
    setenv("POWERCCL_POLICY", "percall", 1);
    setenv("POWERCCL_POLICY_TABLE", (folder / "table").c_str(), 1);
  }
  TraceFile trace(const std::string& name = "rank-0.trace") { return read_trace(folder / name); }

  Folder folder;
};

bool eventually(const std::function<bool()>& condition) {
  const uint64_t deadline = monotonic_ns() + 10000000000u;
  while (!condition()) {
    if (monotonic_ns() > deadline) return false;
    usleep(1000);
  }
  return true;
}

TEST_P(Door, RecordsAnAllReduceWithItsKernel) {
  in_child([&] {
    setenv("RANK", "0", 1);
    FakeCuda cuda;
    const Plugin plugin = Plugin::load(GetParam());
    Communicator communicator(plugin, 4, 0);
    ASSERT_NE(communicator.context(), nullptr);
    ASSERT_NE(Communicator::mask.load(), 0);
    const KernelOnGpu kernel = communicator.collective("AllReduce", 1 << 20);
    ASSERT_EQ(kernel.tasks.size(), 1u);
    Communicator::run(plugin, kernel, 5000000, 7000000);
  });
  const TraceFile file = trace();
  ASSERT_TRUE(file.good);
  EXPECT_EQ(std::string(file.header.gpu_uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
  EXPECT_EQ(std::string(file.header.gpu_pci), "00000000:65:00.0");
  EXPECT_EQ(std::string(file.header.library), "nccl profiler v" + std::to_string(GetParam()));
  EXPECT_EQ(file.header.rank, 0);
  ASSERT_EQ(file.of(POWERCCL_REC_COMM).size(), 2u);
  const auto calls = file.of(POWERCCL_REC_CALL);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].call.pattern, POWERCCL_ALL_REDUCE);
  EXPECT_EQ(calls[0].call.bytes, 4u << 20);
  EXPECT_EQ((calls[0].flags & POWERCCL_FLAG_COLL_EVENT) != 0, GetParam() == 4);
  EXPECT_NE(calls[0].flags & POWERCCL_FLAG_KERNEL_ASKED, 0);
  EXPECT_GE(calls[0].call.stop_ns, calls[0].call.start_ns);
  const auto kernels = file.of(POWERCCL_REC_KERNEL);
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].kernel.call_id, calls[0].call.call_id);
  EXPECT_EQ(kernels[0].kernel.gpu_start_ns, 5000000u);
  EXPECT_EQ(kernels[0].kernel.gpu_stop_ns, 7000000u);
  EXPECT_EQ(kernels[0].kernel.bytes, 4u << 20);
  EXPECT_EQ(kernels[0].kernel.algorithm, POWERCCL_ALGO_RING);
  EXPECT_EQ(kernels[0].kernel.protocol, POWERCCL_PROTO_SIMPLE);
  EXPECT_EQ(kernels[0].kernel.channels, 4);
}

INSTANTIATE_TEST_SUITE_P(Versions, Door, testing::Values(4, 5, 6, 7),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace powerccl::test
