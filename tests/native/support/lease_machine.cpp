// SPDX-License-Identifier: Apache-2.0
#include "lease_machine.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "daemon/state_file.h"

namespace powerccl::leases {
std::string text_of(const Range& range) {
  return range.usual() ? "usual" : std::to_string(range.min_mhz) + "-" + std::to_string(range.max_mhz);
}

// ---- Child

bool has_ended(pid_t pid) {
  siginfo_t about{};
  return waitid(P_PID, static_cast<id_t>(pid), &about, WEXITED | WNOHANG | WNOWAIT) == 0 && about.si_pid == pid;
}

Child::~Child() {
  kill_hard();
}

bool Child::start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                  const std::string& errors, int64_t patience_ms) {
  kill_hard();
  status_ = -1;
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) return false;
  if (pipe2(out, O_CLOEXEC) != 0) {
    close(in[0]);
    close(in[1]);
    return false;
  }
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::vector<char*> variables;
  for (const std::string& pair : environment) variables.push_back(const_cast<char*>(pair.c_str()));
  variables.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    const int file = open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0) dup2(file, STDERR_FILENO);
    execve(words[0], words.data(), variables.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  input_ = in[1];
  output_ = out[0];
  if (pid_ > 0 && wait_ready(patience_ms)) return true;
  const int status = wait_end(0);
  kill_hard();
  status_ = status;
  return false;
}

bool Child::wait_ready(int64_t patience_ms) {
  const bool said = within(patience_ms, [this] {
    pollfd entry{output_, POLLIN, 0};
    return poll(&entry, 1, 2) > 0;
  });
  if (!said) return false;
  char line[16];
  const ssize_t length = read(output_, line, sizeof line);
  if (length == 6 && std::memcmp(line, "ready\n", 6) == 0) return true;
  wait_end(1000);  // its output has ended, so it is about to
  return false;
}

void Child::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

void Child::close_input() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

int Child::wait_end(int64_t patience_ms) {
  if (pid_ <= 0) return status_;
  int status = 0;
  if (!within(patience_ms, [this] { return has_ended(pid_); })) return -1;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  kill_hard();
  status_ = status;
  return status;
}

void Child::kill_hard() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    pid_ = -1;
  }
  close_input();
  if (output_ >= 0) close(output_);
  output_ = -1;
}

// ---- Machine

Machine::Machine(std::string stage, std::string folder) : stage_(std::move(stage)), folder_(std::move(folder)) {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
  std::filesystem::create_directories(folder_, ignored);
  const std::vector<std::string> command = {stage_ + "/bin/powerccl-emulator", "--platform",
                                            stage_ + "/share/platforms/t4x8.conf", "--socket", path("e.sock")};
  if (!server_.start(command, {}, path("emulator.log"), 10'000)) return;
  setenv("POWERCCL_EMULATOR_SOCKET", path("e.sock").c_str(), 1);
  board_ = emulator::Connection::open(emulator::Role::kNvml, "powerccl-lease-schedules");
}

Machine::~Machine() {
  server_.kill_hard();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Range Machine::locked(uint32_t gpu) const {
  const emulator::GpuState& state = board_->board().gpu[gpu].state;
  for (;;) {
    const uint32_t before = state.version.load(std::memory_order_acquire);
    const Range range{state.locked_min_mhz, state.locked_max_mhz};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && state.version.load(std::memory_order_relaxed) == before) return range;
  }
}

bool Machine::all_usual() const {
  for (uint32_t gpu = 0; gpu < gpus(); ++gpu)
    if (!locked(gpu).usual()) return false;
  return true;
}

std::string Machine::clocks() const {
  std::string text;
  for (uint32_t gpu = 0; gpu < gpus(); ++gpu)
    if (const Range range = locked(gpu); !range.usual())
      text += (text.empty() ? "GPU " : ", GPU ") + std::to_string(gpu) + " at " + text_of(range);
  return text.empty() ? "all usual" : text;
}

std::vector<std::string> Machine::daemon_command(bool with_config) const {
  std::vector<std::string> command = {
      stage_ + "/bin/powerccld", "--private", "--socket", socket(), "--state", state(), "--log", "warning"};
  if (with_config) command.insert(command.end(), {"--config", config()});
  return command;
}

std::vector<std::string> Machine::environment() const {
  return {"LD_LIBRARY_PATH=" + stage_ + "/emulator", "POWERCCL_EMULATOR_SOCKET=" + path("e.sock")};
}

// ---- The state file

int marks_in(const std::string& state) {
  const int fd = open(state.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : -1;
  std::vector<daemon::StateSlot> slots(daemon::kStateSlots + 1);  // the first is the header, of a slot's size
  const auto bytes = static_cast<ssize_t>(slots.size() * sizeof slots[0]);
  const ssize_t length = read(fd, slots.data(), static_cast<size_t>(bytes));
  close(fd);
  if (length != bytes) return -1;
  // magic, version, number of slots, and whether the file stands in for one that could not be believed
  constexpr size_t kDoubtfulAt = 16;
  uint32_t doubtful = 0;
  std::memcpy(&doubtful, slots[0].device + kDoubtfulAt, sizeof doubtful);
  if (doubtful != 0) return -1;
  int marks = 0;
  for (size_t i = 1; i < slots.size(); ++i) {
    if (slots[i].crc != daemon::crc32_of(&slots[i], offsetof(daemon::StateSlot, crc))) return -1;
    marks += slots[i].marked != 0 ? 1 : 0;
  }
  return marks;
}

}  // namespace powerccl::leases
