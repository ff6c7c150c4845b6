// SPDX-License-Identifier: Apache-2.0
// What rank 0's supervisor does beside waiting: it samples NVML and asks for clocks. It turns rank 0's news into the
// lines on stdout and the files of docs/reference/bench.md. A mode's own part is one of the reports below.
#pragma once
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/json.h"
#include "bench/launch.h"
#include "bench/measurement.h"
#include "bench/plan.h"
#include "bench/sampler.h"
#include "bench/scenario.h"

namespace powerccl::bench {

// The process that holds leases on the GPUs sets clocks (`powerccl bench` or `powerccl profile`). The daemon restores
// the clocks when that process ends. The messages of this socket are in docs/reference/bench.md.
class ClockSocket {
 public:
  // Takes over the inherited descriptor.
  explicit ClockSocket(int socket) : socket_(socket) { fcntl(socket_, F_SETFD, FD_CLOEXEC); }
  ~ClockSocket() { close(socket_); }
  ClockSocket(const ClockSocket&) = delete;
  ClockSocket& operator=(const ClockSocket&) = delete;

  // Sets the SM clock of all GPUs; 0 MHz is the default clock. Returns "", or why it could not be set.
  std::string set(int mhz) { return ask(mhz); }
  // Asks whether the clock that was set last still holds: "", or why not.
  std::string check() { return ask(-1); }

 private:
  std::string ask(int32_t request) {
    char answer[240] = "";
    if (send(socket_, &request, sizeof request, MSG_NOSIGNAL) != sizeof request ||
        recv(socket_, answer, sizeof answer, 0) != sizeof answer) {
      return "the process that sets clocks has died";
    }
    answer[sizeof answer - 1] = '\0';
    return answer;
  }

  int socket_;
};

struct Setting {  // decided before any rank exists
  bool emulated, moves_data;
  std::string clock_control, clock_reason;  // docs/reference/bench.md; the reason may be empty
  size_t skipped_points;
  uint64_t keep_json_lines_bytes;  // --resume: where the file's last whole line ends
};

class Report {
 public:
  Report(const Options& options, const Setting& setting, const Launch& launch);
  virtual ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // Runs until rank 0 has finished or a process failed.
  void run();
  // Writes the summary and --json once all ranks are gone. The exit code that the results ask for.
  int conclude();

 protected:
  virtual void on_news(Tell what) = 0;           // of the mode
  virtual void add_mode(json::Object&) const {}  // what is known of all results, to the common object
  virtual void on_end() {}                       // once there was a start
  virtual json::Object summary() const = 0;
  bool clock_holds();  // else the run has failed
  // To stdout; `keep`: to the file of --json-lines as well.
  void write_line(const char* type, const json::Object& object, bool keep = false);
  std::optional<double> joules(uint64_t from_ns, uint64_t to_ns) const;  // of all GPUs
  std::optional<double> clock_mhz(uint64_t from_ns, uint64_t to_ns) const;

  const Options& options_;
  Setting setting_;
  const Launch& launch_;
  Board& board_;
  std::unique_ptr<Sampler> sampler_;
  StartNews start_{};
  std::vector<json::Raw> results_;
  int64_t wrong_ = 0;
  size_t points_ = 0, invalid_ = 0;  // results
  std::FILE* lines_ = nullptr;

 private:
  void on_start();
  bool resumes();  // else the run has failed: --resume, of another machine's file
  int on_clock();
  json::Object ending() const;
  json::Object common() const;

  std::unique_ptr<ClockSocket> clocks_;
  bool started_ = false, finished_ = false;
  double started_unix_s_;
  uint64_t started_ns_;
};

std::unique_ptr<Report> sweep_report(const Options& options, const Setting& setting, const Launch& launch,
                                     const std::vector<Point>& plan);
std::unique_ptr<Report> scenario_report(const Options& options, const Setting& setting, const Launch& launch,
                                        const Scenario& scenario);

// Now, in seconds since 1970.
double unix_s();
std::optional<double> median_of(const std::vector<double>& values);

// ---- Objects that sweeps and servers have in common.
// What is common to every mode. `start` and `sampler` are null before the ranks have started.
json::Object header_object(const Options& options, const Setting& setting, const Launch& launch, double started_unix_s,
                           const StartNews* start, Sampler* sampler);
// GB/s by NCCL tests' size; 0 where nothing took time.
double algbw_gbs(const Point& point, const PointNews& news);
// Replaces the sampled energy of the loop by the emulator's; does nothing on real GPUs.
void take_emulated_energy(const PointNews& news, int ranks, Window& window);
// `cost`: of a point beside computation.
json::Object point_object(const Point& point, const PointNews& news, const Window& window, int ranks, bool clock_set,
                          const std::optional<BesideCost>& cost = std::nullopt);

inline std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}

// host, gpu_models, nvlinks, driver, nccl_version, nccl_variables and emulated_platform; the last six are
// null before the ranks have started (`start` and `sampler` are null).
json::Object machine_object(const Board& board, const StartNews* start, const Sampler* sampler);

// Throws Failure(kExitUsage) where the --json-lines file `path` holds lines of another machine than `here`, or does not
// say of which; names all fields that differ.
void check_same_machine(const std::string& path, const json::Object& here);

}  // namespace powerccl::bench
