// SPDX-License-Identifier: Apache-2.0
// What rank 0's supervisor does beside waiting: it samples NVML, sets clocks, and turns rank 0's news into the table on
// stdout and the files of README.md.
#ifndef POWERCCL_BENCH_REPORT_H
#define POWERCCL_BENCH_REPORT_H
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/beside_cost.h"
#include "bench/clock_guard.h"
#include "bench/json.h"
#include "bench/launch.h"
#include "bench/models.h"
#include "bench/plan.h"
#include "bench/sampler.h"
#include "bench/scenario.h"

namespace powerccl::bench {

struct Setting {  // decided before any rank exists
  bool emulated, moves_data;
  std::string clock_control, clock_reason;  // README.md; the reason may be empty
  size_t skipped_points;
  uint64_t keep_json_lines_bytes;  // --resume: where the file's last whole line ends
};

class Report {
 public:
  Report(const Options& options, const Setting& setting, const std::vector<Point>& plan, const Launch& launch,
         const Model& model, const Scenario& scenario);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // Runs until rank 0 has finished or somebody failed.
  void run();
  // Writes the summary and --json once all ranks are gone. The exit code that the results ask for.
  int conclude();

 private:
  void on_start();
  bool resumes();  // else the run has failed: --resume, of another machine's file
  int on_clock();
  bool clock_holds();  // else the run has failed
  void on_load();
  void on_point();
  void on_step();
  void on_iteration();
  void table_header();
  std::optional<BesideCost> cost_of(const Point& point, const PointNews& news, const Window& window) const;
  bool compares() const { return options_.ways.size() > 1 || options_.besides.size() > 1; }
  void way_line(const Point& point);
  void ways_table() const;
  void table_line(const Point& point, const PointNews& news, const Window& window);
  void write_line(const std::string& line);
  void write_json(bool finished);
  json::Object common() const;
  struct StepEnergy {
    std::optional<double> joules, communication_joules, clock_mhz;  // of all GPUs
  };
  StepEnergy energy_of(const StepNews& step);
  json::Object step_object(const StepNews& step, const StepEnergy& energy) const;
  void conclude_train();
  void add_train(json::Object& object) const;
  void scenario_header() const;
  void add_scenario(json::Object& object) const;
  struct IterationEnd {
    double step_ms;  // of the slowest rank
    uint64_t end_ns;
  };
  IterationEnd end_of(const IterationNews& iteration) const;
  json::Object iteration_object(const IterationNews& iteration);
  void conclude_scenario();
  std::string iterations_text() const;
  std::optional<double> joules_per_iteration(uint64_t start_ns, uint64_t end_ns, size_t iterations,
                                             std::optional<double> run_joules);
  std::string why_no_energy(double run_s) const;

  const Options& options_;
  Setting setting_;
  const std::vector<Point>& plan_;
  const Launch& launch_;
  const Model& model_;
  const Scenario& scenario_;
  Board& board_;
  std::unique_ptr<ClockGuard> guard_;
  std::unique_ptr<Sampler> sampler_;
  std::FILE* lines_ = nullptr;
  bool started_ = false, finished_ = false;
  double started_unix_s_;
  uint64_t started_ns_;
  StartNews start_{};
  std::vector<json::Raw> results_;
  struct Measured {
    Point point;
    double time_us;
    std::optional<double> joules;  // of an operation and GPU
    std::optional<BesideCost> cost;
  };
  std::vector<Measured> measured_;    // with ways or computation to compare
  std::optional<TimeAndPower> load_;  // the last computation by itself, a unit
  Way way_ = Way::kAsGiven;           // of the last line
  std::vector<StepNews> steps_;
  std::vector<IterationNews> iterations_;
  json::Object summary_;  // of train and scenario
  int64_t wrong_ = 0;
  size_t invalid_ = 0;  // results
  double bandwidth_sum_ = 0;
  size_t points_ = 0;
  bool line_open_ = false;  // an out-of-place block waits for its in-place one
};

}  // namespace powerccl::bench
#endif
