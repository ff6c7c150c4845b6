// SPDX-License-Identifier: Apache-2.0
// Stands in for libFuzzer where there is no clang: gives the harness each file of the folders named, and then so many
// random mutations of them, the same each time.
//   <harness> MUTATIONS SEED FOLDER...
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz.h"

namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kLongest = 8192;

std::vector<Bytes> read_corpus(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  for (int i = 3; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void mutate(Bytes* bytes, const std::vector<Bytes>& corpus, std::mt19937_64* random) {
  const auto below = [&](size_t end) { return end == 0 ? 0 : static_cast<size_t>((*random)() % end); };
  const size_t at = below(bytes->size() + 1);
  const auto offset = static_cast<std::ptrdiff_t>(at);
  switch (below(6)) {
    case 0:  // a bit
      if (at < bytes->size()) (*bytes)[at] ^= static_cast<uint8_t>(1u << below(8));
      break;
    case 1:  // a byte, often one that is the end of a range
      if (at < bytes->size()) {
        constexpr uint8_t kTelling[] = {0, 1, 0x7f, 0x80, 0xff};
        (*bytes)[at] = below(2) != 0 ? kTelling[below(5)] : static_cast<uint8_t>(below(256));
      }
      break;
    case 2: {  // some go
      const size_t length = std::min(below(16) + 1, bytes->size() - at);
      bytes->erase(bytes->begin() + offset, bytes->begin() + offset + static_cast<std::ptrdiff_t>(length));
      break;
    }
    case 3: {  // some come
      const Bytes some(below(16) + 1, static_cast<uint8_t>(below(256)));
      bytes->insert(bytes->begin() + offset, some.begin(), some.end());
      break;
    }
    case 4: {  // a piece of another
      const Bytes& other = corpus[below(corpus.size())];
      const size_t from = below(other.size() + 1), length = below(other.size() - from + 1);
      const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
      bytes->insert(bytes->begin() + offset, begin, begin + static_cast<std::ptrdiff_t>(length));
      break;
    }
    default:  // its end goes
      if (below(8) == 0) bytes->resize(at);
  }
  if (bytes->size() > kLongest) bytes->resize(kLongest);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s MUTATIONS SEED FOLDER...\n", argv[0]);
    return 2;
  }
  const std::vector<Bytes> corpus = read_corpus(argc, argv);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: the corpus is empty\n", argv[0]);
    return 1;
  }
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  const uint64_t mutations = std::strtoull(argv[1], nullptr, 10);
  for (uint64_t i = 0; i < mutations; ++i) {
    Bytes bytes = corpus[random() % corpus.size()];
    for (uint64_t changes = 1 + random() % 8; changes > 0; --changes) mutate(&bytes, corpus, &random);
    // A copy of the very size, so that a sanitizer sees one byte too far.
    const std::vector<uint8_t> exact(bytes);
    // What was given last can be looked at when it crashes.
    if (const char* path = std::getenv("POWERCCL_FUZZ_LAST"); path != nullptr)
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(exact.data()), static_cast<std::streamsize>(exact.size()));
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }
  std::printf("%zu files and %llu mutations\n", corpus.size(), static_cast<unsigned long long>(mutations));
  return 0;
}
