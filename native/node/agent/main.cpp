// SPDX-License-Identifier: Apache-2.0
// powerccl-agent: samples this node's GPUs and processors.
#include "agent/node.h"
#include "agent/options.h"

int main(int argc, char** argv) {
  using namespace powerccl::agent;
  Options options;
  if (const auto code = parse_options(argc, argv, &options)) return *code;
  return attend_node(options);
}
