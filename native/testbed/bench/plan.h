// SPDX-License-Identifier: Apache-2.0
// The points of a sweep, in the order they are measured, and which of them are already done.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "bench/options.h"
#include "bench/pattern.h"

namespace powerccl::bench {

struct Point {
  Pattern pattern;
  Type type;
  Op op;
  int root;
  int clock_mhz;  // kClockAsFound: leave it
  bool in_place;
  Shape shape;
  Way way = Way::kAsGiven;
  Beside beside = Beside::kNothing;
};

// Identifies a point in `--json-lines` files, whatever order their fields have.
std::string key_of(const Point& point, int ranks);

// The keys of the points that a `--json-lines` file holds. A last line without its end is not counted.
// `whole_bytes`, if given, is set to the length of the file up to its last whole line.
std::set<std::string> done_points(const std::string& path, uint64_t* whole_bytes = nullptr);

// Ways outermost, since each takes a communicator of its own. Then what is computed beside them, which is measured
// alone first. Then clocks, since changing one is slow and must settle; then pattern, type, operator, root, size.
std::vector<Point> make_plan(const Options& options, int ranks, const std::set<std::string>& done);

std::vector<size_t> sizes_of(const Options& options);

}  // namespace powerccl::bench
