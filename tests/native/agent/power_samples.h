// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <vector>

struct PowerSamples {
  std::map<std::string, std::string> about;  // the "# key: value" lines
  std::vector<std::map<std::string, std::string>> rows;
  bool whole = false;  // ends in a newline, and every row has every column
};
PowerSamples read_power_file(const std::string& path);
