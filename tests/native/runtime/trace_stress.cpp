// SPDX-License-Identifier: Apache-2.0
// A job that records while things go wrong: powerccl-trace-stress FOLDER CASE SANDBOX RECORDS SEED.
//
// It writes FOLDER/run/rank-0.trace and files of its own, FOLDER/own-<n>, whose contents it knows. CASE is what happens
// meanwhile, to the trace by another process or to descriptors by the job itself. It prints what became of its records
// and exits with 0; 3: a file of its own is not as it left it; 4: records are neither written nor counted as dropped.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../base/sandbox.h"
#include "base/log.h"
#include "record/trace_writer.h"

namespace {

using namespace powerccl;

constexpr int kOwnFiles = 12;
constexpr int kThreads = 2;
std::string g_folder, g_run, g_trace;
std::minstd_rand g_random;
// How often something has gone wrong. In memory that the attacker shares.
std::atomic<uint32_t>* g_attacks;

unsigned below(unsigned bound) {
  return static_cast<unsigned>(g_random() % bound);
}

std::string own_name(int number) {
  return g_folder + "/own-" + std::to_string(number);
}
std::string own_text(int number) {
  return std::string(1000 + 37 * static_cast<size_t>(number), static_cast<char>('a' + number));
}

// Files of the job, under the lowest free numbers.
std::vector<int> open_own() {
  std::vector<int> descriptors;
  for (int i = 0; i < kOwnFiles; ++i) {
    const int descriptor = open(own_name(i).c_str(), O_RDWR | O_CREAT, 0600);
    const std::string text = own_text(i);
    if (descriptor < 0 || pwrite(descriptor, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
      std::perror("own file");
      _exit(5);
    }
    descriptors.push_back(descriptor);
  }
  return descriptors;
}

bool own_are_whole(bool replaced) {
  for (int i = 0; i < kOwnFiles; ++i) {
    FILE* file = std::fopen((replaced && i == 0 ? g_trace : own_name(i)).c_str(), "r");
    if (file == nullptr) continue;  // this case has none
    std::string text(1 << 20, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    if (text != own_text(i)) return false;
  }
  return true;
}

// What another process does, again and again, to the trace.
void attack(const std::string& what) {
  struct stat status;
  const bool there = stat(g_trace.c_str(), &status) == 0;
  if (what == "cut" && there) {
    (void)!truncate(g_trace.c_str(), status.st_size > 0 ? static_cast<off_t>(g_random() % status.st_size) : 0);
  } else if (what == "empty") {
    (void)!truncate(g_trace.c_str(), 0);
  } else if (what == "grow" && there) {
    (void)!truncate(g_trace.c_str(), status.st_size + below(100000));
  } else if (what == "delete") {
    unlink(g_trace.c_str());
  } else if (what == "replace") {
    const std::string aside = own_name(0);
    open_own();
    (void)!rename(aside.c_str(), g_trace.c_str());
    ++*g_attacks;
    _exit(0);
  } else if (what == "link") {
    open_own();
    unlink(g_trace.c_str());
    (void)!symlink(own_name(1).c_str(), g_trace.c_str());
    ++*g_attacks;
    _exit(0);
  } else if (what == "forbid") {
    chmod(g_trace.c_str(), 0);
    chmod(g_run.c_str(), 0);
  } else if (what == "remove") {
    std::error_code ignored;
    std::filesystem::remove_all(g_run, ignored);
  } else if (what == "move") {
    (void)!rename(g_run.c_str(), (g_folder + "/elsewhere").c_str());
  } else if (what == "fill") {
    const int filler = open((g_folder + "/filler").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    static const std::vector<char> zeroes(65536);
    while (write(filler, zeroes.data(), zeroes.size()) > 0) usleep(below(200));
    close(filler);
  }
}

pid_t start_attacker(const std::string& what) {
  const pid_t attacker = fork();
  if (attacker != 0) return attacker;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  usleep(below(150000));
  for (;;) {  // until it is killed
    attack(what);
    ++*g_attacks;
    usleep(1000 + below(20000));
  }
}

// What the job does to its own descriptors.
void disturb(const std::string& what, std::atomic<bool>* over) {
  std::vector<int> own;
  while (!over->load()) {
    if (what == "closefrom" || what == "stderr") {
      if (what == "stderr") close(2);
      syscall(SYS_close_range, 3u, ~0u, 0u);
      for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);  // where that call is not allowed
      own = open_own();
    } else if (what == "dup2") {
      if (own.empty()) own = open_own();
      for (int descriptor = 3; descriptor < 1024; ++descriptor) {
        const int from = own[static_cast<size_t>(descriptor) % own.size()];
        if (descriptor < own.front() || descriptor > own.back()) dup2(from, descriptor);
      }
    }
    ++*g_attacks;
    usleep(below(3000));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  g_folder = argv[1];
  const std::string what = argv[2], sandbox = argv[3];
  const uint64_t records = std::strtoull(argv[4], nullptr, 10);
  g_random.seed(static_cast<unsigned>(std::strtoul(argv[5], nullptr, 10)) + 1);
  g_run = g_folder + "/run";
  g_trace = g_run + "/rank-0.trace";
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 5;
  g_attacks = new (shared) std::atomic<uint32_t>(0);
  const bool by_job = what == "closefrom" || what == "dup2" || what == "stderr";
  const pid_t attacker = by_job && what != "stderr" ? -1 : start_attacker(what == "stderr" ? "cut" : what);
  const auto allowed = sandbox == "none"      ? test::Allowed::kAll
                       : sandbox == "unshare" ? test::Allowed::kUnshare
                                              : test::Allowed::kNeither;
  if (!test::enter_sandbox(allowed)) {
    std::perror("sandbox");
    return 5;
  }
  TraceWriter writer;
  if (const int error = writer.open(g_trace.c_str(), powerccl_trace_header(), uint64_t{1} << 30); error != 0) {
    std::fprintf(stderr, "%s: %s\n", g_trace.c_str(), std::strerror(error));
    return 5;
  }
  std::atomic<bool> over{false};
  std::thread disturber;
  if (by_job) disturber = std::thread(disturb, what, &over);
  std::atomic<uint64_t> accepted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      powerccl_trace_record record = {};
      record.kind = POWERCCL_REC_CALL;
      uint64_t taken = 0;
      for (uint64_t i = 0; i < records / kThreads; ++i) {
        record.call.call_id = i * kThreads + static_cast<uint64_t>(t) + 1;
        if (writer.append(record)) ++taken;
        if (i % 2000 == 0) usleep(500);
        // The second half comes when something has gone wrong.
        while (i == records / kThreads / 2 && *g_attacks == 0) usleep(1000);
      }
      accepted += taken;
    });
  }
  for (auto& thread : threads) thread.join();
  over.store(true);
  if (disturber.joinable()) disturber.join();
  if (attacker > 0) {
    kill(attacker, SIGKILL);
    waitpid(attacker, nullptr, 0);
  }
  const bool written = writer.flush();
  std::printf("attacks %u accepted %llu committed %llu dropped %llu whole %d\n", g_attacks->load(),
              static_cast<unsigned long long>(accepted.load()), static_cast<unsigned long long>(writer.committed()),
              static_cast<unsigned long long>(writer.dropped()), written ? 1 : 0);
  std::fflush(stdout);
  if (!own_are_whole(what == "replace")) return 3;
  // A note stands for one record at most.
  const uint64_t sum = writer.committed() + writer.dropped(), all = records / kThreads * kThreads;
  return sum == all || sum == all + 1 ? 0 : 4;
}
