// SPDX-License-Identifier: Apache-2.0
#include "bench/plan.h"

#include <fstream>

#include "bench/json.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

using json::field;

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + "|";
  return text;
}

}  // namespace

std::string key_of(const Point& point, int ranks) {
  const PatternInfo& pattern = info(point.pattern);
  return join({pattern.name, std::to_string(point.shape.size_bytes), info(point.type).name,
               pattern.reduces ? info(point.op).name : "null", pattern.has_root() ? std::to_string(point.root) : "null",
               point.in_place ? "true" : "false", std::to_string(ranks),
               point.clock_mhz == kClockAsFound ? "null" : std::to_string(point.clock_mhz),
               point.way == Way::kAsGiven ? "null" : info(point.way).name,
               point.beside == Beside::kNothing ? "null" : info(point.beside).name});
}

std::set<std::string> done_points(const std::string& path, uint64_t* whole_bytes) {
  std::set<std::string> done;
  std::ifstream file(path);
  std::string line;
  uint64_t whole = 0;
  while (std::getline(file, line)) {
    if (file.eof() || !line.ends_with('}')) break;
    whole += line.size() + 1;
    if (field(line, "type") != "point" || field(line, "valid") == "false") continue;
    done.insert(join({field(line, "pattern"), field(line, "size_bytes"), field(line, "dtype"), field(line, "op"),
                      field(line, "root"), field(line, "in_place"), field(line, "ranks"),
                      field(line, "clock_requested_mhz"), field(line, "way").empty() ? "null" : field(line, "way"),
                      field(line, "beside").empty() ? "null" : field(line, "beside")}));
  }
  if (whole_bytes != nullptr) *whole_bytes = whole;
  return done;
}

std::vector<size_t> sizes_of(const Options& options) {
  return sizes_between(options.min_bytes, options.max_bytes, options.step_bytes, options.factor);
}

namespace {

std::vector<std::pair<Way, Beside>> ways_beside(const Options& options) {
  std::vector<std::pair<Way, Beside>> all;
  for (const Way way : options.ways) {
    for (const Beside beside : options.besides) all.emplace_back(way, beside);
  }
  return all;
}

}  // namespace

std::vector<Point> make_plan(const Options& options, int ranks, const std::set<std::string>& done) {
  std::vector<Point> plan;
  const auto add = [&](Point point) {
    if (!done.contains(key_of(point, ranks))) plan.push_back(point);
  };
  for (const auto& [way, beside] : ways_beside(options)) {
    for (const int clock : options.clocks_mhz) {
      for (const Pattern pattern : options.patterns) {
        if (!carries_out(way, pattern)) continue;
        const PatternInfo& about = info(pattern);
        const std::vector<Op> ops = about.reduces ? options.ops : std::vector<Op>{Op::kSum};
        const int first_root = about.has_root() && options.root >= 0 ? options.root : 0;
        const int last_root = about.has_root() && options.root < 0 ? ranks - 1 : first_root;
        for (const Type type : options.types) {
          for (const Op op : ops) {
            for (int root = first_root; root <= last_root; ++root) {
              for (const size_t size : sizes_of(options)) {
                const Shape shape = shape_of(pattern, size, type, ranks);
                add({pattern, type, op, root, clock, false, shape, way, beside});
                if (options.in_place && about.in_place) add({pattern, type, op, root, clock, true, shape, way, beside});
              }
            }
          }
        }
      }
    }
  }
  return plan;
}

}  // namespace powerccl::bench
