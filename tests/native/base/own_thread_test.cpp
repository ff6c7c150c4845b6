// SPDX-License-Identifier: Apache-2.0
#include "base/own_thread.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "../record/trace_reader.h"
#include "sandbox.h"

namespace powerccl::test {
namespace {

struct Seen {
  std::string file;
  int inherited = -1, opened = -1;
  bool signals_blocked = false;
  std::atomic<int> stage{0};
  int result = -1;
};

void look(void* data) {
  auto* seen = static_cast<Seen*>(data);
  seen->inherited = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) ++seen->inherited;
  }
  seen->opened = open(seen->file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  seen->signals_blocked = sigismember(&mask, SIGXFSZ) == 1 && sigismember(&mask, SIGTERM) == 1;
  seen->stage.store(1);
  while (seen->stage.load() == 1) usleep(1000);
  if (write(seen->opened, "ours", 4) != 4) seen->opened = -2;
}

void* work(void* data) {
  auto* seen = static_cast<Seen*>(data);
  seen->result = run_with_own_descriptors(look, data);
  return nullptr;
}

// In a process of its own, since a sandbox is for ever.
class OwnDescriptors : public testing::TestWithParam<Allowed> {
 protected:
  static void in_child(const std::function<bool()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(enter_sandbox(GetParam()) ? (body() ? 0 : 1) : 2);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  Folder folder;
};

TEST_P(OwnDescriptors, NeitherSideSeesTheOthers) {
  in_child([&] {
    int ends[2];
    if (pipe(ends) != 0) return false;
    const int high = fcntl(ends[1], F_DUPFD, 900);
    Seen seen;
    seen.file = folder / "file";
    pthread_t thread;
    if (start_thread(&thread, "own", work, &seen, 192 << 10) != 0) return false;
    while (seen.stage.load() == 0) usleep(1000);
    bool good = seen.inherited == 0 && seen.opened >= 0 && seen.signals_blocked;
    // The thread lives, and keeps nobody from seeing the pipe's end.
    close(ends[1]);
    close(high);
    pollfd end = {ends[0], POLLIN, 0};
    char byte;
    good = good && poll(&end, 1, 5000) == 1 && read(ends[0], &byte, 1) == 0;
    // What the job opens under the thread's number, and closes, is the job's.
    for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);
    const int own = open((folder / "job's").c_str(), O_RDWR | O_CREAT, 0600);
    dup2(own, seen.opened);
    good = good && write(own, "the job's", 9) == 9;
    seen.stage.store(2);
    pthread_join(thread, nullptr);
    char text[16] = "";
    good = good && seen.result == 0 && seen.opened >= 0 && pread(own, text, sizeof(text), 0) == 9;
    return good && memcmp(text, "the job's", 9) == 0 && std::filesystem::file_size(folder / "file") == 4;
  });
}

INSTANTIATE_TEST_SUITE_P(All, OwnDescriptors, testing::Values(Allowed::kAll, Allowed::kUnshare, Allowed::kNeither));

TEST(OwnThread, AStackThatIsTooSmallIsMadeLarger) {
  pthread_t thread;
  ASSERT_EQ(start_thread(&thread, "own", [](void* data) -> void* { return data; }, &thread, 1), 0);
  void* result = nullptr;
  pthread_join(thread, &result);
  EXPECT_EQ(result, &thread);
}

}  // namespace
}  // namespace powerccl::test
