// SPDX-License-Identifier: Apache-2.0
// One process of a test job: rank_main SCENARIO RANK RANKS KEY. Exit code 0 says that everything was as it should be.
#include "rank.h"

namespace {
int rank_number = 0;
}
int test_rank() {
  return rank_number;
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  Rank job{atoi(argv[2]), atoi(argv[3]), {}};
  rank_number = job.rank;
  memset(job.id.internal, 0, sizeof job.id.internal);
  strncpy(job.id.internal, argv[4], sizeof job.id.internal - 1);
  for (const auto& group : {data_scenarios(), life_scenarios(), call_scenarios(), tuned_scenarios()}) {
    for (const NamedScenario& scenario : group) {
      if (strcmp(scenario.name, argv[1]) != 0) continue;
      scenario.run(job);
      return 0;
    }
  }
  fprintf(stderr, "no scenario %s\n", argv[1]);
  return 2;
}
