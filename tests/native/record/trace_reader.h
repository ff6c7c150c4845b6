// SPDX-License-Identifier: Apache-2.0
// Reads a trace back as any reader would: the header, then the committed records.
#pragma once
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "abi/trace.h"

namespace powerccl::test {

struct TraceFile {
  bool good = false;
  powerccl_trace_header header = {};
  std::vector<powerccl_trace_record> records;

  std::vector<powerccl_trace_record> of(uint16_t kind) const {
    std::vector<powerccl_trace_record> found;
    for (const auto& record : records) {
      if (record.kind == kind) found.push_back(record);
    }
    return found;
  }
  // All notes, one a line.
  std::string notes() const {
    std::string text;
    for (const auto& record : of(POWERCCL_REC_NOTE)) {
      text += std::string(record.note.text, strnlen(record.note.text, sizeof(record.note.text))) + "\n";
    }
    return text;
  }
};

inline TraceFile read_trace(const std::filesystem::path& path) {
  TraceFile file;
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  if (bytes.size() < POWERCCL_TRACE_HEADER_BYTES) return file;
  std::memcpy(&file.header, bytes.data(), sizeof(file.header));
  if (std::memcmp(file.header.magic, POWERCCL_TRACE_MAGIC, 8) != 0) return file;
  const size_t size = POWERCCL_TRACE_HEADER_BYTES + file.header.committed * POWERCCL_TRACE_RECORD_BYTES;
  if (bytes.size() < size) return file;
  file.records.resize(file.header.committed);
  if (!file.records.empty()) {
    std::memcpy(file.records.data(), bytes.data() + POWERCCL_TRACE_HEADER_BYTES, size - POWERCCL_TRACE_HEADER_BYTES);
  }
  file.good = true;
  return file;
}

// A folder that is gone when the test is over.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "powerccl-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  std::vector<std::filesystem::path> traces() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() == ".trace") found.push_back(entry.path());
    }
    return found;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace powerccl::test
