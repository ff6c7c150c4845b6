// SPDX-License-Identifier: Apache-2.0
#include "bench/scenario.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr size_t kMostBytes = 1 << 20;  // of a file: more than all operations there may be
constexpr int kMostIterations = 1'000'000;
constexpr double kMostMs = 60'000;
constexpr int kMostRanks = 64;

// The statements: what a file may say, as it is shown where one is wrong.
struct Form {
  const char *verb, *right;
};
constexpr Form kForms[] = {
    {"iterations", "iterations 120"},
    {"seed", "seed 7"},
    {"streams", "streams comm prefetch"},
    {"group", "group tp 4 (four neighbours each), group dp stride 4 (every fourth rank), or both"},
    {"rank", "rank 3 x1.2"},
    {"compute", "compute 12.5 [memory 80%] [vary 30%] [on STREAM]"},
    {"send", "send 4M to next [in GROUP] [on STREAM]; next, previous, +2 or -2"},
    {"receive", "receive 4M from previous [in GROUP] [on STREAM]; next, previous, +2 or -2"},
    {"wait", "wait compute on comm: comm goes on when all enqueued in compute so far is done"},
    {"sync", "sync compute: the host waits for all enqueued in compute so far"},
    {"repeat", "repeat 4 ... end"},
    {"capture", "capture ... end: a CUDA graph of what is between"},
    {"end", "end"},
    {"from", "from 50%: what follows replaces all above in the second half of the run"},
};

bool is_name(const std::string& word) {
  return !word.empty() && std::isalpha(static_cast<unsigned char>(word[0])) != 0 &&
         std::ranges::all_of(word, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
}

// Text of a file, fit for a message: it may be long, and hold control characters of a terminal.
std::string shown(std::string text) {
  if (text.size() > 1000) text = text.substr(0, 1000) + " ...";
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

class Parser {
 public:
  explicit Parser(Scenario& scenario) : scenario_(scenario) {}

  void parse(const std::string& line) {
    ++line_;
    std::istringstream text(line.substr(0, line.find('#')));
    words_.clear();
    at_ = 1;
    for (std::string word; text >> word;) words_.push_back(word);
    if (words_.empty()) return;
    right_.clear();
    for (const Form& form : kForms) {
      if (words_[0] == form.verb) right_ = form.right;
    }
    statement(words_[0]);
    if (at_ < words_.size()) refuse("'" + words_[at_] + "' is one word too many");
  }

  void finish() {
    if (!blocks_.empty()) {
      line_ = blocks_.back().line;
      refuse("this block has no `end`", "end");
    }
    for (const Section& section : scenario_.sections) {
      if (section.operations.empty()) refuse("an iteration without any operation", "compute 10");
    }
  }

 private:
  struct Block {
    bool captures;
    int line, count;
    size_t first;  // its first operation
  };

  [[noreturn]] void refuse(const std::string& what, const std::string& right = {}) const {
    throw Failure(kExitUsage, where() + shown(what), shown(right.empty() ? right_ : right));
  }
  std::string where() const { return scenario_.file + ":" + std::to_string(line_) + ": "; }
  // values.h's refusals, with this line's place and form in place of an option's.
  template <typename Parse>
  auto value(Parse parse) const {
    try {
      return parse(where() + words_[0]);
    } catch (const Failure& failure) {
      throw Failure(kExitUsage, shown(failure.what()), right_);
    }
  }
  double number(const std::string& text, double low, double high) const {
    return value([&](const std::string& here) { return parse_number(text, here, low, high); });
  }
  int integer(const std::string& text, int low, int high) const {
    return value([&](const std::string& here) { return parse_integer(text, here, low, high); });
  }
  size_t size() {
    const std::string& text = next("a size");
    return value([&](const std::string& here) { return parse_size(text, here); });
  }

  const std::string& next(const char* what) {
    if (at_ == words_.size()) refuse("`" + words_[0] + "` without " + what);
    return words_[at_++];
  }
  void expect(const char* word) {
    if (next(("`" + std::string(word) + "`").c_str()) != word)
      refuse("not `" + words_[at_ - 1] + "` but `" + word + "`");
  }
  double percent(double low, double high) {
    std::string text = next("a share");
    if (!text.ends_with('%')) refuse("'" + text + "' is no share: it ends in %");
    text.pop_back();
    return number(text, low, high) / 100;
  }
  size_t stream() {
    const std::string& name = next("a stream");
    const auto position = std::ranges::find(scenario_.streams, name);
    if (position == scenario_.streams.end()) {
      refuse("no stream is called '" + name + "'",
             "there are " + names_of(scenario_.streams) + "; `streams " + name + "` at the top would make it");
    }
    return static_cast<size_t>(position - scenario_.streams.begin());
  }
  size_t group() {
    const std::string& name = next("a group");
    const auto position = std::ranges::find(scenario_.groups, name, &Group::name);
    if (position == scenario_.groups.end()) {
      refuse("no group is called '" + name + "'",
             "there are " + names_of(scenario_.groups) + "; `group " + name + " 4` at the top would make one");
    }
    return static_cast<size_t>(position - scenario_.groups.begin());
  }
  Way way(Pattern pattern) {
    const std::string& name = next("a way");
    const auto choice = named(kWays, name);
    if (!choice) refuse("no way is called '" + name + "'", "there are " + names_of(kWays));
    if (carries_out(*choice, pattern)) return *choice;
    std::string others;
    for (const WayInfo& each : kWays) {
      if (carries_out(each.value, pattern)) others += (others.empty() ? "" : ", ") + std::string(each.name);
    }
    refuse("NCCL does not carry `" + words_[0] + "` out by " + name, "it does by " + others);
  }
  std::vector<Operation>& operations() { return scenario_.sections.back().operations; }

  void statement(const std::string& verb) {
    const auto pattern = pattern_named(verb);
    if (pattern && verb == info(*pattern).name) {
      right_ = verb + " 25M [vary 30%, of all_to_all] [in GROUP] [on STREAM] [by WAY]";
      return collective(*pattern);
    }
    if (verb == "iterations" || verb == "seed" || verb == "streams" || verb == "group" || verb == "rank") {
      return heading(verb);
    }
    if (verb == "compute") return compute();
    if (verb == "send" || verb == "receive") return transfer(verb == "send");
    if (verb == "wait" || verb == "sync") return wait(verb == "wait");
    if (verb == "repeat" || verb == "capture") return open_block(verb == "capture");
    if (verb == "end") return close_block();
    if (verb == "from") return open_section();
    std::string known;
    for (const Form& form : kForms) known += std::string(form.verb) + ", ";
    refuse("`" + verb + "` means nothing", known + names_of(kPatterns));
  }

  void heading(const std::string& verb) {
    if (scenario_.sections.size() > 1 || !operations().empty() || !blocks_.empty()) {
      refuse("`" + verb + "` must be above all operations", "move it to the top");
    }
    if (verb == "iterations") {
      scenario_.iterations = integer(next("a number"), 1, kMostIterations);
    } else if (verb == "seed") {
      scenario_.seed = static_cast<uint64_t>(integer(next("a number"), 0, 1'000'000'000));
    } else if (verb == "streams") {
      do {
        add_name(scenario_.streams, next("a name"));
      } while (at_ < words_.size());
      if (scenario_.streams.size() > kMaxStreams) refuse("more than " + std::to_string(kMaxStreams) + " streams");
    } else if (verb == "group") {
      Group group{next("a name"), 0, 0};
      if (!is_name(group.name) ||
          std::ranges::find(scenario_.groups, group.name, &Group::name) != scenario_.groups.end())
        refuse("'" + group.name + "' is no name, or taken");
      if (next("its size, or `stride`") != "stride") {
        group.size = integer(words_[at_ - 1], 1, kMostRanks);
        if (at_ < words_.size()) expect("stride");
      }
      if (words_[at_ - 1] == "stride") group.stride = integer(next("a distance"), 1, kMostRanks);
      scenario_.groups.push_back(group);
    } else {
      const int rank = integer(next("its number"), 0, kMostRanks - 1);
      const std::string& factor = next("a factor");
      if (!factor.starts_with('x')) refuse("'" + factor + "' is no factor: it begins with x");
      if (!scenario_.factors.emplace(rank, number(factor.substr(1), 0, 1000)).second)
        refuse("rank " + std::to_string(rank) + " has a factor already");
    }
  }
  void add_name(std::vector<std::string>& names, const std::string& name) {
    if (!is_name(name) || std::ranges::find(names, name) != names.end()) refuse("'" + name + "' is no name, or taken");
    names.push_back(name);
  }

  void add(Operation operation) {
    operation.line = line_;
    if (operations().size() >= kMaxOperations) {
      refuse("more than " + std::to_string(kMaxOperations) + " operations in one iteration", "smaller repeats");
    }
    operations().push_back(operation);
  }

  // [memory P%] [vary P%] [in GROUP] [on STREAM] [by WAY], in any order
  void options(Operation& operation, bool may_vary, bool may_group) {
    bool bound = false, varies = false, grouped = false, streamed = false, has_way = false;
    while (at_ < words_.size()) {
      const std::string word = words_[at_++];
      const bool computes = operation.act == Act::kCompute;
      bool* seen = word == "memory" && computes ? &bound
                   : word == "vary" && may_vary ? &varies
                   : word == "in" && may_group  ? &grouped
                   : word == "on"               ? &streamed
                   : word == "by"               ? &has_way
                                                : nullptr;
      if (word == "by" && operation.act != Act::kCollective) {
        refuse("`" + words_[0] + "` goes no way of NCCL's", "`by` is for collectives; " + right_);
      }
      if (seen == nullptr) refuse("`" + word + "` has no meaning here");
      if (*seen) refuse("`" + word + "` twice");
      *seen = true;
      if (word == "memory") operation.memory = percent(0, 100);
      if (word == "vary") operation.vary = percent(0, 90);
      if (word == "in") operation.group = group();
      if (word == "on") operation.stream = stream();
      if (word == "by") operation.way = way(operation.pattern);
    }
    if (varies && has_way) {
      refuse("`" + words_[0] + "` that varies is made of sends, which go no way of NCCL's", "leave `vary` or `by` out");
    }
    if (varies && in_capture()) refuse("a captured operation cannot vary: its graph is made once", "leave `vary` out");
  }
  bool in_capture() const { return std::ranges::any_of(blocks_, &Block::captures); }

  void compute() {
    Operation operation{Act::kCompute, line_};
    operation.ms = number(next("milliseconds"), 0, kMostMs);
    options(operation, true, false);
    add(operation);
  }
  void collective(Pattern pattern) {
    Operation operation{Act::kCollective, line_};
    operation.pattern = pattern;
    operation.bytes = size();
    options(operation, pattern == Pattern::kAllToAll, true);
    add(operation);
  }
  void transfer(bool sends) {
    Operation operation{sends ? Act::kSend : Act::kReceive, line_};
    operation.bytes = size();
    expect(sends ? "to" : "from");
    operation.towards = neighbour(next("next or previous"));
    options(operation, false, true);
    add(operation);
  }
  // `next`, `previous`, or a distance such as +3 or -2.
  int neighbour(const std::string& whom) const {
    if (whom == "next") return 1;
    if (whom == "previous") return -1;
    if (whom.size() < 2 || (whom[0] != '+' && whom[0] != '-')) refuse("'" + whom + "' is neither next nor previous");
    return integer(whom.substr(1), 1, kMostRanks) * (whom[0] == '+' ? 1 : -1);
  }
  void wait(bool of_stream) {
    Operation operation{of_stream ? Act::kWait : Act::kSync, line_};
    (of_stream ? operation.awaited : operation.stream) = stream();
    if (!of_stream && in_capture()) refuse("the host cannot wait inside a capture", "move it behind `end`");
    if (of_stream) {
      expect("on");
      operation.stream = stream();
      if (operation.stream == operation.awaited) refuse("a stream that waits for itself");
    }
    add(operation);
  }

  void open_block(bool captures) {
    int count = 1;
    if (captures && in_capture()) refuse("a capture inside a capture");
    if (!captures) count = integer(next("a number"), 1, static_cast<int>(kMaxOperations));
    if (captures) add({Act::kCapture, line_});
    blocks_.push_back({captures, line_, count, operations().size()});
  }
  void close_block() {
    if (blocks_.empty()) refuse("there is no block to end");
    const Block block = blocks_.back();
    blocks_.pop_back();
    const std::vector<Operation> body(operations().begin() + static_cast<std::ptrdiff_t>(block.first),
                                      operations().end());
    if (body.empty()) refuse("there is nothing between this and line " + std::to_string(block.line));
    if (block.captures) {
      check_capture(body);
      return add({Act::kEndCapture, line_});
    }
    if (body.size() * static_cast<size_t>(block.count) > kMaxOperations) {
      refuse("more than " + std::to_string(kMaxOperations) + " operations in one iteration", "smaller repeats");
    }
    for (int i = 1; i < block.count; ++i) operations().insert(operations().end(), body.begin(), body.end());
  }

  // CUDA's rule for captures over several streams: they begin on `compute`. Another stream takes part from when it
  // waits for one that does. At the end `compute` has waited for all of them, and for all they do.
  void check_capture(const std::vector<Operation>& body) {
    const auto bit = [](size_t stream) { return 1U << stream; };
    const auto name = [&](size_t stream) { return scenario_.streams[stream]; };
    const auto refuse_at = [&](int line, const std::string& what, const std::string& right) {
      line_ = line;
      refuse(what, right);
    };
    std::array<uint32_t, kMaxStreams> behind{};  // by stream: those whose latest operation it waits for
    uint32_t members = bit(0);
    for (const Operation& operation : body) {
      const size_t stream = operation.stream;
      if (operation.act == Act::kWait) {
        if ((members & bit(operation.awaited)) == 0) {
          refuse_at(operation.line, "stream " + name(operation.awaited) + " is not part of this capture",
                    "let it wait for compute first");
        }
        members |= bit(stream);
        behind[stream] |= behind[operation.awaited] | bit(operation.awaited);
      }
      if ((members & bit(stream)) == 0) {
        refuse_at(operation.line, "stream " + name(stream) + " is not part of this capture",
                  "wait compute on " + name(stream));
      }
      for (size_t other = 0; other < kMaxStreams; ++other) {
        if (other != stream) behind[other] &= ~bit(stream);
      }
    }
    for (size_t stream = 1; stream < scenario_.streams.size(); ++stream) {
      if ((members & ~behind[0] & bit(stream)) == 0) continue;
      refuse("compute does not wait for stream " + name(stream) + " before the capture ends",
             "wait " + name(stream) + " on compute");
    }
  }

  void open_section() {
    const double from = percent(0, 100);
    if (!blocks_.empty()) refuse("`from` inside a block", "end the block first");
    if (operations().empty()) refuse("nothing is above `from`", "what the run begins with, then `from`");
    if (from <= scenario_.sections.back().from || from >= 1) {
      refuse("shares rise, and are between 0% and 100%");
    }
    scenario_.sections.push_back({from, {}});
  }

  Scenario& scenario_;
  int line_ = 0;
  std::vector<std::string> words_;
  size_t at_ = 0;
  std::string right_;  // how this statement should look
  std::vector<Block> blocks_;
};

}  // namespace

bool Scenario::captures(const Section& section) const {
  return std::ranges::any_of(section.operations, [](const Operation& each) { return each.act == Act::kCapture; });
}

const Section& Scenario::section_at(double share) const {
  const Section* last = &sections.front();
  for (const Section& section : sections) {
    if (section.from <= share) last = &section;
  }
  return *last;
}

Scenario parse_scenario(const std::string& text, const std::string& file) {
  Scenario scenario;
  scenario.file = file;
  scenario.name = file.substr(file.rfind('/') + 1);
  scenario.name = scenario.name.substr(0, scenario.name.rfind('.'));
  Parser parser(scenario);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) parser.parse(line);
  parser.finish();
  return scenario;
}

Scenario read_scenario(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Failure(
        kExitUsage, "cannot read " + path + ": " + why,
        "bench/scenarios/ in PowerCCL's repository has ten; docs/reference/scenarios.md says how to write one");
  };
  // Anything but a plain file may keep its reader waiting, or never end.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) refuse(std::strerror(errno));
  struct stat about{};
  std::string text, why;
  if (fstat(file, &about) != 0)
    why = std::strerror(errno);
  else if (!S_ISREG(about.st_mode))
    why = "not a regular file";
  char part[4096];
  ssize_t got = 1;
  while (why.empty() && got != 0) {
    got = ::read(file, part, sizeof part);
    if (got < 0 && errno != EINTR) why = std::strerror(errno);
    if (got > 0) text.append(part, static_cast<size_t>(got));
    if (text.size() > kMostBytes) why = "it is larger than " + std::to_string(kMostBytes) + " bytes";
  }
  close(file);
  if (!why.empty()) refuse(why);
  return parse_scenario(text, path);
}

}  // namespace powerccl::bench
