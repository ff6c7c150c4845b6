// SPDX-License-Identifier: Apache-2.0
// powerccl-sim: what a clock policy makes of a job on an emulated server, in virtual time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "bench/json.h"
#include "bench/values.h"
#include "sim/simulation.h"

namespace {

namespace json = powerccl::bench::json;
namespace sim = powerccl::sim;
using powerccl::kPolicyNames;
using powerccl::PolicyName;

const std::map<std::string, bool sim::Parts::*>& parts() {
  static const std::map<std::string, bool sim::Parts::*> all{{"slack", &sim::Parts::slack},
                                                             {"marks", &sim::Parts::marks}};
  return all;
}

int fail(const std::string& text, const std::string& hint = "") {
  std::fprintf(stderr, "powerccl-sim: %s\n", text.c_str());
  if (!hint.empty()) std::fprintf(stderr, "hint: %s\n", hint.c_str());
  return 1;
}

std::vector<double> column(const sim::Found& result, double sim::Iteration::* field) {
  std::vector<double> values;
  values.reserve(result.iterations.size());
  for (const sim::Iteration& each : result.iterations) values.push_back(each.*field);
  return values;
}

void print(const sim::Found& result, const std::string& policy, const std::string& json_file) {
  const auto number = static_cast<double>(result.iterations.size());
  const double ms = result.seconds * 1e3 / number, joules = result.joules / number;
  std::printf("%s, simulated: %zu iterations of %.3f ms, %.3f J of all GPUs, %.3f ms exposed, %.2f switches/s\n",
              policy.c_str(), result.iterations.size(), ms, joules, result.exposed_ms, result.switches_per_s);
  std::printf("%.1f s of virtual time in %.2f s: %.0f times real time\n", result.virtual_s, result.real_s,
              result.virtual_s / result.real_s);
  if (json_file.empty()) return;
  json::Object object;
  object.add("policy", policy)
      .add("iterations", result.iterations.size())
      .add("iteration_ms", ms)
      .add("joules_per_iteration", joules)
      .add("exposed_ms", result.exposed_ms)
      .add("switches_per_s", result.switches_per_s)
      .add("clocks_mhz", result.clocks_mhz)
      .add("first_clock_s", result.first_clock_s)
      .add("first", result.first)
      .add("each_ms", column(result, &sim::Iteration::ms))
      .add("each_joules", column(result, &sim::Iteration::joules))
      .add("virtual_s", result.virtual_s);
  sim::write_json(object, json_file);
}

constexpr uint64_t kLeastBytes = uint64_t{128} << 10, kMostBytes = uint64_t{256} << 20;
constexpr uint32_t kClocks = 24;  // of a profile

// What `powerccl profile` measures of a platform, without the noise of measuring: a JSON object.
void write_profile(const powerccl::physics::Platform& platform, const std::string& file_name) {
  namespace physics = powerccl::physics;
  std::vector<json::Raw> points;
  const double range = platform.clock_max_mhz - platform.clock_min_mhz;
  for (size_t i = 0; i < physics::kPatterns; ++i) {
    const auto pattern = static_cast<physics::Pattern>(i);
    for (uint64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2) {
      for (uint32_t step = 0; step < kClocks; ++step) {
        const double mhz = platform.snap_mhz(platform.clock_max_mhz - range * step / (kClocks - 1));
        const double us = platform.collective_ns(pattern, static_cast<double>(bytes), mhz, platform.gpus) / 1e3;
        points.push_back({"[" + json::value(physics::pattern_name(pattern)) + ", " + json::value(bytes) + ", " +
                          json::value(mhz) + ", " + json::value(us) + "]"});
      }
    }
  }
  json::Object object;
  object.add("gpu", platform.gpu_name)
      .add("gpus", platform.gpus)
      .add("clock_min_mhz", platform.clock_min_mhz)
      .add("clock_max_mhz", platform.clock_max_mhz)
      .add("set_clock_call_us", platform.set_clock_call_us)
      // There and back.
      .add("clock_transition_us", (platform.transition_us(platform.clock_min_mhz) + platform.transition_us(0)) / 2)
      .add("points", points);
  sim::write_json(object, file_name);
}

std::string text_of(const std::string& file_name) {
  std::ifstream file(file_name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What a run folder says of the job. Where results go is no part of it, nor of its command.
sim::About about(const CLI::App& app, const std::vector<std::string>& scenarios, const std::string& table_file,
                 uint32_t fingerprint, const sim::Asked& asked) {
  sim::About description;
  description.scenarios = scenarios;
  description.policy = powerccl::kPolicyNames[static_cast<size_t>(asked.policy)];
  description.clocks = asked.policy == PolicyName::kObserve && asked.clocks_mhz.empty() ? "none" : "simulated";
  if (asked.policy == PolicyName::kAuto) description.budget_pct = asked.budget_pct;
  description.seconds = asked.seconds;
  description.warm_up_s = asked.warm_up_s;
  description.seed = asked.seed;
  description.command = {"powerccl-sim"};
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (name == "--json" || name == "--run-folder") continue;
    for (const std::string& value : option->results()) {
      if (name.starts_with("--")) description.command.push_back(name);
      description.command.push_back(value);
    }
  }
  description.contents = json::value(description.command) + json::value(fingerprint) + text_of(table_file);
  for (const std::string& file : scenarios) description.contents += text_of(file);
  return description;
}

sim::LeaseLoss lease_loss(const std::string& text, const powerccl::physics::Platform& platform) {
  sim::LeaseLoss loss;
  std::istringstream in(text);
  char first = 0, second = 0;
  in >> loss.host >> first >> loss.from_s >> second >> loss.to_s;
  const bool read = !in.fail() && in.peek() == EOF && first == ':' && second == ':';
  if (!read || loss.host >= platform.hosts || loss.from_s < 0 || loss.to_s <= loss.from_s) {
    throw powerccl::bench::Failure(powerccl::bench::kExitUsage, "--lease-lost " + text + " names no span of a host",
                                   "HOST:FROM:TO, such as 0:30:60; hosts count from 0 and times are in seconds");
  }
  return loss;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{"What a clock policy makes of a job on an emulated server, in virtual time."};
  std::vector<std::string> scenario_files;
  std::string platform_file, table_file, policy = "observe", json_file, profile_file, run_folder;
  sim::Asked asked;
  app.add_option("scenario", scenario_files, "Scenario file of powerccl-bench: one for all ranks, or one for each");
  app.add_option("--platform", platform_file, "Platform file of the emulator, as FILE[:KEY=VALUE,...]")->required();
  app.add_option("--policy", policy, "observe, per-call or auto")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kPolicyNames), std::end(kPolicyNames))))
      ->capture_default_str();
  std::vector<std::string> without;
  app.add_option("--without", without, "Parts of policy auto to leave out: slack, marks")
      ->check(CLI::IsMember(parts()))
      ->delimiter(',');
  app.add_option("--clock", asked.clocks_mhz,
                 "Hold this clock in MHz all the time, under policy observe; one for all ranks, or one for each")
      ->delimiter(',');
  app.add_option("--profile", profile_file, "Only write what profiling that platform would measure to this file");
  app.add_option("--table", table_file, "Policy table of that platform, for policy per-call");
  app.add_option("--max-slowdown", asked.budget_pct, "In percent")->check(CLI::Range(0.0, 50.0))->capture_default_str();
  app.add_option("--seconds", asked.seconds, "Virtual time that is measured")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  app.add_option("--warm-up", asked.warm_up_s, "Virtual seconds before it, at least an iteration")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--seed", asked.seed, "Of the hosts' times")->capture_default_str();
  app.add_option("--lease-interval", asked.lease_interval_ms,
                 "Milliseconds from one clock of a GPU to the next lower one, as powerccld grants them")
      ->check(CLI::Range(0.0, 60000.0))
      ->capture_default_str();
  std::vector<std::string> losses;
  app.add_option("--lease-lost", losses, "HOST:FROM:TO: that host has no lease between these seconds of the job")
      ->delimiter(',');
  app.add_option("--ranks-off", asked.ranks_off, "Ranks whose policies do not see the first iteration")->delimiter(',');
  app.add_option("--json", json_file, "Also write the result to this file");
  app.add_option("--run-folder", run_folder,
                 "Also write what the job would have recorded to this new folder, for `powerccl report`");
  CLI11_PARSE(app, argc, argv);
  std::string error;
  const auto platform = powerccl::physics::read_platform(platform_file, error);
  if (!platform) return fail(error);
  if (!profile_file.empty()) {
    write_profile(*platform, profile_file);
    return 0;
  }
  if (scenario_files.empty()) return fail("there is no scenario to run", "name a file of bench/scenarios");
  if (!asked.clocks_mhz.empty() && policy != "observe") return fail("--clock leaves no clock to policy " + policy);
  if (asked.clocks_mhz.size() > 1 && asked.clocks_mhz.size() != platform->gpus) {
    return fail("--clock has " + std::to_string(asked.clocks_mhz.size()) + " clocks for " +
                    std::to_string(platform->gpus) + " ranks",
                "give one for all, or one for each");
  }
  for (const uint32_t rank : asked.ranks_off) {
    if (rank >= platform->gpus) {
      return fail("--ranks-off names rank " + std::to_string(rank) + " of " + std::to_string(platform->gpus),
                  "ranks count from 0");
    }
  }
  std::vector<powerccl::bench::Scenario> scenarios;
  scenarios.reserve(scenario_files.size());
  for (const std::string& file : scenario_files) scenarios.push_back(powerccl::bench::read_scenario(file));
  for (const std::string& loss : losses) asked.lease_losses.push_back(lease_loss(loss, *platform));
  asked.policy = static_cast<PolicyName>(std::ranges::find(kPolicyNames, policy) - kPolicyNames);
  for (const std::string& part : without) asked.parts.*parts().at(part) = false;
  powerccl::PolicyTable table;
  powerccl::PolicyTable::Refusal refusal;
  if (asked.policy == PolicyName::kPerCall) {
    if (table_file.empty()) return fail("policy " + policy + " needs a policy table", "--table FILE");
    if (!table.load(table_file.c_str(), &refusal)) {
      return fail(table_file + ", line " + std::to_string(refusal.line) + ": " + refusal.reason);
    }
  }
  std::optional<sim::RunFolder> folder;
  if (!run_folder.empty()) {
    folder.emplace(run_folder, *platform, about(app, scenario_files, table_file, platform->fingerprint, asked));
  }
  print(sim::simulate(*platform, scenarios, &table, asked, folder ? &*folder : nullptr), policy, json_file);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const powerccl::bench::Failure& failure) {
    std::fprintf(stderr, "powerccl-sim: %s\nhint: %s\n", failure.what(), failure.hint().c_str());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "powerccl-sim: %s\n", failure.what());
  }
  return 1;
}
