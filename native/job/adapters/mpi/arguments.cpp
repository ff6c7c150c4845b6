// SPDX-License-Identifier: Apache-2.0
// Whether the library would refuse a collective for its arguments.
//
// A rank whose call is refused returns immediately and takes no part in the collective. So it must take no part in the
// barrier in front of it. Such a barrier would wait for ranks that never call, or match a later call of theirs.
//
// What is refused differs between libraries, and users can switch the checks off. So the library itself is asked, on a
// communicator of this rank alone, whose errors are returned. Nothing is sent there, and little is copied.
#include <stdio.h>
#include <string.h>

#include <initializer_list>

#include "adapters/mpi/adapter.h"

namespace powerccl::mpi {
namespace {

constexpr int kMostWords = 9;

// At which arguments one of a collective's buffers is described; -1: it has no such argument. A reduction has one count
// and type for both buffers. `parts`: counts are arrays, with an entry for each rank.
struct Side {
  int8_t buffer, count, places, type;
  bool parts;
};
enum class Root : uint8_t { kNone, kGathers, kScatters };  // it alone receives, or sends
struct Shape {
  Side from, into;
  Root root = Root::kNone;
  bool blocks = false;  // one buffer of a rank holds a block of each rank, the other one block
};
constexpr Side kMissing = {-1, -1, -1, -1, false};
constexpr Side kFirst = {0, 1, -1, 2, false}, kSecond = {3, 4, -1, 5, false};
constexpr Side kFirstParts = {0, 1, 2, 3, true}, kSecondParts = {3, 4, 5, 6, true}, kLastParts = {4, 5, 6, 7, true};
constexpr Side kOperands = {0, 2, -1, 3, false}, kResult = {1, 2, -1, 3, false};
constexpr Shape kShapes[] = {
    {kMissing, kMissing},                                        // Barrier
    {kFirst, kMissing},                                          // Bcast
    {kOperands, kResult, Root::kGathers},                        // Reduce
    {kOperands, kResult},                                        // Allreduce
    {kFirst, kSecond, Root::kNone, true},                        // Allgather
    {kFirst, kSecondParts, Root::kNone, true},                   // Allgatherv
    {kFirst, kSecond, Root::kGathers, true},                     // Gather
    {kFirst, kSecondParts, Root::kGathers, true},                // Gatherv
    {kFirst, kSecond, Root::kScatters, true},                    // Scatter
    {kFirstParts, {4, 5, -1, 6, false}, Root::kScatters, true},  // Scatterv
    {kFirst, kSecond},                                           // Alltoall
    {kFirstParts, kLastParts},                                   // Alltoallv
    {kFirstParts, kLastParts},                                   // Alltoallw
    {{0, 2, -1, 3, true}, {1, 2, -1, 3, true}},                  // Reduce_scatter
    {kOperands, kResult},                                        // Reduce_scatter_block
    {kOperands, kResult},                                        // Scan
    {kOperands, kResult},                                        // Exscan
};
constexpr int kCollectives = sizeof(kShapes) / sizeof(kShapes[0]);
static_assert(kBarrier == 0 && kExscan == kCollectives - 1);

// Of any collective: it takes as many of these words as it has arguments.
using Collective = int (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word);
std::atomic<Collective> g_collectives[kCollectives][2];
Word g_alone = 0;  // the communicator of this rank alone; 0: there is none

Collective collective(Function function, bool large) {
  Collective known = g_collectives[function][large].load(std::memory_order_acquire);
  if (known == nullptr) {
    char name[64];
    snprintf(name, sizeof(name), "PMPI_%s%s", kSignatures[function].name, large ? "_c" : "");
    known = reinterpret_cast<Collective>(next_symbol(name));
    g_collectives[function][large].store(known, std::memory_order_release);
  }
  return known;
}

// One call that may be refused, and what is asked instead.
class Trial {
 public:
  Trial(Function function, bool large, const Word* arguments, const CommunicatorKnown& communicator)
      : function_(function), large_(large), known_(communicator), shape_(kShapes[function]), given_(arguments) {
    const Signature& signature = kSignatures[function];
    memcpy(words_, arguments, signature.arity * sizeof(Word));
    words_[signature.comm] = g_alone;
    if (signature.peer < 0) return;
    const int32_t root = static_cast<int32_t>(arguments[signature.peer]);
    root_ = root >= 0 && root < known_.size ? 0 : root;  // an impossible one stays as it is
    words_[signature.peer] = root_;
    sends_ = root == known_.rank || shape_.root != Root::kScatters;
    receives_ = root == known_.rank || shape_.root != Root::kGathers;
  }

  bool refused(ThreadState* thread) {
    const Side &from = shape_.from, &into = shape_.into;
    // Checked by some libraries when the collective has begun.
    if ((is_told(from) && of_all(from) < 0) || (is_told(into) && of_all(into) < 0)) return true;
    if (into.buffer < 0) return is_wrong(from);
    // On the communicator of one rank this rank is the root, which may have its own block in place. Others may not.
    if (!receives_ && is_in_place(from)) return of_all(from) != 0 || g_adapter.library.open_mpi;
    if (!sends_ && is_in_place(into)) return of_all(into) != 0 || g_adapter.library.open_mpi;
    if (from.count == into.count) return reduction_refused();
    // Open MPI checks calls without elements as well, and not each buffer in the same way.
    if (g_adapter.library.open_mpi && function_ != kAlltoallw) return refused_without_elements();
    if ((is_told(from) && is_wrong(from)) || (is_told(into) && is_wrong(into))) return true;
    if (!sends_ || !receives_) return false;
    const bool misplaced = is_in_place(into) && shape_.root != Root::kScatters;
    return (misplaced || is_same_memory(thread)) && refused_with_elements(misplaced);
  }

 private:
  bool is_made() {
    const Collective call = collective(function_, large_);
    const Word* w = words_;
    return call == nullptr || call(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]) == 0;
  }
  bool is_in_place(const Side& side) const { return given_[side.buffer] == g_adapter.library.in_place; }

  // Whether this rank has to say what the buffer is. It does not for its own block in place, nor for the root's buffer
  // unless it is the root.
  bool is_told(const Side& side) const {
    if (side.buffer < 0) return false;
    const bool sending = &side == &shape_.from;
    if (!(sending ? sends_ : receives_)) return false;
    const bool may_be_in_place = sending ? function_ != kBcast : shape_.root == Root::kScatters;
    return !may_be_in_place || shape_.from.count == shape_.into.count || !is_in_place(side);
  }

  int64_t entry(int8_t argument, int index) const {
    return large_ ? pointer_to<int64_t>(given_[argument])[index] : pointer_to<int32_t>(given_[argument])[index];
  }
  int64_t one_of(const Side& side, int index) const {
    if (side.parts) return entry(side.count, index);
    return large_ ? static_cast<int64_t>(given_[side.count]) : static_cast<int32_t>(given_[side.count]);
  }
  // Of the counts: -1 if one is negative, 0 if all are 0, else 1.
  int of_all(const Side& side) const {
    int most = 0;
    for (int i = 0; i < (side.parts ? known_.size : 1); ++i) {
      const int64_t count = one_of(side, i);
      if (count < 0) return -1;
      if (count > 0) most = 1;
    }
    return most;
  }

  // Whether a buffer cannot be what it is said to be. A broadcast on a communicator of one rank shows it.
  bool is_wrong(const Side& side) const {
    const Collective broadcast = collective(kBcast, false);
    if (broadcast == nullptr) return false;
    Word last = 0;
    for (int i = 0; i < (function_ == kAlltoallw ? known_.size : 1); ++i) {
      const Word type = function_ == kAlltoallw ? type_at(side, i) : given_[side.type];
      if (i > 0 && type == last) continue;
      last = type;
      if (broadcast(given_[side.buffer], of_all(side), type, root_, g_alone, 0, 0, 0, 0) != 0) return true;
    }
    return false;
  }
  Word type_at(const Side& side, int index) const {
    const Word types = given_[side.type];
    return g_adapter.library.int_handles ? pointer_to<int32_t>(types)[index] : pointer_to<Word>(types)[index];
  }

  // With two elements, which come to where the result will be: Open MPI lets one be reduced into itself.
  bool reduction_refused() {
    const Side& from = shape_.from;
    if (!receives_) {
      // The root of the communicator of one rank: what it reduces is in place, so that nothing is written.
      words_[shape_.into.buffer] = given_[from.buffer];
      words_[from.buffer] = g_adapter.library.in_place;
    }
    const int64_t count = one_of(from, known_.rank);
    put(from, 0, count < 2 ? count : 2, 0);
    return !is_made();
  }

  bool refused_without_elements() {
    for (const bool sending : {true, false}) {
      const Side& side = sending ? shape_.from : shape_.into;
      if (!(sending ? sends_ : receives_)) {  // not the root: it may leave these undefined
        const Side& other = sending ? shape_.into : shape_.from;
        words_[side.buffer] = reinterpret_cast<Word>(arrays_[2]);
        words_[side.type] = given_[other.type];
        put(side, sending, 0, 0);
      } else if (is_told(side)) {
        put(side, sending, 0, 0);
      }
    }
    return !is_made();
  }

  // Whether a rank's own block is sent from where it is received. The types are sound by now.
  bool is_same_memory(ThreadState* thread) const {
    const Word from = given_[shape_.from.buffer], into = given_[shape_.into.buffer];
    if (!shape_.blocks) return from == into;
    const bool scatters = shape_.root == Root::kScatters;
    const Side& many = scatters ? shape_.from : shape_.into;
    const int64_t place = many.places >= 0 ? entry(many.places, known_.rank) : known_.rank * one_of(many, known_.rank);
    const Word own = given_[many.buffer] + place * static_cast<int64_t>(size_of_type(thread, given_[many.type]));
    return own == (scatters ? into : from);
  }
  // With this rank's own block, which would be copied to where it is, or nowhere.
  bool refused_with_elements(bool misplaced) {
    for (const bool sending : {true, false}) {
      const Side& side = sending ? shape_.from : shape_.into;
      put(side, sending, one_of(side, known_.rank), 0);
      if (!misplaced) words_[side.buffer] = given_[(shape_.root == Root::kScatters ? shape_.into : shape_.from).buffer];
    }
    return !is_made();
  }

  // The count, as an array of one entry if this function has arrays.
  void put(const Side& side, int which, int64_t count, int64_t place) {
    words_[side.count] = side.parts ? array_of(count, &arrays_[which][0]) : static_cast<Word>(count);
    if (side.places >= 0) words_[side.places] = array_of(place, &arrays_[which][1]);
  }
  Word array_of(int64_t value, int64_t* memory) const {
    const int32_t narrow = static_cast<int32_t>(value);
    memcpy(memory, large_ ? static_cast<const void*>(&value) : &narrow, large_ ? sizeof(value) : sizeof(narrow));
    return reinterpret_cast<Word>(memory);
  }

  Function function_;
  bool large_;
  const CommunicatorKnown& known_;
  const Shape& shape_;
  const Word* given_;
  Word root_ = 0;
  bool sends_ = true, receives_ = true;
  Word words_[kMostWords] = {};
  int64_t arrays_[3][2] = {};
};

}  // namespace

bool is_refused(ThreadState* thread, Function function, bool large, const Word* arguments,
                const CommunicatorKnown& communicator) {
  if (g_alone == 0 || function == kBarrier) return false;
  return Trial(function, large, arguments, communicator).refused(thread);
}

void open_trials() {
  using Duplicate = int (*)(Word, Word*);
  using SetHandler = int (*)(Word, Word);
  const auto duplicate = reinterpret_cast<Duplicate>(next_symbol("PMPI_Comm_dup"));
  const auto set_handler = reinterpret_cast<SetHandler>(next_symbol("PMPI_Comm_set_errhandler"));
  const Library& library = g_adapter.library;
  Word alone = 0;
  g_alone = 0;
  if (duplicate == nullptr || set_handler == nullptr || duplicate(library.comm_self, &alone) != 0) return;
  if (set_handler(library.handle(alone), library.errors_return) == 0) g_alone = library.handle(alone);
}

void close_trials() {
  Word alone = g_alone;
  g_alone = 0;
  const auto free_it = reinterpret_cast<int (*)(Word*)>(next_symbol("PMPI_Comm_free"));
  if (alone != 0 && free_it != nullptr) free_it(&alone);
}

void forget_trials() {
  for (auto& forms : g_collectives) {
    for (auto& form : forms) form.store(nullptr, std::memory_order_release);
  }
}

}  // namespace powerccl::mpi
