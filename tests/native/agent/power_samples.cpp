// SPDX-License-Identifier: Apache-2.0
#include "power_samples.h"

#include <algorithm>
#include <sstream>

#include "agent_process.h"

namespace {

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> words;
  std::stringstream stream(line);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

}  // namespace

PowerSamples read_power_file(const std::string& path) {
  PowerSamples samples;
  std::string text = text_of(path);
  samples.whole = !text.empty() && text.back() == '\n';
  std::vector<std::string> columns;
  for (const std::string& line : lines_of(path)) {
    if (line.starts_with("# ")) {
      size_t colon = line.find(": ");
      samples.whole = samples.whole && columns.empty() && colon != std::string::npos;
      samples.about[line.substr(2, colon - 2)] = line.substr(colon + 2);
    } else if (columns.empty()) {
      columns = split(line);
    } else {
      std::vector<std::string> words = split(line);
      samples.whole = samples.whole && words.size() == columns.size();
      auto& row = samples.rows.emplace_back();
      for (size_t i = 0; i < std::min(words.size(), columns.size()); ++i) row[columns[i]] = words[i];
    }
  }
  return samples;
}
