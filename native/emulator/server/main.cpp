// SPDX-License-Identifier: Apache-2.0
// powerccl-emulator: the GPU server that the emulated libcuda, libnvidia-ml and libnccl of one emulation share.
#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "emulator/server/server.h"
#include "physics/collective_engine.h"

namespace {

constexpr char kUsage[] =
    "usage: powerccl-emulator --platform FILE[:KEY=VALUE,...] --socket PATH\n"
    "                         [--lateness FILE]\n"
    "\n"
    "Serves the emulated GPUs of a platform file. KEY=VALUE replaces a value of it.\n"
    "Clients need POWERCCL_EMULATOR_SOCKET=PATH, and the emulator's libraries on\n"
    "LD_LIBRARY_PATH. The server prints `ready` when it listens. It ends when stdin\n"
    "ends, or on SIGTERM. It then writes to the --lateness FILE how well this machine\n"
    "kept up.\n"
    "\n"
    "exit codes: 0 success; 1 could not start; 2 wrong usage\n";

// A reader tolerates a file that is not there: nothing depends on it but a warning.
void write_lateness(const std::string& path, const powerccl::emulator::Lateness& lateness) {
  FILE* file = fopen(path.c_str(), "we");
  if (file == nullptr) {
    fprintf(stderr, "powerccl-emulator: cannot write %s: %s\n", path.c_str(), strerror(errno));
    return;
  }
  fprintf(file, "{\"up_s\": %.6f, \"events_late_s\": %.6f, \"data_late_s\": %.6f}\n",
          static_cast<double>(lateness.up) * 1e-9, static_cast<double>(lateness.events_late) * 1e-9,
          static_cast<double>(lateness.data_late) * 1e-9);
  fclose(file);
}

}  // namespace

int main(int argc, char** argv) {
  std::string platform_path, socket_path, lateness_path;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help" || option == "-h") {
      fputs(kUsage, stdout);
      return 0;
    }
    std::string* target = option == "--platform"   ? &platform_path
                          : option == "--socket"   ? &socket_path
                          : option == "--lateness" ? &lateness_path
                                                   : nullptr;
    if (target == nullptr || i + 1 == argc) {
      fprintf(stderr, "powerccl-emulator: %s: unknown option, or its value is missing\n%s", argv[i], kUsage);
      return 2;
    }
    *target = argv[++i];
  }
  if (platform_path.empty() || socket_path.empty()) {
    fprintf(stderr, "powerccl-emulator: --platform and --socket are needed\n%s", kUsage);
    return 2;
  }
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {  // one descriptor an allocation
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  std::string error;
  const auto platform = powerccl::physics::read_platform(platform_path, error);
  if (!platform) {
    fprintf(stderr, "powerccl-emulator: %s\n", error.c_str());
    return 1;
  }
  powerccl::emulator::Server server(*platform, socket_path, error);
  if (!error.empty()) {
    fprintf(stderr, "powerccl-emulator: %s\n", error.c_str());
    return 1;
  }
  powerccl::physics::CollectiveEngine collectives(server.engine());
  server.engine().set_collective_handler(&collectives);
  const char* truth_path = getenv("POWERCCL_EMULATOR_TRUTH");
  powerccl::physics::Truth truth;
  if (truth_path != nullptr && *truth_path != '\0') server.engine().keep_truth(truth);
  puts("ready");
  fflush(stdout);
  const int status = server.run();
  if (!lateness_path.empty()) write_lateness(lateness_path, server.lateness());
  server.engine().set_collective_handler(nullptr);
  if (truth_path == nullptr || *truth_path == '\0') return status;
  server.engine().settle();
  if (truth.write(truth_path, platform->name, error)) return status;
  fprintf(stderr, "powerccl-emulator: %s\n", error.c_str());
  return 1;
}
