// SPDX-License-Identifier: Apache-2.0
// A policy table for tests of adapters: per-call manages all-reduces and all-to-alls of a MiB and more.
#ifndef POWERCCL_TESTS_ADAPTERS_POLICY_TABLE_H
#define POWERCCL_TESTS_ADAPTERS_POLICY_TABLE_H
#include <cstdlib>

#include "../record/trace_reader.h"

namespace powerccl::test {

constexpr char kTable[] =
    "powerccl-policy-table 1\nplatform test\ngpu Tesla T4\nclock_max_mhz 1590\n"
    "overhead_bytes all_reduce 1048576\nmin_clock_mhz all_reduce 1048576 inf 480\n"
    "overhead_bytes all_to_all 1048576\nmin_clock_mhz all_to_all 1048576 inf 510\n"
    "overhead_bytes send_receive never\nend 8\n";

inline void use_policy_table(const Folder& folder) {
  folder.write("table", kTable);
  setenv("POWERCCL_POLICY", "per-call", 1);
  setenv("POWERCCL_POLICY_TABLE", (folder / "table").c_str(), 1);
}

}  // namespace powerccl::test
#endif
