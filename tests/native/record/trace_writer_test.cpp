// SPDX-License-Identifier: Apache-2.0
#include "record/trace_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <thread>

#include "base/log.h"
#include "trace_reader.h"

namespace powerccl::test {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1u << 20;

powerccl_trace_record callback(uint64_t id) {
  powerccl_trace_record record = {};
  record.kind = POWERCCL_REC_CALLBACK;
  record.callback.call_id = id;
  record.callback.time_ns = ~id;
  return record;
}

powerccl_trace_header header() {
  powerccl_trace_header made = {};
  made.rank = 3;
  copy_text(made.policy, sizeof(made.policy), "observe");
  return made;
}

long threads() {
  return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
}

TEST(TraceWriter, WhatIsAppendedIsRead) {
  Folder folder;
  TraceWriter writer;
  ASSERT_EQ(writer.open((folder / "a.trace").c_str(), header(), kMiB), 0);
  for (uint64_t id = 1; id <= 100; ++id) EXPECT_TRUE(writer.append(callback(id)));
  writer.note("a sentence that is longer than the forty-eight characters which a record has room for");
  EXPECT_TRUE(writer.flush());
  EXPECT_EQ(writer.committed(), 101u);
  // A reader does not wait for the writer to close.
  const TraceFile file = read_trace(folder / "a.trace");
  ASSERT_TRUE(file.good);
  EXPECT_EQ(file.header.version, POWERCCL_TRACE_VERSION);
  EXPECT_EQ(file.header.rank, 3);
  EXPECT_EQ(std::string(file.header.policy), "observe");
  ASSERT_EQ(file.records.size(), 101u);
  for (uint64_t id = 1; id <= 100; ++id) {
    EXPECT_EQ(file.records[id - 1].callback.call_id, id);
    EXPECT_EQ(file.records[id - 1].callback.time_ns, ~id);
  }
  EXPECT_EQ(file.notes().substr(0, 17), "a sentence that i");
}

TEST(TraceWriter, NeverTouchesAFileThatIsThere) {
  Folder folder;
  folder.write("a.trace", "precious");
  TraceWriter writer;
  EXPECT_EQ(writer.open((folder / "a.trace").c_str(), header(), kMiB), EEXIST);
  EXPECT_FALSE(writer.append(callback(1)));
  std::ifstream stream(folder / "a.trace");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), "precious");
}

TEST(TraceWriter, FolderThatIsNotThereIsAnError) {
  Folder folder;
  TraceWriter writer;
  EXPECT_EQ(writer.open((folder / "no/a.trace").c_str(), header(), kMiB), ENOENT);
  EXPECT_FALSE(writer.is_open());
  writer.note("nobody hears this");
}

TEST(TraceWriter, GoesAroundItsRingManyTimes) {
  Folder folder;
  TraceWriter writer;
  constexpr uint64_t kAll = 5 * TraceWriter::kRingRecords + 77;
  ASSERT_EQ(writer.open((folder / "a.trace").c_str(), header(), 64 * kMiB), 0);
  for (uint64_t id = 1; id <= kAll; ++id) {
    ASSERT_TRUE(writer.append(callback(id)));
    if (id % 10000 == 0) {
      ASSERT_TRUE(writer.flush());
    }
  }
  ASSERT_TRUE(writer.flush());
  const TraceFile file = read_trace(folder / "a.trace");
  ASSERT_EQ(file.records.size(), kAll);
  for (uint64_t id = 1; id <= kAll; ++id) ASSERT_EQ(file.records[id - 1].callback.call_id, id);
}

// Nobody asks for it: the thread looks by itself, and a full quarter of the ring wakes it.
TEST(TraceWriter, WritesByItself) {
  Folder folder;
  TraceWriter writer;
  ASSERT_EQ(writer.open((folder / "a.trace").c_str(), header(), 64 * kMiB), 0);
  for (uint64_t wanted : {uint64_t{10}, TraceWriter::kRingRecords / 2}) {
    for (uint64_t id = writer.committed(); id < wanted; ++id) ASSERT_TRUE(writer.append(callback(id + 1)));
    for (int tried = 0; tried < 1000 && writer.committed() < wanted; ++tried) usleep(10000);
    EXPECT_EQ(read_trace(folder / "a.trace").records.size(), wanted);
  }
}

TEST(TraceWriter, WhatComesTooFastIsCountedAndHoldsNobody) {
  Folder folder;
  TraceWriter writer;
  ASSERT_EQ(writer.open((folder / "a.trace").c_str(), header(), 1024 * kMiB), 0);
  uint64_t accepted = 0;
  constexpr uint64_t kAll = 3000000;
  for (uint64_t id = 1; id <= kAll; ++id) accepted += writer.append(callback(id)) ? 1 : 0;
  ASSERT_TRUE(writer.flush());
  const TraceFile file = read_trace(folder / "a.trace");
  EXPECT_EQ(file.of(POWERCCL_REC_CALLBACK).size(), accepted);
  EXPECT_EQ(file.header.dropped, kAll - accepted);
  EXPECT_EQ(file.notes(), accepted == kAll ? "" : "records dropped: they came too fast\n");
  uint64_t last = 0;
  for (const auto& record : file.of(POWERCCL_REC_CALLBACK)) {
    ASSERT_GT(record.callback.call_id, last);
    last = record.callback.call_id;
  }
}

TEST(TraceWriter, StopsAtItsLimitAndCountsTheRest) {
  Folder folder;
  TraceWriter writer;
  log_to(open("/dev/null", O_WRONLY));
  ASSERT_EQ(writer.open((folder / "a.trace").c_str(), header(), kMiB), 0);
  uint64_t accepted = 0;
  for (uint64_t id = 1; id <= 50000; ++id) accepted += writer.append(callback(id)) ? 1 : 0;
  EXPECT_TRUE(writer.flush());
  log_to(2);
  EXPECT_LT(accepted, 50000u);
  EXPECT_EQ(writer.dropped(), 50000u - accepted);
  const TraceFile file = read_trace(folder / "a.trace");
  EXPECT_EQ(file.of(POWERCCL_REC_CALLBACK).size(), accepted);
  EXPECT_EQ(file.notes(), "trace limit reached\n");
  EXPECT_EQ(file.header.dropped, 50000u - accepted);
  EXPECT_LE(std::filesystem::file_size(folder / "a.trace"), kMiB + POWERCCL_TRACE_HEADER_BYTES);
}

// Past the limit on file sizes the kernel sends SIGXFSZ, whose default ends the process.
TEST(TraceWriter, FullDiskIsCountedAndEndsNothing) {
  Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    rlimit limit = {3 * kMiB, 3 * kMiB};
    setrlimit(RLIMIT_FSIZE, &limit);
    log_to(open("/dev/null", O_WRONLY));
    TraceWriter writer;
    if (writer.open((folder / "a.trace").c_str(), header(), 64 * kMiB) != 0) _exit(2);
    for (uint64_t id = 1; id <= 200000; ++id) {
      writer.append(callback(id));
      if (id % 10000 == 0) writer.flush();
    }
    _exit(writer.dropped() > 0 && writer.committed() > 16384 ? 0 : 3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const TraceFile file = read_trace(folder / "a.trace");
  ASSERT_TRUE(file.good);
  EXPECT_EQ(file.notes(), "trace cannot grow: disk\n");
  EXPECT_EQ(file.of(POWERCCL_REC_CALLBACK).size() + file.header.dropped, 200000u);
}

TEST(TraceWriter, DiskThatIsFullFromTheStartIsAnErrorOfOpen) {
  Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    rlimit limit = {1024, 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
    TraceWriter writer;
    _exit(writer.open((folder / "a.trace").c_str(), header(), kMiB) == EFBIG && !writer.is_open() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.trace"));
}

TEST(TraceWriter, EndsWhileTheProcessGoesOn) {
  Folder folder;
  TraceWriter writer;
  ASSERT_EQ(writer.open((folder / "a.trace").c_str(), header(), kMiB), 0);
  EXPECT_TRUE(writer.append(callback(1)));
  const long with_ours = threads();
  writer.end("a filter comes");
  // The kernel may still list a thread that has been joined.
  for (int i = 0; i < 1000 && threads() == with_ours; ++i) usleep(10000);
  EXPECT_LT(threads(), with_ours);
  EXPECT_FALSE(writer.append(callback(2)));
  EXPECT_FALSE(writer.flush());
  writer.end("and again");
  const TraceFile file = read_trace(folder / "a.trace");
  ASSERT_EQ(file.records.size(), 2u);
  EXPECT_EQ(file.notes(), "a filter comes\n");
}

TEST(TraceWriter, ThreadsAppendWithoutHoles) {
  Folder folder;
  TraceWriter writer;
  constexpr uint64_t kThreads = 6, kEach = 20000;
  ASSERT_EQ(writer.open((folder / "a.trace").c_str(), header(), 64 * kMiB), 0);
  std::atomic<bool> done{false};
  // What is committed is whole at every moment, not only at the end.
  std::thread reader([&] {
    while (!done.load()) {
      const TraceFile file = read_trace(folder / "a.trace");
      for (const auto& record : file.records) {
        if (record.kind == POWERCCL_REC_NOTE) continue;  // of a ring that was full
        ASSERT_EQ(record.kind, POWERCCL_REC_CALLBACK);
        ASSERT_EQ(record.callback.time_ns, ~record.callback.call_id);
      }
    }
  });
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&writer, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        while (!writer.append(callback(t * kEach + i + 1))) usleep(1000);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  done.store(true);
  reader.join();
  ASSERT_TRUE(writer.flush());
  EXPECT_EQ(writer.committed(), kThreads * kEach + (writer.dropped() > 0 ? 1 : 0));
  std::vector<bool> seen(kThreads * kEach + 1);
  for (const auto& record : read_trace(folder / "a.trace").of(POWERCCL_REC_CALLBACK)) {
    ASSERT_FALSE(seen[record.callback.call_id]);
    seen[record.callback.call_id] = true;
  }
}

TEST(TraceWriter, KilledWriterLeavesAReadableTrace) {
  Folder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    TraceWriter writer;
    if (writer.open((folder / "a.trace").c_str(), header(), 256 * kMiB) != 0) _exit(1);
    for (uint64_t id = 1;; ++id) {
      writer.append(callback(id));
      if (id == 1000 && (!writer.flush() || write(ready[1], "x", 1) != 1)) _exit(1);
      if (id % 100 == 0) usleep(1);
    }
  }
  close(ready[1]);
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  const TraceFile file = read_trace(folder / "a.trace");
  ASSERT_TRUE(file.good);
  ASSERT_GE(file.records.size(), 1000u);
  for (size_t i = 0; i < file.records.size(); ++i) ASSERT_EQ(file.records[i].callback.call_id, i + 1);
}

}  // namespace
}  // namespace powerccl::test
