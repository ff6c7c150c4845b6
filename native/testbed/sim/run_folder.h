// SPDX-License-Identifier: Apache-2.0
// The run folder of a simulated job (docs/reference/run-folder.md): traces, power samples and run.json, in virtual time
// and with nothing of the machine that simulates. The same job gives the same bytes.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/json.h"
#include "physics/platform.h"
#include "physics/readings.h"
#include "record/record_file.h"
#include "record/trace.h"
#include "sim/server.h"

namespace powerccl::sim {

// What run.json says of the job.
struct About {
  std::vector<std::string> command, scenarios;  // scenarios: their files
  std::string contents;                         // of all that the job depends on: the run's id is made of it
  std::string policy, clocks;                   // clocks: how they are changed
  std::optional<double> budget_pct;             // none: the policy has none
  double seconds = 0, warm_up_s = 0;
  uint64_t seed = 0;
};

// One line. Throws bench::Failure.
void write_json(const bench::json::Object& object, const std::string& file_name);

// The trace of one rank. What goes wrong is reported at the end.
class TraceFile final : public Trace {
 public:
  // Creates the file, which must not exist yet. Throws bench::Failure.
  TraceFile(std::string path, const powerccl_trace_header& header);
  bool append(const powerccl_trace_record& record) override;
  // Writes what is left. Throws bench::Failure.
  void finish();

 private:
  void write();
  void check() const;

  std::string path_;
  RecordFile file_;
  int fault_ = 0;
  std::vector<powerccl_trace_record> records_;  // not yet in the file
};

class RunFolder {
 public:
  // Makes the folder, which must be empty if it is there. Throws bench::Failure.
  RunFolder(std::string path, const physics::Platform& platform, About about);

  // The job begins.
  void begin(Time start);
  Trace& trace(uint32_t rank) { return *traces_[rank]; }
  // All power samples that are due by then. Nothing changes on the server until then.
  void sample(Server& server, Time until);
  // The job is over, and all is recorded.
  void finish(Server& server, Time end);

 private:
  void begin_samples(uint32_t host, Time start);
  void write_samples(Server& server, Time at);
  std::string run_id() const;

  std::string path_;
  const physics::Platform& platform_;
  About about_;
  std::unique_ptr<physics::BoardPage> board_;
  std::vector<std::unique_ptr<TraceFile>> traces_;
  struct Close {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  std::vector<std::unique_ptr<FILE, Close>> samples_;  // by host
  Time start_ = 0, next_sample_ = 0;
};

}  // namespace powerccl::sim
