// SPDX-License-Identifier: Apache-2.0
// powerccl-emulator: the GPU server that the emulated libcuda, libnvidia-ml and libnccl of one emulation share.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "emulator/server/server.h"
#include "physics/collective_engine.h"

namespace {

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

int parse_and_run(int argc, char** argv) {
  std::string platform_path, socket_path, lateness_path;
  CLI::App app(
      "Serves the emulated GPUs of a platform file. Clients need POWERCCL_EMULATOR_SOCKET=PATH, and the\n"
      "emulator's libraries on LD_LIBRARY_PATH. The server prints `ready` when it listens. It ends when\n"
      "stdin ends, or on SIGTERM unless that was blocked when it started.",
      "powerccl-emulator");
  app.add_option("--platform", platform_path, "KEY=VALUE replaces a value of the file")
      ->required()
      ->type_name("FILE[:KEY=VALUE,...]");
  app.add_option("--socket", socket_path, "where it listens")->required()->type_name("PATH");
  app.add_option("--lateness", lateness_path, "write at the end how well this machine kept up")->type_name("FILE");
  app.footer("exit codes: 0 success; 1 could not start; 2 wrong usage");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
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

}  // namespace

int main(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "powerccl-emulator: %s\n", error.what());
    return 1;
  }
}
