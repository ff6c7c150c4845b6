// SPDX-License-Identifier: Apache-2.0
// powerccl-agent: samples this node's GPUs and processors, and restores core clocks of dead ranks.
#include "agent/node.h"
#include "agent/options.h"
#include "agent/restore.h"

int main(int argc, char** argv) {
  using namespace powerccl::agent;
  Options options;
  if (const auto code = parse_options(argc, argv, &options)) return *code;
  return options.restore_all ? restore_all(options.run_folder) : attend_node(options);
}
