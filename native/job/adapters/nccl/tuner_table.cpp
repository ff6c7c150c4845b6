// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/tuner_table.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include <charconv>

#include "abi/nccl_tuner.h"

namespace powerccl::nccl {
namespace {

struct Word {
  std::string_view text;
  uint8_t value;
};

constexpr Word kCollectives[] = {
    {"allreduce", kTunedAllReduce},         {"broadcast", kTunedBroadcast}, {"reduce", kTunedReduce},
    {"reducescatter", kTunedReduceScatter}, {"allgather", kTunedAllGather},
};
constexpr Word kAlgorithms[] = {
    {"ring", kAlgorithmRing},
    {"tree", kAlgorithmTree},
    {"nvls", kAlgorithmNvls},
    {"nvls_tree", kAlgorithmNvlsTree},
    {"collnet_direct", kAlgorithmCollnetDirect},
    {"collnet_chain", kAlgorithmCollnetChain},
    {"pat", kAlgorithmPat},
};
constexpr Word kProtocols[] = {{"ll", kProtocolLl}, {"ll128", kProtocolLl128}, {"simple", kProtocolSimple}};

constexpr int kFields = 10, kLeastFields = 8;  // the last two may be missing
constexpr std::string_view kHeader = "collective_type";

// A word of the table as a message shows it: cut, printable, and terminated.
struct Shown {
  char text[33];
  explicit Shown(std::string_view word) {
    const size_t length = word.size() < sizeof(text) ? word.size() : sizeof(text) - 1;
    for (size_t i = 0; i < length; ++i) text[i] = word[i] >= ' ' && word[i] <= '~' ? word[i] : '?';
    text[length] = '\0';
  }
};

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// The text before the next `separator`. Removes both from `text`.
std::string_view next(std::string_view* text, char separator) {
  const size_t end = text->find(separator);
  const size_t length = end == std::string_view::npos ? text->size() : end;
  const std::string_view before(text->begin(), text->begin() + length);
  text->remove_prefix(end == std::string_view::npos ? length : length + 1);
  return before;
}

// Over several nodes NVLS reduces in the network, too.
bool in_network(int algorithm, TunerShape shape) {
  return algorithm == kAlgorithmCollnetDirect || algorithm == kAlgorithmCollnetChain ||
         (algorithm == kAlgorithmNvls && shape.nodes > 1);
}

bool matches(int wanted, int value) {
  return wanted == kAnyValue || wanted == value;
}

}  // namespace

class TunerTable::Parser {
 public:
  Parser(TunerTable* table, Refusal* refusal) : table_(*table), refusal_(*refusal) {}

  bool run(std::string_view text) {
    refusal_ = Refusal();
    if (text.size() > kMaxTextBytes) return refuse("the table is larger than %zu bytes", kMaxTextBytes);
    // Only a text without newlines is split at semicolons, so that a file's comments may have them.
    const char separator = text.find('\n') == std::string_view::npos ? ';' : '\n';
    while (!text.empty()) {
      ++refusal_.line;
      if (!take(trimmed(next(&text, separator)))) return false;
    }
    refusal_ = Refusal();
    return true;
  }

 private:
  bool refuse(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(refusal_.reason, sizeof(refusal_.reason), format, arguments);
    va_end(arguments);
    return false;
  }

  bool take(std::string_view line) {
    if (line.empty() || line.front() == '#') return true;
    if (line.size() > kMaxLineLength) return refuse("longer than %zu characters", kMaxLineLength);
    std::string_view fields[kFields] = {};
    int count = 0;
    const int line_fields = count_fields(line);
    if (line_fields < kLeastFields || line_fields > kFields) {
      return refuse("a rule has %d fields, of which the last 2 may be missing, and not %d", kFields, line_fields);
    }
    while (count < line_fields) fields[count++] = trimmed(next(&line, ','));
    // A spreadsheet's first line.
    if (!begun_ && fields[0] == kHeader) return begun_ = true;
    begun_ = true;
    if (table_.count_ == kMaxRules) return refuse("more than %u rules", kMaxRules);
    TunerRule rule = {};
    if (!take_rule(fields, count, &rule)) return false;
    table_.rules_[table_.count_++] = rule;
    return true;
  }

  static int count_fields(std::string_view line) {
    int count = 1;
    for (const char c : line) count += c == ',' ? 1 : 0;
    return count;
  }

  bool take_rule(const std::string_view* fields, int count, TunerRule* rule) {
    int64_t channels = 0, nodes = 0, ranks = 0, pipe_ops = kAnyValue, registered = kAnyValue;
    if (!word(fields[0], "collective", kCollectives, &rule->collective) || !take_bytes(fields[1], fields[2], rule) ||
        !word(fields[3], "algorithm", kAlgorithms, &rule->algorithm) ||
        !word(fields[4], "protocol", kProtocols, &rule->protocol) ||
        !number(fields[5], "channels", 0, kMaxChannels, &channels) ||
        !number(fields[6], "nNodes", 1, INT_MAX, &nodes) || !number(fields[7], "nRanks", 1, INT_MAX, &ranks) ||
        (count > 8 && !number(fields[8], "numPipeOps", 1, INT_MAX, &pipe_ops)) ||
        (count > 9 && !number(fields[9], "regBuff", 0, 1, &registered))) {
      return false;
    }
    rule->channels = static_cast<uint8_t>(channels > 0 ? channels : 0);
    rule->nodes = static_cast<int32_t>(nodes);
    rule->ranks = static_cast<int32_t>(ranks);
    rule->pipe_ops = static_cast<int32_t>(pipe_ops);
    rule->registered = static_cast<int8_t>(registered);
    return true;
  }

  template <int kCount>
  bool word(std::string_view text, const char* what, const Word (&words)[kCount], uint8_t* value) {
    for (const Word& each : words) {
      if (each.text == text) {
        *value = each.value;
        return true;
      }
    }
    return refuse("unknown %s `%s`", what, Shown(text).text);
  }

  static bool whole(std::string_view text, uint64_t* value) {
    const auto parsed = std::from_chars(text.begin(), text.end(), *value);
    return !text.empty() && parsed.ec == std::errc() && parsed.ptr == text.end();
  }

  // -1 or least to most.
  bool number(std::string_view text, const char* what, int least, int most, int64_t* value) {
    uint64_t parsed = 0;
    if (text == "-1") {
      *value = kAnyValue;
      return true;
    }
    if (!whole(text, &parsed) || parsed < static_cast<uint64_t>(least) || parsed > static_cast<uint64_t>(most)) {
      return refuse("%s is neither -1 nor a whole number from %d to %d: `%s`", what, least, most, Shown(text).text);
    }
    *value = static_cast<int64_t>(parsed);
    return true;
  }

  bool take_bytes(std::string_view least, std::string_view most, TunerRule* rule) {
    if (!whole(least, &rule->min_bytes)) {
      return refuse("min_bytes is not a whole number in range: `%s`", Shown(least).text);
    }
    if (most == "-1") {
      rule->max_bytes = UINT64_MAX;
    } else if (!whole(most, &rule->max_bytes)) {
      return refuse("max_bytes is neither -1 nor a whole number in range: `%s`", Shown(most).text);
    }
    return rule->min_bytes <= rule->max_bytes || refuse("max_bytes is below min_bytes");
  }

  TunerTable& table_;
  Refusal& refusal_;
  bool begun_ = false;
};

bool TunerTable::parse(std::string_view text, Refusal* refusal) {
  count_ = 0;
  if (Parser(this, refusal).run(text)) return true;
  count_ = 0;
  return false;
}

TunerDecision decide(const TunerTable& table, TunerShape shape, int collective, uint64_t bytes, int pipe_ops,
                     int registered) {
  for (uint32_t i = 0; i < table.count(); ++i) {
    const TunerRule& rule = table.rule(i);
    if (rule.collective != collective || bytes < rule.min_bytes || bytes > rule.max_bytes) continue;
    if (!matches(rule.nodes, shape.nodes) || !matches(rule.ranks, shape.ranks)) continue;
    if (!matches(rule.pipe_ops, pipe_ops) || !matches(rule.registered, registered != 0 ? 1 : 0)) continue;
    TunerDecision decision;
    decision.algorithm = rule.algorithm;
    decision.protocol = rule.protocol;
    // NCCL cuts channels to those that a communicator has, but not where the network reduces; there it goes past them.
    decision.channels = in_network(rule.algorithm, shape) ? 0 : rule.channels;
    return decision;
  }
  return {};
}

constexpr float kAlmostFreeUs = 1e-3f;  // above 0, and below what any collective takes

void put(TunerDecision decision, float* costs, int algorithms, int protocols, int* channels) {
  if (decision.algorithm < 0 || decision.algorithm >= algorithms || decision.protocol < 0 ||
      decision.protocol >= protocols || costs == nullptr) {
    return;
  }
  float& cost = costs[decision.algorithm * protocols + decision.protocol];
  // Whatever is no cost, be it another number than kCostUnavailable, is left as it is.
  if (!(cost >= 0.0f)) return;
  // Another tuner may have made something else free, with channels to go with it.
  for (int i = 0; i < algorithms * protocols; ++i) {
    if (costs[i] == 0.0f) costs[i] = kAlmostFreeUs;
  }
  cost = 0.0f;
  if (channels != nullptr) *channels = decision.channels;
}

}  // namespace powerccl::nccl
