// SPDX-License-Identifier: Apache-2.0
// What rank 0 says: a table on stdout and, with --json, one object (schema in ../README.md).
#ifndef POWERCCL_BENCH_MPI_REPORT_H
#define POWERCCL_BENCH_MPI_REPORT_H
#include <string>
#include <vector>

#include "bench/json.h"
#include "bench/mpi/mpi_api.h"
#include "bench/mpi/options.h"

namespace powerccl::bench::mpi {

class Report {
 public:
  Report(const Options& options, const Mpi& mpi);
  // printf to stdout on rank 0, nowhere on the others.
  void say(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  void add(const json::Object& result) { results_.push_back(result.raw()); }
  void summarise(const json::Object& summary) { summary_ = summary; }
  void count_wrong(double elements) { wrong_ += elements; }
  bool wrong() const { return wrong_ > 0; }
  // Writes the JSON file on rank 0. `error`: what ended the run early, else empty. Throws Failure.
  void write(const std::string& error) const;

 private:
  const Options& options_;
  const Mpi& mpi_;
  double started_unix_s_, wrong_ = 0;
  int64_t started_ns_;
  std::vector<json::Raw> results_;
  json::Object summary_;
};

}  // namespace powerccl::bench::mpi
#endif
