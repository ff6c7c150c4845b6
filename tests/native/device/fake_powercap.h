// SPDX-License-Identifier: Apache-2.0
// powercap in a folder of plain files.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

inline void write_file(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

inline std::string zone_path(const std::string& sysfs, const std::string& zone) {
  return sysfs + "/class/powercap/" + zone;
}

inline void make_zone(const std::string& sysfs, const std::string& zone, const std::string& name, long energy_uj) {
  write_file(zone_path(sysfs, zone) + "/name", name + "\n");
  write_file(zone_path(sysfs, zone) + "/energy_uj", std::to_string(energy_uj) + "\n");
  write_file(zone_path(sysfs, zone) + "/max_energy_range_uj", "262143328850\n");
}
