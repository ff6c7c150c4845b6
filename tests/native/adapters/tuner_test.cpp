// SPDX-License-Identifier: Apache-2.0
// The tuner plugin as NCCL sees it: dlopened, asked through the tables of each version.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "../record/trace_reader.h"
#include "abi/nccl_tuner.h"
#include "adapters/nccl/tuner_table.h"

namespace powerccl::test {
namespace {

constexpr char kVariable[] = "POWERCCL_TUNER_TABLE";

// Set while the test runs; ranks of other tests must not find it.
class TunerPlugin : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    unsetenv("POWERCCL_DISABLE");
    unsetenv("POWERCCL_DEBUG");
  }
  void TearDown() override {
    unsetenv(kVariable);
    SetUp();
  }
  static void use(const std::string& table) { setenv(kVariable, table.c_str(), 1); }

  Folder folder;
};

// What NCCL then does: the algorithm and protocol of the cheapest cell, and how many channels it was told to take.
struct Choice {
  int algorithm = -1, protocol = -1, channels = 0;
  bool operator==(const Choice&) const = default;
};
std::ostream& operator<<(std::ostream& to, const Choice& choice) {
  return to << choice.algorithm << "/" << choice.protocol << "/" << choice.channels;
}

class Tuner {
 public:
  Tuner(const char* library, int version) : version_(version), library_(dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(library_, nullptr) << dlerror();
    const std::string symbol = "ncclTunerPlugin_v" + std::to_string(version);
    table_ = library_ == nullptr ? nullptr : dlsym(library_, symbol.c_str());
    EXPECT_NE(table_, nullptr) << symbol;
  }

  int init(void** context, size_t ranks, size_t nodes) const {
    nccl::NvlDomains domains = {};
    if (version_ == 4) return of<nccl::TunerV4>()->init(ranks, nodes, nullptr, context);
    if (version_ == 5) return of<nccl::TunerV5>()->init(context, 7, ranks, nodes, nullptr, &domains, nullptr);
    return of<nccl::TunerV6>()->init(context, 7, ranks, nodes, nullptr, &domains, nullptr);
  }
  int finalize(void* context) const {
    if (version_ == 4) return of<nccl::TunerV4>()->destroy(context);
    return version_ == 5 ? of<nccl::TunerV5>()->finalize(context) : of<nccl::TunerV6>()->finalize(context);
  }
  nccl::GetCollectiveInfo get() const {
    if (version_ == 4) return of<nccl::TunerV4>()->get_collective_info;
    return version_ == 5 ? of<nccl::TunerV5>()->get_collective_info : of<nccl::TunerV6>()->get_collective_info;
  }
  template <typename Table>
  const Table* of() const {
    return static_cast<const Table*>(table_);
  }

  // About an all-reduce.
  Choice ask(void* context, uint64_t bytes) const {
    float costs[7][3];
    for (int cell = 0; cell < 21; ++cell) costs[cell / 3][cell % 3] = 100.0f - cell;  // by itself the last one
    Choice choice;
    EXPECT_EQ(
        get()(context, nccl::kTunedAllReduce, bytes, 1, reinterpret_cast<float**>(costs), 7, 3, 0, &choice.channels),
        0);
    float least = 1e9f;
    for (int cell = 0; cell < 21; ++cell) {
      const float cost = costs[cell / 3][cell % 3];
      if (cost >= least) continue;
      least = cost;
      choice.algorithm = cell / 3;
      choice.protocol = cell % 3;
    }
    return choice;
  }

 private:
  int version_;
  void* library_;
  void* table_ = nullptr;
};

constexpr Choice kNccls = {6, 2, 0};

class Communicator {
 public:
  Communicator(const Tuner& tuner, size_t ranks = 8, size_t nodes = 1) : tuner_(tuner) {
    EXPECT_EQ(tuner.init(&context_, ranks, nodes), 0);
  }
  ~Communicator() { EXPECT_EQ(tuner_.finalize(context_), 0); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Choice ask(uint64_t bytes) const { return tuner_.ask(context_, bytes); }

 private:
  const Tuner& tuner_;
  void* context_ = reinterpret_cast<void*>(8);  // NCCL's is not cleared
};

// A library writes to the standard error that it has seen when it was loaded, so this is a file from the start.
const int g_said = [] {
  char name[] = "/tmp/powerccl-said-XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  dup2(file, 2);
  return file;
}();

std::string stderr_of(const std::function<void()>& body) {
  const off_t before = lseek(g_said, 0, SEEK_END);
  body();
  std::string text(static_cast<size_t>(lseek(g_said, 0, SEEK_END) - before), '\0');
  EXPECT_EQ(pread(g_said, text.data(), text.size(), before), static_cast<ssize_t>(text.size()));
  return text;
}

constexpr char kTable[] = "allreduce,0,65536,tree,ll,2,1,-1;allreduce,65537,-1,ring,ll128,-1,1,8";

TEST_P(TunerPlugin, ChoosesByTheTable) {
  use(kTable);
  const Tuner tuner(POWERCCL_PLUGIN_PATH, GetParam());
  const Communicator world(tuner), pair(tuner, 2, 1), nodes(tuner, 8, 2);
  EXPECT_EQ(world.ask(65536), (Choice{nccl::kAlgorithmTree, nccl::kProtocolLl, 2}));
  EXPECT_EQ(world.ask(65537), (Choice{nccl::kAlgorithmRing, nccl::kProtocolLl128, 0}));
  EXPECT_EQ(pair.ask(8), (Choice{nccl::kAlgorithmTree, nccl::kProtocolLl, 2}));
  EXPECT_EQ(pair.ask(65537), kNccls);
  EXPECT_EQ(nodes.ask(8), kNccls);
}

TEST_P(TunerPlugin, WithoutATableAllIsNccls) {
  const Tuner tuner(POWERCCL_PLUGIN_PATH, GetParam());
  const std::string said = stderr_of([&] {
    const Communicator unset(tuner);
    EXPECT_EQ(unset.ask(8), kNccls);
    use("");
    const Communicator empty(tuner);
    EXPECT_EQ(empty.ask(8), kNccls);
    use(kTable);
    setenv("POWERCCL_DISABLE", "1", 1);
    const Communicator disabled(tuner);
    EXPECT_EQ(disabled.ask(8), kNccls);
  });
  EXPECT_EQ(said, "");
}

TEST_P(TunerPlugin, ARefusedTableIsSaidOnceAndAllIsNccls) {
  // The last refusal is the library's, which is not loaded anew for the next version.
  use(std::string(kTable) + ";reduce,0,1,ring,simple" + std::to_string(GetParam()) + ",-1,-1,-1");
  const Tuner tuner(POWERCCL_PLUGIN_PATH, GetParam());
  const std::string said = stderr_of([&] {
    const Communicator one(tuner), two(tuner);
    EXPECT_EQ(one.ask(8), kNccls);
    EXPECT_EQ(two.ask(8), kNccls);
  });
  EXPECT_EQ(said, "powerccl: cannot use the tuner table (POWERCCL_TUNER_TABLE), line 3: unknown protocol `simple" +
                      std::to_string(GetParam()) +
                      "`; NCCL uses its defaults\nhint: docs/reference/tuner-table.md has the format; a path to a "
                      "table begins with /\n");
  setenv("LOCAL_RANK", "1", 1);
  use("other");
  EXPECT_EQ(stderr_of([&] { const Communicator one(tuner); }), "") << "a host's first rank speaks for all";
  unsetenv("LOCAL_RANK");
}

TEST_P(TunerPlugin, ATableMayBeAFile) {
  folder.write("table.csv", "# a comment; with a semicolon\nallreduce,0,-1,ring,ll,4,-1,-1\n");
  use(folder / "table.csv");
  const Tuner tuner(POWERCCL_PLUGIN_PATH, GetParam());
  const Communicator world(tuner);
  folder.write("table.csv", "allreduce,0,-1,tree,ll,4,-1,-1\n");
  EXPECT_EQ(world.ask(8), (Choice{nccl::kAlgorithmRing, nccl::kProtocolLl, 4})) << "read at the start only";
}

TEST_P(TunerPlugin, WhatIsNoFileIsRefused) {
  const Tuner tuner(POWERCCL_PLUGIN_PATH, GetParam());
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string version = std::to_string(GetParam());
  folder.write("large", std::string(200000, '#'));
  const std::string none = folder / ("none" + version), large = folder / "large";
  for (const std::string& path : {none, pipe, folder.path().string(), large}) {
    use(path);
    const std::string said = stderr_of([&] {
      const Communicator world(tuner);
      EXPECT_EQ(world.ask(8), kNccls);
    });
    EXPECT_NE(said.find("cannot use the tuner table"), std::string::npos) << path << ": " << said;
  }
}

TEST_P(TunerPlugin, SaysWhatItHasReadWhenAsked) {
  use(kTable);
  setenv("POWERCCL_DEBUG", "1", 1);
  const Tuner tuner(POWERCCL_PLUGIN_PATH, GetParam());
  EXPECT_EQ(stderr_of([&] { const Communicator world(tuner, 16, 2); }),
            "powerccl: tuner v" + std::to_string(GetParam()) + ": 2 rules; communicator of 16 ranks, nodes: 2\n");
}

TEST_P(TunerPlugin, ACommunicatorKeepsItsTable) {
  use(kTable);
  const Tuner tuner(POWERCCL_PLUGIN_PATH, GetParam());
  const Communicator first(tuner);
  use("allreduce,0,-1,nvls,simple,7,-1,-1");
  const Communicator second(tuner);
  unsetenv(kVariable);
  EXPECT_EQ(first.ask(8), (Choice{nccl::kAlgorithmTree, nccl::kProtocolLl, 2}));
  EXPECT_EQ(second.ask(8), (Choice{nccl::kAlgorithmNvls, nccl::kProtocolSimple, 7}));
}

INSTANTIATE_TEST_SUITE_P(Versions, TunerPlugin, testing::Values(4, 5, 6));

TEST(TunerPluginV6, ChunksAreNccls) {
  const Tuner tuner(POWERCCL_PLUGIN_PATH, 6);
  EXPECT_EQ(tuner.of<nccl::TunerV6>()->get_chunk_size, nullptr);
  EXPECT_STREQ(tuner.of<nccl::TunerV6>()->name, "PowerCCL");
}

}  // namespace
}  // namespace powerccl::test
