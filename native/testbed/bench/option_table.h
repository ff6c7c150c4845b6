// SPDX-License-Identifier: Apache-2.0
// Options of a command line, on CLI11: each is named once, beside what it does and what --help says of it.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/values.h"

namespace powerccl::bench {

class OptionTable {
 public:
  // `about`: how the program is used; `exits`: its exit codes. Both for --help.
  OptionTable(const std::string& program, const std::string& about, const std::string& exits)
      : app_(about, program), hint_(program + " --help") {
    app_.formatter(std::make_shared<NoUsage>());
    app_.get_formatter()->column_width(28);
    app_.footer(exits);
    app_.allow_extras();
  }

  // Those that follow are listed under this name.
  void group(const char* name) { group_ = name; }

  // `names` as "-n,--iters". What is wrong with a value is said of the first of them.
  void value(const std::string& names, const char* kind, const char* about,
             const std::function<void(const std::string& value)>& apply) {
    const auto apply_all = [apply](const std::vector<std::string>& values) {
      for (const std::string& each : values) apply(each);
    };
    app_.add_option_function<std::vector<std::string>>(names, apply_all, about)
        ->option_text(kind)
        ->group(group_)
        ->allow_extra_args(false);
  }
  void flag(const std::string& names, const char* about, bool* to, bool set = true) {
    app_.add_flag_callback(names, [=] { *to = set; }, about)->group(group_);
  }
  void text(const std::string& names, const char* kind, const char* about, std::string* to) {
    value(names, kind, about, [=](const std::string& text) { *to = text; });
  }
  void size(const std::string& names, const char* about, size_t* to) {
    value(names, "SIZE", about, [=](const std::string& text) { *to = parse_size(text, first_of(names)); });
  }
  template <typename Integer>  // what an int converts to
  void integer(const std::string& names, const char* about, Integer* to, int low, int high = 1'000'000'000) {
    value(names, "N", about, [=](const std::string& text) { *to = parse_integer(text, first_of(names), low, high); });
  }
  template <typename Number>
  void number(const std::string& names, const char* kind, const char* about, Number* to, double low, double high) {
    value(names, kind, about, [=](const std::string& text) { *to = parse_number(text, first_of(names), low, high); });
  }

  // Applies the options and returns the other words. With --help or --version, what to print into `says` instead.
  // Throws Failure(kExitUsage).
  std::vector<std::string> parse(int argc, char** argv, std::string* says) {
    app_.set_help_flag("-h,--help", "print this, and end")->group(group_);
    app_.set_version_flag("--version", kVersion, "print the version, and end")->group(group_);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      *says = app_.help();
    } catch (const CLI::CallForVersion& version) {
      *says = version.what();
      *says += '\n';
    } catch (const CLI::ArgumentMismatch& error) {
      const std::string what = error.what();
      const CLI::Option* option = app_.get_option_no_throw(what.substr(0, what.find(':')));
      throw Failure(kExitUsage, option == nullptr ? what : option->get_name(false, true) + " needs a value", hint_);
    } catch (const CLI::ParseError& error) {
      throw Failure(kExitUsage, error.what(), hint_);
    }
    std::vector<std::string> words = app_.remaining();
    std::erase(words, "--");
    for (const std::string& word : words) {
      if (word.starts_with('-')) throw Failure(kExitUsage, "unknown option " + word, hint_);
    }
    return words;
  }

 private:
  struct NoUsage : CLI::Formatter {  // it is part of `about`
    std::string make_usage(const CLI::App*, std::string) const override { return ""; }
  };
  static std::string first_of(const std::string& names) { return names.substr(0, names.find(',')); }

  CLI::App app_;
  std::string hint_;
  const char* group_ = "";
};

}  // namespace powerccl::bench
