// SPDX-License-Identifier: Apache-2.0
#include "bench/serve.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "bench/json.h"
#include "bench/launch.h"
#include "bench/nccl_api.h"
#include "bench/sampler.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw Failure(kExitUsage, what, hint);
}

const char* const kVerbs = "set NAME=VALUE, clear, open ID, measure PATTERN BYTES [key=value...], close, quit";
const char* const kKeys = "iterations warmup check repeat min_time_s energy blocking in_place dtype op root";

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

void parse_set(Command& command, const std::string& rest) {
  const size_t equals = rest.find('=');
  if (equals == std::string::npos) refuse("set takes NAME=VALUE", "set NCCL_ALGO=Ring");
  command.name = rest.substr(0, equals);
  command.value = rest.substr(equals + 1);
  if (!may_set(command.name)) {
    refuse("'" + command.name + "' is not for a trial to set",
           "names begin with NCCL_ or POWERCCL_, of A-Z, 0-9 and _");
  }
}

bool flag(const std::string& value, const std::string& key) {
  return parse_integer(value, key, 0, 1) != 0;
}

// True if the key is known.
bool apply(Command& command, std::optional<double>& min_time_s, const std::string& key, const std::string& value) {
  Measuring& measuring = command.measuring;
  Point& point = command.point;
  if (key == "iterations") {
    measuring.iterations = parse_integer(value, key, 1);
  } else if (key == "warmup") {
    measuring.warmup = parse_integer(value, key, 0);
  } else if (key == "check") {
    measuring.check = parse_integer(value, key, 0);
  } else if (key == "repeat") {
    measuring.repeats = parse_integer(value, key, 1, kMaxRepeats);
  } else if (key == "min_time_s") {
    min_time_s = parse_number(value, key, 0, 3600);
  } else if (key == "energy") {
    command.energy = flag(value, key);
  } else if (key == "blocking") {
    measuring.blocking = flag(value, key);
  } else if (key == "in_place") {
    point.in_place = flag(value, key);
  } else if (key == "root") {
    point.root = parse_integer(value, key, 0);
  } else if (key == "dtype") {
    const auto type = type_named(value);
    if (!type) refuse("no type is called '" + value + "'", "float32 float16 bfloat16 float64 int32 int64");
    point.type = *type;
  } else if (key == "op") {
    const auto op = named(kOperators, value);
    if (!op) refuse("no operator is called '" + value + "'", "sum prod max min avg");
    point.op = *op;
  } else {
    return false;
  }
  return true;
}

void parse_measure(Command& command, const std::string& rest, const Options& options, int ranks) {
  std::istringstream words(rest);
  std::string pattern_text, size_text, word;
  if (!(words >> pattern_text >> size_text)) refuse("measure what?", "measure all_reduce 1048576");
  const auto pattern = pattern_named(pattern_text);
  if (!pattern) refuse("no pattern is called '" + pattern_text + "'", "powerccl-bench --help lists them");
  command.measuring = {options.iterations, options.warmup, options.check, 1, 0, options.blocking};
  command.point = {
      *pattern, options.types.front(), options.ops.front(), std::max(options.root, 0), kClockAsFound, false, {}};
  std::optional<double> min_time_s;
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || !apply(command, min_time_s, word.substr(0, equals), word.substr(equals + 1))) {
      refuse("measure does not know '" + word + "'", std::string("key=value, with the keys ") + kKeys);
    }
  }
  // The counter of energy needs its time; times alone do not.
  command.measuring.min_time_s = min_time_s.value_or(command.energy ? options.min_time_s : 0);
  Point& point = command.point;
  if (point.root >= ranks) refuse("there is no rank " + std::to_string(point.root), "ranks count from 0");
  if (point.in_place && !info(*pattern).in_place) refuse(pattern_text + " has no in-place form", "in_place=0");
  point.shape = shape_of(*pattern, parse_size(size_text, "measure"), point.type, ranks);
}

}  // namespace

bool may_set(const std::string& name) {
  const bool has_prefix =
      (name.starts_with("NCCL_") && name.size() > 5) || (name.starts_with("POWERCCL_") && name.size() > 9);
  return has_prefix &&
         std::ranges::all_of(name, [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
}

Command parse_command(const std::string& line, const Options& options, int ranks) {
  const std::string text = trimmed(line);
  const size_t space = text.find_first_of(" \t");
  const std::string verb = text.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : trimmed(text.substr(space));
  Command command{};
  if (verb == "set") {
    command.verb = Verb::kSet;
    parse_set(command, rest);
  } else if (verb == "open") {
    command.verb = Verb::kOpen;
    command.name = rest;
    if (rest.empty()) refuse("open takes the name of the trial", "open 1");
  } else if (verb == "measure") {
    command.verb = Verb::kMeasure;
    parse_measure(command, rest, options, ranks);
  } else {
    if (verb != "clear" && verb != "close" && verb != "quit") refuse("no request is called '" + verb + "'", kVerbs);
    if (!rest.empty()) refuse(verb + " takes nothing behind it", kVerbs);
    command.verb = verb == "clear" ? Verb::kClear : verb == "close" ? Verb::kClose : Verb::kQuit;
  }
  return command;
}

namespace {

constexpr uint64_t kNewsNs = 50'000'000;
constexpr int kInputMs = 100;  // how long a failure between requests may go unnoticed
constexpr size_t kLongestLine = 65536;

double seconds_since(uint64_t ns) {
  return static_cast<double>(monotonic_ns() - ns) * 1e-9;
}

class Server {
 public:
  Server(const Options& options, const Setting& setting, const Launch& launch, const NcclFile& nccl, int replies)
      : options_(options),
        setting_(setting),
        launch_(launch),
        board_(*launch.board),
        nccl_(nccl),
        copies_(nccl.path),
        replies_(replies),
        started_unix_s_(unix_s()),
        started_ns_(monotonic_ns()) {}

  void run() {
    try {
      copies_.current();  // while the ranks make their contexts
      ready();
      while (!over_) {
        const auto line = next_line();
        if (!line) break;
        if (line->find_first_not_of(" \t\r") != std::string::npos) handle(*line);
      }
      Request request{};
      request.ask = Ask::kQuit;
      ask(request, Tell::kFinish);
    } catch (const Aborted&) {
      failed(board_.reason(), board_.hint(), false);
    } catch (const Failure& failure) {
      board_.fail(failure.code(), failure.what(), failure.hint());
      failed(board_.reason(), board_.hint(), false);
    }
  }

 private:
  void reply(const json::Object& object) {
    const std::string text = object.text() + "\n";
    for (size_t done = 0; done < text.size();) {
      const ssize_t written = write(replies_, text.data() + done, text.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {  // the client has closed its end
        board_.fail(kExitMissing, std::string("cannot reply: ") + std::strerror(errno), "is the client still there?");
        return;
      }
      done += static_cast<size_t>(written);
    }
  }

  // Nothing at the end of the input. Throws Aborted when a rank failed meanwhile.
  std::optional<std::string> next_line() {
    for (;;) {
      const size_t end = input_.find('\n');
      if (end != std::string::npos || (ended_ && !input_.empty())) {
        std::string line = input_.substr(0, end);
        input_.erase(0, end == std::string::npos ? end : end + 1);
        return line;
      }
      if (ended_) return std::nullopt;
      if (input_.size() > kLongestLine) throw Failure(kExitUsage, "a request has no end", "one request a line");
      if (board_.failed()) throw Aborted();
      pollfd waited{STDIN_FILENO, POLLIN, 0};
      if (poll(&waited, 1, kInputMs) <= 0) continue;
      char some[4096];
      const ssize_t got = read(STDIN_FILENO, some, sizeof some);
      if (got > 0) input_.append(some, static_cast<size_t>(got));
      ended_ = got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
    }
  }

  void expect_within_timeout() {
    if (options_.timeout_s == 0) return;
    board_.deadline_ns = monotonic_ns() + static_cast<uint64_t>(options_.timeout_s) * 1'000'000'000;
  }

  Tell wait_for_news() {
    for (;;) {
      const Tell what = board_.wait_for_news(kNewsNs);
      if (what != Tell::kNothing) return what;
      if (board_.failed()) throw Aborted();
    }
  }

  // True if the ranks answered so; false if NCCL refused, which the client knows then.
  bool ask(const Request& request, Tell expected) {
    asked_ns_ = monotonic_ns();
    expect_within_timeout();
    board_.ask(request);
    const Tell what = wait_for_news();
    board_.deadline_ns = 0;
    const RefusedNews refused = board_.refused;
    board_.answer(0);
    if (what == expected) return true;
    copies_.spend();
    failed(refused.reason, refused.hint, true);
    end_trial();
    return false;
  }

  void ready() {
    expect_within_timeout();
    wait_for_news();
    board_.deadline_ns = 0;
    StartNews start = board_.start;
    start.nccl_version = nccl_.version;
    std::strncpy(start.nccl_path, nccl_.path.c_str(), sizeof start.nccl_path - 1);
    board_.answer(0);
    sampler_ = std::make_unique<Sampler>(board_, options_.sample_ms);
    reply(json::Object()
              .add("type", "ready")
              .merge(header_object(options_, setting_, launch_, started_unix_s_, &start, sampler_.get()))
              .add("seconds", seconds_since(started_ns_))
              .add("pid", getpid()));
  }

  void handle(const std::string& line) {
    try {
      const Command command = parse_command(line, options_, board_.ranks());
      check(command);
      carry_out(command);
    } catch (const Failure& failure) {
      if (failure.code() != kExitUsage) throw;
      reply(json::Object()
                .add("type", "refused")
                .add("line", line)
                .add("reason", failure.what())
                .add("hint", unless_empty(failure.hint())));
    }
  }

  void check(const Command& command) const {
    const auto refuse = [](const std::string& what, const std::string& hint) { throw Failure(kExitUsage, what, hint); };
    if (command.verb == Verb::kOpen && trial_) refuse("trial " + *trial_ + " is open", "close it first");
    if ((command.verb == Verb::kMeasure || command.verb == Verb::kClose) && !trial_) {
      refuse("no trial is open", "open ID");
    }
    if (command.verb == Verb::kMeasure && command.measuring.check > 0 && !setting_.moves_data) {
      refuse("emulated data are not moved: there is nothing to check", "powerccl-bench serve -c 1 moves them");
    }
    if (command.verb == Verb::kOpen && variables().size() >= sizeof(Request::variables)) {
      refuse("the variables are too long together", "clear, and set fewer");
    }
  }

  std::string variables() const {
    std::string text;
    for (const auto& [name, value] : set_) text.append(name).append("=").append(value).push_back('\0');
    return text;
  }

  void carry_out(const Command& command) {
    switch (command.verb) {
      case Verb::kSet:
        set_[command.name] = command.value;
        break;
      case Verb::kClear:
        set_.clear();
        break;
      case Verb::kOpen:
        open(command.name);
        break;
      case Verb::kMeasure:
        measure(command);
        break;
      case Verb::kClose:
        close();
        break;
      case Verb::kQuit:
        over_ = true;
        break;
    }
  }

  void open(const std::string& name) {
    trial_ = name;
    ++trials_;
    Request request{};
    request.ask = Ask::kOpen;
    std::strncpy(request.library, copies_.current().c_str(), sizeof request.library - 1);
    const std::string text = variables();
    std::memcpy(request.variables, text.data(), text.size());
    if (!ask(request, Tell::kOpened)) return;
    reply(json::Object()
              .add("type", "opened")
              .add("id", name)
              .add("seconds", seconds_since(asked_ns_))
              .add("nccl_version", nccl_version_text(board_.opened.nccl_version))
              .add("fresh", board_.opened.fresh));
  }

  void measure(const Command& command) {
    Request request{};
    request.ask = Ask::kMeasure;
    request.point = command.point;
    request.measuring = command.measuring;
    Window window;
    window.reason = "energy=0";
    if (command.energy) sampler_->start();
    const bool measured = ask(request, Tell::kPoint);
    const PointNews news = board_.point;
    if (command.energy) {
      window = sampler_->window(news.start_ns, news.end_ns);
      take_emulated_energy(news, board_.ranks(), window);
      sampler_->stop();
      sampler_->forget_before(UINT64_MAX);
    }
    if (!measured) return;
    reply(json::Object()
              .add("type", "point")
              .add("id", trial_)
              .merge(point_object(command.point, news, window, board_.ranks(), false))
              .add("times_us", std::vector<double>(news.times_us, news.times_us + news.repeats)));
  }

  void close() {
    Request request{};
    request.ask = Ask::kClose;
    ask(request, Tell::kClosed);
    if (!board_.unloaded) copies_.spend();
    reply(json::Object()
              .add("type", "closed")
              .add("id", trial_)
              .add("seconds", seconds_since(asked_ns_))
              .add("unloaded", board_.unloaded));
    end_trial();
  }

  void end_trial() {
    trial_.reset();
    if (trials_ < options_.trials_per_process) return;
    over_ = true;
    reply(json::Object().add("type", "ended").add("reason", "--trials-per-process").add("trials", trials_));
  }

  void failed(const std::string& reason, const std::string& hint, bool alive) {
    reply(json::Object()
              .add("type", "failed")
              .add("id", trial_)
              .add("reason", reason)
              .add("hint", unless_empty(hint))
              .add("alive", alive));
  }

  const Options& options_;
  const Setting& setting_;
  const Launch& launch_;
  Board& board_;
  const NcclFile& nccl_;
  LibraryCopies copies_;
  int replies_;
  double started_unix_s_;
  uint64_t started_ns_, asked_ns_ = 0;
  std::unique_ptr<Sampler> sampler_;
  std::string input_;
  bool ended_ = false, over_ = false;
  std::map<std::string, std::string> set_;
  std::optional<std::string> trial_;
  int trials_ = 0;
};

// Whatever ranks and NCCL print goes to stderr: stdout is for replies. Returns where those go.
int take_stdout() {
  const int replies = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (replies < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    throw Failure(kExitMissing, std::string("stdout: ") + std::strerror(errno));
  }
  return replies;
}

}  // namespace

int serve(const Options& options, const Setting& setting) {
  if (const auto place = launcher_place(options); options.gpus == 0 && place && place->ranks > 1) {
    throw Failure(kExitUsage, "serve starts its ranks itself", "run it once a host, without torchrun, mpirun or srun");
  }
  const int replies = take_stdout();
  const NcclFile nccl = find_nccl(options.nccl);
  const Launch launch = prepare_launch(options);
  Board& board = *launch.board;
  Server server(options, setting, launch, nccl, replies);
  supervise(
      launch,
      [&](int first, int count, int device) {
        close(replies);
        const int nothing = ::open("/dev/null", O_RDONLY);
        if (nothing >= 0) dup2(nothing, STDIN_FILENO);
        return run_ranks(options, board, first, count, device, [&](Rank& rank) { serve_requests(options, rank); });
      },
      [&] { server.run(); });
  if (board.failed()) throw Failure(board.exit_code(), board.reason(), board.hint());
  return kExitOk;
}

}  // namespace powerccl::bench
