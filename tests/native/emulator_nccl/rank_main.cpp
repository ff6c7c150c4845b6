// SPDX-License-Identifier: Apache-2.0
// One process of a test job: rank_main SCENARIO RANK RANKS KEY. Exit code 0 says that everything was as it should be.
#include <unistd.h>

#include "rank.h"

namespace {
int rank_number = 0;
std::string key;

std::string path_of(const char* name, int rank) {
  return key + "." + name + "." + std::to_string(rank);
}
}  // namespace

std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> all;
  return all;
}

int test_rank() {
  return rank_number;
}

void give_sign(const char* name) {
  FILE* file = fopen(path_of(name, rank_number).c_str(), "w");
  CHECK(file != nullptr);
  fclose(file);
}

void await_sign(const char* name, int from_rank) {
  for (int i = 0; i < 10'000 && access(path_of(name, from_rank).c_str(), F_OK) != 0; ++i) usleep(2000);
  CHECK(access(path_of(name, from_rank).c_str(), F_OK) == 0);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  Rank job{atoi(argv[2]), atoi(argv[3]), {}};
  rank_number = job.rank;
  key = argv[4];
  memset(job.id.internal, 0, sizeof job.id.internal);
  strncpy(job.id.internal, argv[4], sizeof job.id.internal - 1);
  if (const auto scenario = scenarios().find(argv[1]); scenario != scenarios().end()) {
    scenario->second(job);
    return 0;
  }
  fprintf(stderr, "no scenario %s\n", argv[1]);
  return 2;
}
