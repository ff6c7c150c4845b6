// SPDX-License-Identifier: Apache-2.0
#include "bench/serve.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bench/failure.h"
#include "bench/json.h"
#include "bench/launch.h"
#include "bench/nccl_api.h"
#include "bench/sampler.h"

namespace powerccl::bench {
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
