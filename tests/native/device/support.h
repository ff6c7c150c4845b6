// SPDX-License-Identifier: Apache-2.0
// A scratch folder, and the state that the fake NVML shares with a test.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "fake_nvml.h"

// powercap in a folder of plain files.
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

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string form = (std::filesystem::temp_directory_path() / "powerccl-test-XXXXXX").string();
    path_ = mkdtemp(form.data());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The fake maps the file once a process, so all tests of a program share this one and begin by clear().
class FakeNvml {
 public:
  static FakeNvml& instance() {
    static FakeNvml only;
    return only;
  }
  FakeState* operator->() { return state_; }
  void clear() {
    *state_ = FakeState{};
    state_->gpus = 2;
    state_->architecture = 6;  // Turing
    state_->temperature_c = 41;
    state_->utilization_pct = 77;
    state_->power_limit_mw = 60000;
    state_->power_limit_max_mw = 70000;
    for (unsigned i = 0; i < kFakeGpus; ++i) {
      state_->gpu[i].power_mw = 30000 + i;
      state_->gpu[i].clock_mhz = 1590;
      state_->gpu[i].energy_mj = 1000;
    }
  }

 private:
  FakeNvml() {
    std::string path = folder_.path() + "/state";
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    EXPECT_EQ(ftruncate(fd, sizeof(FakeState)), 0);
    state_ = static_cast<FakeState*>(mmap(nullptr, sizeof(FakeState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    setenv("FAKE_NVML_STATE", path.c_str(), 1);
    clear();
  }
  ScratchFolder folder_;
  FakeState* state_;
};

inline std::string fake_uuid(unsigned index) {
  char text[48];
  std::snprintf(text, sizeof text, FAKE_UUID_FORMAT, index);
  return text;
}
