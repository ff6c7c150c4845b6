// SPDX-License-Identifier: Apache-2.0
// powerccl-agent: samples this node's GPUs and processors, and restores core clocks of dead ranks. See kUsage in
// options.cpp.
#include <cstdio>
#include <string>

#include "agent/node.h"
#include "agent/options.h"
#include "agent/restore.h"

int main(int argc, char** argv) {
  using namespace powerccl::agent;
  Options options;
  std::string message;
  if (!parse_options(argc, argv, &options, &message)) {
    std::fprintf(stderr, "powerccl-agent: %s\n", message.c_str());
    return 2;
  }
  switch (options.mode) {
    case Mode::kHelp:
      std::fputs(kUsage, stdout);
      return 0;
    case Mode::kRestoreAll:
      return restore_all(options.run_folder);
    case Mode::kGuard:
      return attend_node(options);
  }
  return 2;
}
