// SPDX-License-Identifier: Apache-2.0
// powerccld: leases on clocks for jobs that may not set them.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "abi/helper.h"
#include "daemon/config.h"
#include "daemon/gpu_driver.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include "daemon/state_file.h"

namespace {

using namespace powerccl::daemon;

constexpr char kDefaultConfig[] = "/etc/powerccl/powerccld.toml";
constexpr int64_t kSecondNs = 1'000'000'000;

struct Options {
  std::string config, socket, state, level;
  bool check = false, restore = false, by_pipe = false;
};

// 0, or the exit code.
int read_settings(const Options& options, ServerSettings* settings) {
  Config& config = settings->config;
  config = default_config();
  // The file that is looked for unasked may be missing; one that was named may not.
  std::vector<std::string> faults;
  if (!options.config.empty())
    faults = read_config_file(options.config, &config);
  else if (!options.by_pipe && access(kDefaultConfig, F_OK) == 0)
    faults = read_config_file(kDefaultConfig, &config);
  for (const std::string& fault : faults) log(kError, "%s", fault.c_str());
  if (!faults.empty() && options.restore) {
    log(kError, "restoring clocks with default settings");
    config = default_config();
    faults.clear();
  } else if (!faults.empty()) {
    log(kError, "hint: docs/reference/powerccld.md lists all keys; powerccld --check checks the file");
    return 2;
  }
  if (!options.socket.empty()) config.socket_path = options.socket;
  if (!options.state.empty()) config.state_file = options.state;
  if (options.by_pipe) {
    config.socket_bits = 0600;
    // Serves only users who may set clocks without it.
    if (options.config.empty()) config.gpu_interval_ms = 1;
  }
  if (!options.level.empty() && !parse_level(options.level, &config.level)) {
    log(kError, "--log: expected error, warning, info or debug");
    return 2;
  }
  if (!options.restore) faults = check_config(config);  // clocks are restored whatever else is wrong
  for (const std::string& fault : faults) log(kError, "%s", fault.c_str());
  if (!options.restore && !faults.empty()) {
    log(kError, "hint: the systemd unit creates /run/powerccl (RuntimeDirectory=); create other folders yourself");
    return 2;
  }
  set_log_level(config.level);
  const char* clocks = std::getenv("POWERCCL_CLOCKS");
  settings->dry = config.log_dry || (clocks != nullptr && std::strcmp(clocks, "dry") == 0);
  settings->by_pipe = options.by_pipe;
  return 0;
}

void ignore_signals() {
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  for (const int number : {SIGHUP, SIGPIPE, SIGXFSZ, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU})
    sigaction(number, &ignore, nullptr);
}

// Before NVML is loaded, which may start threads: one that did not block SIGTERM would take it, and the process would
// end with clocks set.
void take_signals(sigset_t* ending) {
  sigemptyset(ending);
  sigaddset(ending, SIGTERM);
  sigaddset(ending, SIGINT);
  powerccl_take_signals(ending);
}

// A connection takes two descriptors, and administrators' are counted apart. The rest is for files that users pass.
void make_room(Config* config) {
  constexpr rlim_t kOthers = 1024;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const auto wanted = 4 * static_cast<rlim_t>(config->access_sessions);
  if (limit.rlim_max == RLIM_INFINITY || wanted + kOthers <= limit.rlim_max) return;
  const rlim_t room = limit.rlim_max > 2 * kOthers ? limit.rlim_max - kOthers : limit.rlim_max / 2;
  if (wanted <= room) return;
  config->access_sessions = std::max<int64_t>(1, static_cast<int64_t>(room / 4));
  log(kWarning, "only %lld connections can be taken at a time, this process having no more than %llu descriptors",
      static_cast<long long>(config->access_sessions), static_cast<unsigned long long>(limit.rlim_max));
}

int run(const Options& options) {
  ServerSettings settings;
  if (const int code = read_settings(options, &settings); code != 0 || options.check) {
    if (code == 0) std::puts("the configuration is valid");
    return code;
  }
  const Config& config = settings.config;
  if (options.by_pipe) setsid();  // a terminal's ^C is the job's
  ignore_signals();
  make_room(&settings.config);
  std::string reason;
  SocketPlace place;
  if (!options.restore && !place.take(config.socket_path, &reason)) {
    // In one line: `powerccl run`, which starts a daemon, shows its last line.
    log(kError, "%s; hint: `socket.path` and --socket name another place", reason.c_str());
    return 1;
  }
  StateFile state;
  if (!state.open(config.state_file, &reason)) {
    log(kError, "%s; hint: `state.file` and --state name another place", reason.c_str());
    return 1;
  }
  if (!options.by_pipe && !state.in_memory())
    log(kWarning, "%s is not on a file system in memory: each clock that is set waits for a disk",
        config.state_file.c_str());

  GpuSettings about;
  about.min_mhz = static_cast<uint32_t>(config.gpu_min_mhz);
  about.max_mhz = static_cast<uint32_t>(config.gpu_max_mhz);
  about.usual_min_mhz = static_cast<uint32_t>(config.gpu_usual_min_mhz);
  about.usual_max_mhz = static_cast<uint32_t>(config.gpu_usual_max_mhz);
  about.device_files = config.gpu_device_files;
  about.dry = settings.dry;
  take_signals(&settings.ending);
  GpuDriver gpus;
  if (!gpus.open(about, &reason)) {
    log(kError, "cannot lease GPUs: %s", reason.c_str());
    return 1;
  }
  settings.emulated = gpus.emulated();
  Server server(settings, &state, &place, &gpus);
  if (options.restore) return server.restore_left(10 * kSecondNs) ? 0 : 1;
  server.restore_left(2 * kSecondNs);
  const int code = server.serve();
  // Of a daemon that is the machine's the file stays, with its name and mode.
  if (options.by_pipe && code == 0) unlink(config.state_file.c_str());
  return code;
}

int parse_and_run(int argc, char** argv) {
  Options options;
  CLI::App app("Leases clocks of GPUs to jobs, and restores them after each job.", "powerccld");
  app.set_version_flag("--version", "powerccld " POWERCCL_VERSION);
  app.add_option("--config", options.config, std::string("configuration (") + kDefaultConfig + ")")->type_name("FILE");
  app.add_flag("--check", options.check, "check the configuration, and end");
  app.add_flag("--restore", options.restore, "restore all clocks that a daemon left set");
  app.add_flag("--private", options.by_pipe, "serve one user's jobs, until stdin ends");
  app.add_option("--socket", options.socket, "socket, instead of the configuration's")->type_name("PATH");
  app.add_option("--state", options.state, "state file, instead of the configuration's")->type_name("PATH");
  app.add_option("--log", options.level, "log level: error, warning, info or debug")->type_name("LEVEL");
  app.footer(
      "exit codes: 0 success; 1 a fault, or a clock could not be restored;\n            2 wrong usage or "
      "configuration");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run(options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "powerccld: %s\n", error.what());
    return 1;
  }
}
