// SPDX-License-Identifier: Apache-2.0
#include "bench/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "bench/failure.h"
#include "bench/nccl_api.h"
#include "bench/report_json.h"

namespace powerccl::bench {
namespace {

struct Field {
  const char *name, *label;
};
constexpr Field kFields[] = {
    {"host", "host"},
    {"gpu_models", "GPUs"},
    {"nvlinks", "NVLinks per GPU"},
    {"driver", "driver"},
    {"nccl_version", "NCCL"},
    {"nccl_variables", "NCCL's variables"},
    {"emulated_platform", "emulated platform"},
};

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// "4 x NVIDIA H200"
std::string gpu_models(const Board& board) {
  std::map<std::string, int> counts;
  for (int rank = 0; rank < board.ranks(); ++rank) ++counts[board.about[rank].name];
  std::string text;
  for (const auto& [name, count] : counts) text += (text.empty() ? "" : " + ") + std::to_string(count) + " x " + name;
  return text;
}

// All that NCCL reads from the environment, in one order. What only tells of NCCL's work changes no result: its log,
// and the profiler plugin, which may stand in another place each time.
std::string nccl_variables() {
  std::set<std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!text.starts_with("NCCL_") || text.starts_with("NCCL_DEBUG") || text.starts_with("NCCL_PROFILER")) continue;
    found.insert(text);
  }
  std::string all;
  for (const std::string& text : found) all += (all.empty() ? "" : " ") + text;
  return all;
}

std::string shown(const std::string& value) {
  return value == "null" ? "not known" : value.empty() ? "none" : value;
}

std::string other_machine(const std::string& differs) {
  return std::string(" is from another machine (").append(differs).append(")");
}

}  // namespace

json::Object machine_object(const Board& board, const StartNews* start, const Sampler* sampler) {
  const auto if_started = [&](auto text) { return start != nullptr ? text() : std::optional<std::string>(); };
  json::Object object;
  object.add("host", host_name())
      .add("gpu_models", if_started([&] { return std::optional(gpu_models(board)); }))
      .add("nvlinks", if_started([&] { return sampler->nvlinks(); }))
      .add("driver", if_started([&] { return unless_empty(sampler->driver()); }))
      .add("nccl_version", if_started([&] { return std::optional(nccl_version_text(start->nccl_version)); }))
      .add("nccl_variables", if_started([] { return std::optional(nccl_variables()); }))
      .add("emulated_platform", if_started([&] { return std::optional(sampler->emulated_platform()); }));
  return object;
}

void check_same_machine(const std::string& path, const json::Object& here) {
  const std::string hint = "measure into a new file, or leave out --resume to start this one anew";
  const std::string now = here.text();
  std::ifstream file(path);
  bool known = false;
  for (std::string line; std::getline(file, line) && !file.eof() && line.ends_with('}');) {
    const std::string type = json::field(line, "type");
    if (type == "header") {
      known = !json::field(line, "gpu_models").empty();
      std::string differs;
      for (const Field& field : kFields) {
        const std::string before = json::field(line, field.name), value = json::field(now, field.name);
        if (before == value) continue;
        differs.append(differs.empty() ? "" : "; ").append(field.label).append(": ");
        differs.append(shown(before)).append(" there, ").append(shown(value)).append(" here");
      }
      if (known && !differs.empty()) {
        throw Failure(kExitUsage, "--resume: " + path + other_machine(differs), hint);
      }
    }
    if (!known) {
      throw Failure(kExitUsage, "--resume: " + path + " does not say of which machine it is: an older version wrote it",
                    hint);
    }
  }
}

}  // namespace powerccl::bench
