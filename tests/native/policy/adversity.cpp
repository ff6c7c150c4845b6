// SPDX-License-Identifier: Apache-2.0
// `auto` against jobs and GPUs that change: iterations of known truth in virtual time, a kind of change at a time.
//
// adversity PLATFORM KIND SEED HOURS [BUDGET_PCT]: prints a line of JSON. BUDGET_PCT below 0: the length of each
// iteration without a policy, in s, a line each. Without arguments: the kinds.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "physics/platform.h"
#include "policy/learning_policy.h"

namespace {

using powerccl::LearningPolicy;
using powerccl::NodeState;

// What an iteration is like, and what the GPU does: as a kind of change has it at a time of the job.
struct Now {
  double length_s = 0;             // of it at the usual clock; 0: of the trial's own
  double factor = 1;               // of its length
  double elasticity = 0.5;         // of its time at the usual clock, what follows the clock
  double natural = 1;              // the default clock, as a share of the usual one
  double added_s = 0;              // a checkpoint, say
  bool honours = true;             // clocks that are asked for
  bool limited = false;            // by another power limit, which the driver tells
  double knee = 0, steep = 0;      // below this share of the usual clock, collectives take so much longer
  double late_s = 0, stall_s = 0;  // memory of slowdowns; what a change of the clock stops the GPU for
};

struct Chance {
  std::mt19937_64 random;
  double normal(double deviation) { return std::normal_distribution<double>(0, deviation)(random); }
  double between(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); }
};

// A kind draws its sizes and times once, and then says how it is at each time, in s, after `step` more seconds.
using Change = std::function<void(double at_s, double step_s, Now& now)>;
using Kind = std::function<Change(Chance&, double hours)>;

// Correlated noise with a time constant.
Change wander(Chance& chance, double deviation, double tau_s) {
  return [&chance, deviation, tau_s, off = 0.0](double, double step_s, Now& now) mutable {
    const double keep = std::exp(-step_s / tau_s);
    off = off * keep + chance.normal(deviation * std::sqrt(1 - keep * keep));
    now.factor *= 1 + off;
  };
}
Change walk(Chance& chance, double an_hour) {
  return [&chance, an_hour, at = 1.0](double, double step_s, Now& now) mutable {
    at *= 1 + chance.normal(an_hour * std::sqrt(step_s / 3600));
    now.factor *= at;
  };
}
Change both(Change one, Change other) {
  return [=](double at_s, double step_s, Now& now) mutable {
    one(at_s, step_s, now);
    other(at_s, step_s, now);
  };
}
// What was measured of a job: noise of an iteration, then in correlated parts, GPUs that get slower while they warm up,
// and pauses like those of Python's garbage collector, pause_s for each iteration before. `figures-noise.py` compares.
struct Measured {
  double length_s, each, short_off, short_s, long_off, long_s, pause_s, warm, warm_s;
};
// On four H100s, and on two H200s: a trial is like a machine between them.
struct Machines {
  Measured h100, h200;
};
constexpr Measured kDdpH100{0.0413, 0.009, 0.012, 0.03, 0.001, 20, 0, 0.024, 20};
constexpr Machines kFsdp{{0.0837, 0.0095, 0.001, 1, 0.001, 60, 3e-5, 0.028, 50},
                         {0.0649, 0.0095, 0.002, 1, 0.0003, 60, 7e-5, 0.01, 120}};
constexpr Machines kDdp{kDdpH100, kDdpH100};
constexpr Machines kGeneration{{0.6645, 0.095, 0.07, 8, 0.08, 60, 0, 0, 1}, {0.53, 0.03, 0.09, 2.5, 0.03, 60, 0, 0, 1}};
// The collector looks at all objects once their number has grown by a quarter. At the beginning there are as many as
// kAtBeginning iterations leave. By that rule the pauses of both machines are foretold within 4 %.
constexpr double kObjectsGrow = 1.25, kFirstPause = 680, kAtBeginning = 1389;  // the last two in iterations
Measured between(Chance& chance, const Machines& of) {
  const double share = chance.between(0, 1);
  const auto mix = [&](double Measured::* what) { return of.h100.*what + share * (of.h200.*what - of.h100.*what); };
  using M = Measured;
  return {mix(&M::length_s), mix(&M::each),    mix(&M::short_off), mix(&M::short_s), mix(&M::long_off),
          mix(&M::long_s),   mix(&M::pause_s), mix(&M::warm),      mix(&M::warm_s)};
}
Change like(Chance& chance, const Machines& machines) {
  const Measured of = between(chance, machines);
  Change parts = both(wander(chance, of.short_off, of.short_s), wander(chance, of.long_off, of.long_s));
  return [&chance, of, parts, iteration = 0.0, pause_at = kFirstPause](double at_s, double step_s, Now& now) mutable {
    now.length_s = of.length_s;
    parts(at_s, step_s, now);
    now.factor *= 1 + chance.normal(of.each);
    now.natural *= 1 - of.warm * (1 - std::exp(-at_s / of.warm_s));
    if (++iteration < pause_at) return;
    now.added_s += of.pause_s * iteration;
    pause_at = (iteration + kAtBeginning) * kObjectsGrow - kAtBeginning;
  };
}
// From one time to another, over and over where there is a period.
Change during(double from_s, double for_s, double period_s, std::function<void(Now&)> what) {
  return [=](double at_s, double, Now& now) {
    const double since = at_s - from_s;
    if (since >= 0 && (period_s > 0 ? std::fmod(since, period_s) : since) < for_s) what(now);
  };
}
Change longer(double from_s, double for_s, double period_s, double factor) {
  return during(from_s, for_s, period_s, [=](Now& now) { now.factor *= factor; });
}
constexpr double kForEver = 1e12;

const std::map<std::string, Kind>& kinds() {
  static const auto drift = [](double an_hour) {
    return [=](double at_s, double, Now& now) { now.factor *= 1 + an_hour * at_s / 3600; };
  };
  static const auto begins = [](Chance& c, double hours) { return c.between(0.1, 0.6) * hours * 3600; };
  static const std::map<std::string, Kind> all{
      {"nothing", [](Chance&, double) -> Change { return [](double, double, Now&) {}; }},
      {"memory-bound",
       [](Chance& c, double) -> Change {
         return [e = c.between(0.05, 0.25)](double, double, Now& now) { now.elasticity = e; };
       }},
      {"compute-bound",
       [](Chance& c, double) -> Change {
         return [e = c.between(0.8, 1)](double, double, Now& now) { now.elasticity = e; };
       }},
      {"noise-20s", [](Chance& c, double) { return wander(c, c.between(0.002, 0.01), 20); }},
      {"noise-5s", [](Chance& c, double) { return wander(c, c.between(0.002, 0.01), 5); }},
      {"noise-generation", [](Chance& c, double) { return wander(c, 0.05, 10); }},
      {"like-fsdp", [](Chance& c, double) { return like(c, kFsdp); }},
      {"like-ddp", [](Chance& c, double) { return like(c, kDdp); }},
      {"like-generation", [](Chance& c, double) { return like(c, kGeneration); }},
      {"random-walk", [](Chance& c, double) { return walk(c, c.between(0.01, 0.03)); }},
      {"waves",
       [](Chance& c, double) -> Change {
         return [a = c.between(0.005, 0.02), p = c.between(30, 300)](double at_s, double, Now& now) {
           now.factor *= 1 + a * std::sin(2 * M_PI * at_s / p);
         };
       }},
      {"slow-minute",
       [](Chance& c, double h) { return longer(begins(c, h), c.between(30, 120), 0, c.between(1.02, 1.08)); }},
      {"slow-minute-then-faster",
       [](Chance& c, double h) {
         const double at = begins(c, h);
         return both(longer(at, c.between(30, 120), 0, c.between(1.02, 1.08)),
                     longer(at + c.between(200, 900), kForEver, 0, c.between(0.92, 0.98)));
       }},
      {"slow-minutes",
       [](Chance& c, double) {
         return longer(c.between(50, 300), c.between(20, 80), c.between(150, 600), c.between(1.01, 1.06));
       }},
      {"slower", [](Chance& c, double h) { return longer(begins(c, h), kForEver, 0, c.between(1.02, 1.3)); }},
      {"faster", [](Chance& c, double h) { return longer(begins(c, h), kForEver, 0, c.between(0.75, 0.98)); }},
      {"curriculum", [](Chance& c, double) -> Change { return drift(c.between(0.03, 0.08)); }},
      {"ever-faster", [](Chance& c, double) -> Change { return drift(-c.between(0.03, 0.08)); }},
      {"two-kinds-of-batches",
       [](Chance& c, double) {
         const double turn = c.between(10, 40);
         return longer(turn, turn, 2 * turn, c.between(1.1, 1.5));
       }},
      {"checkpoints",
       [](Chance& c, double) -> Change {
         return [p = c.between(60, 300), s = c.between(1, 20), next = 60.0](double at_s, double, Now& now) mutable {
           if (at_s < next) return;
           next += p;
           now.added_s = s;
         };
       }},
      {"late-loader",
       [](Chance& c, double) -> Change {
         return [&c, often = c.between(0.002, 0.03), most = c.between(0.1, 0.6)](double, double, Now& now) {
           if (c.between(0, 1) < often) now.factor *= 1 + c.between(0, most);
         };
       }},
      {"more-computation",
       [](Chance& c, double h) { return during(begins(c, h), kForEver, 0, [](Now& now) { now.elasticity = 1; }); }},
      {"less-computation",
       [](Chance& c, double h) { return during(begins(c, h), kForEver, 0, [](Now& now) { now.elasticity = 0.1; }); }},
      {"collectives-jump",
       [](Chance& c, double) -> Change {
         return [k = c.between(0.75, 0.97), s = c.between(0.5, 4)](double, double, Now& now) {
           now.knee = k, now.steep = s;
         };
       }},
      {"remembers-5s", [](Chance&, double) -> Change { return [](double, double, Now& now) { now.late_s = 5; }; }},
      {"remembers-30s", [](Chance&, double) -> Change { return [](double, double, Now& now) { now.late_s = 30; }; }},
      {"stalls",
       [](Chance& c, double) -> Change {
         return [s = c.between(0.005, 0.03)](double, double, Now& now) { now.stall_s = s; };
       }},
      {"long-stalls",
       [](Chance& c, double) -> Change {
         return [s = c.between(0.05, 0.1)](double, double, Now& now) { now.stall_s = s; };
       }},
      {"honoured-late",
       [](Chance& c, double h) { return during(0, begins(c, h), 0, [](Now& now) { now.honours = false; }); }},
      {"power-limit",
       [](Chance& c, double h) {
         const double by = c.between(0.8, 0.95);
         return during(begins(c, h), c.between(300, 900), 0, [=](Now& now) { now.natural *= by, now.limited = true; });
       }},
      {"thermal-caps",
       [](Chance& c, double) {
         const double by = c.between(0.9, 0.98);
         return during(c.between(60, 300), c.between(20, 90), c.between(200, 700),
                       [=](Now& now) { now.natural *= by; });
       }},
      {"warms-up",
       [](Chance& c, double) -> Change {
         return [by = c.between(0.005, 0.02), tau = c.between(60, 400)](double at_s, double, Now& now) {
           now.natural *= 1 - by * (1 - std::exp(-at_s / tau));
         };
       }},
      {"walk-and-slow-minutes",
       [](Chance& c, double) {
         return both(walk(c, 0.02), longer(c.between(50, 300), c.between(20, 80), c.between(150, 600), 1.03));
       }},
  };
  return all;
}

struct Sums {
  double with_s = 0, without_s = 0;
  double slower_pct() const { return without_s > 0 ? 100 * (with_s / without_s - 1) : 0; }
};

class Trial {
 public:
  Trial(const powerccl::physics::Platform& gpu, const Kind& kind, uint64_t seed, double hours, double budget)
      : gpu_(gpu), chance_{std::mt19937_64(seed)}, hours_(hours), change_(kind(chance_, hours)) {
    lengths_ = budget < 0;
    if (!lengths_) policy_->begin({budget, false, node_.get(), false});
    length_s_ = std::exp(chance_.between(std::log(0.05), std::log(1.0)));
    usual_mhz_ = gpu.clock_max_mhz * chance_.between(0.7, 1);
    noise_ = chance_.between(0.001, 0.01);
  }

  void run() {
    while (now_s_ < hours_ * 3600) iteration();
  }

  void print() const {
    if (lengths_) return;
    const auto state = policy_->state();
    const double truth = recent_.slower_pct() / 100;
    std::printf(
        "{\"slowdown_pct\": %.4f, \"worst_minute_pct\": %.4f, \"saved_pct\": %.4f, \"first_clock_s\": %.1f, "
        "\"length_s\": %.3f, \"reported\": %s, \"holds\": %s}\n",
        all_.slower_pct(), worst_minute_pct_, 100 * (1 - joules_ / joules_without_), first_s_, length_s_,
        state.judged ? "true" : "false",
        state.judged && state.slowdown.low <= truth && truth <= state.slowdown.high ? "true" : "false");
  }

 private:
  static constexpr int kCalls = 10;
  static constexpr double kTransitionS = 0.02, kMinuteS = 60, kRecentS = 300;

  void iteration() {
    Now now;
    change_(now_s_, step_s_, now);
    const double natural = usual_mhz_ * now.natural, asked = now.honours && locked_mhz_ > 0 ? locked_mhz_ : natural;
    const double mhz = std::min(asked, natural);
    double slower = cost(now, mhz) / cost(now, natural) - 1;
    if (now.late_s > 0) {
      remembered_ += (slower - remembered_) * (1 - std::exp(-step_s_ / now.late_s));
      slower = remembered_;
    }
    const bool drawn = now.length_s == 0;
    const double length_s = (drawn ? length_s_ : now.length_s) * now.factor;
    const double noise = std::max(0.3, 1 + chance_.normal(drawn ? noise_ : 0));
    const double without = length_s * cost(now, natural) * noise + now.added_s;
    double with = without + (without - now.added_s) * slower;
    if (begun_mhz_ != locked_mhz_) with += now.stall_s;
    begun_mhz_ = locked_mhz_;
    limit_mw_ = now.limited ? 1 : 2;
    if (lengths_) {
      std::printf("%.6f\n", without);
      now_s_ += step_s_ = without;
      return;
    }
    play(with, mhz);
    joules_ += with * watts(now, mhz);
    joules_without_ += without * watts(now, natural);
    count(with, without);
    now_s_ += step_s_ = with;
  }

  // Of the length at the usual clock.
  double cost(const Now& now, double mhz) const {
    const double jump = now.knee > 0 && mhz < now.knee * usual_mhz_ ? now.steep * (now.knee * usual_mhz_ / mhz - 1) : 0;
    return 1 + now.elasticity * (usual_mhz_ / mhz - 1) + jump;
  }

  double watts(const Now& now, double mhz) const {
    const powerccl::physics::Activity activity{now.elasticity, 1 - now.elasticity};
    return gpu_.static_w + gpu_.tree_w * gpu_.fv2(mhz) + gpu_.kernel_w(activity, mhz);
  }

  void play(double with_s, double mhz) {
    for (int i = 0; i < kCalls; ++i) {
      const uint64_t call = ++calls_;
      policy_->called(call, 100 + static_cast<uint32_t>(i));
      const double at_s = now_s_ + with_s * (i + 0.5) / kCalls * 0.9;
      policy_->started(call, ns(at_s));
      ask(at_s + with_s * 0.01, mhz);
      policy_->stopped(call, ns(at_s + with_s * 0.02));
      ask(at_s + with_s * 0.03, mhz);
      ask(at_s + with_s * 0.06, mhz);  // as the clock thread does where the policy wants a sample
    }
  }

  void ask(double at_s, double mhz) {
    const double wanted = policy_->wanted(ns(at_s)).mhz;
    if (policy_->wants_sample()) policy_->sampled({static_cast<uint32_t>(mhz + chance_.normal(3)), limit_mw_});
    if (at_s >= pending_at_s_) locked_mhz_ = pending_mhz_;
    if (wanted == pending_mhz_) return;
    pending_mhz_ = wanted;
    pending_at_s_ = at_s + kTransitionS;
    if (wanted > 0 && first_s_ < 0) first_s_ = at_s;
  }

  void count(double with, double without) {
    for (Sums* each : {&all_, &minute_, &recent_}) {
      each->with_s += with;
      each->without_s += without;
    }
    if (minute_.without_s >= kMinuteS) {
      worst_minute_pct_ = std::max(worst_minute_pct_, minute_.slower_pct());
      minute_ = {};
    }
    if (recent_.without_s >= kRecentS && hours_ * 3600 - now_s_ > kRecentS) recent_ = {};
  }

  static uint64_t ns(double at_s) { return 1000000000 + static_cast<uint64_t>(at_s * 1e9); }

  const powerccl::physics::Platform& gpu_;
  Chance chance_;
  double hours_;
  Change change_;
  std::unique_ptr<NodeState> node_ = std::make_unique<NodeState>();
  std::unique_ptr<LearningPolicy> policy_ = std::make_unique<LearningPolicy>();
  double length_s_ = 0, usual_mhz_ = 0, noise_ = 0;
  double now_s_ = 0, step_s_ = 0.1, locked_mhz_ = 0, begun_mhz_ = 0, pending_mhz_ = 0, pending_at_s_ = 0;
  double remembered_ = 0, first_s_ = -1, worst_minute_pct_ = 0, joules_ = 0, joules_without_ = 0;
  uint32_t limit_mw_ = 0;
  bool lengths_ = false;
  uint64_t calls_ = 0;
  Sums all_, minute_, recent_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    for (const auto& [name, kind] : kinds()) std::printf("%s\n", name.c_str());
    return argc == 1 ? 0 : 2;
  }
  std::string error;
  const auto gpu = powerccl::physics::read_platform(argv[1], error);
  const auto kind = kinds().find(argv[2]);
  if (!gpu || kind == kinds().end()) {
    std::fprintf(stderr, "adversity: %s\n", gpu ? "no such kind of change" : error.c_str());
    return 2;
  }
  Trial trial(*gpu, kind->second, std::strtoull(argv[3], nullptr, 10), std::strtod(argv[4], nullptr),
              argc > 5 ? std::strtod(argv[5], nullptr) / 100 : 0.01);
  trial.run();
  trial.print();
  return 0;
}
