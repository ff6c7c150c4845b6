// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "program.h"

namespace {

constexpr long kModulus = 1000003;

// x -> a x + b: composing such maps is associative but not commutative, so the order of ranks shows.
struct Affine {
  long a, b;
};

Affine composed(Affine f, Affine g) {
  return {f.a * g.a % kModulus, (f.a * g.b + f.b) % kModulus};
}

void compose(void* in, void* inout, int* count, MPI_Datatype*) {
  const Affine* f = static_cast<const Affine*>(in);
  Affine* g = static_cast<Affine*>(inout);
  for (int i = 0; i < *count; ++i) g[i] = composed(f[i], g[i]);
}

Affine map_of(const Program& p, int rank, int place) {
  return {1 + p.value(rank, 2 * place), p.value(rank, 2 * place + 1)};
}

Affine chain(const Program& p, int ranks, int place) {
  Affine all = map_of(p, 0, place);
  for (int rank = 1; rank < ranks; ++rank) all = composed(all, map_of(p, rank, place));
  return all;
}

void own_operation(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(30), root = p.draws.below(1 << 20) % g.size, how = p.draws.below(3);
  MPI_Datatype pair;
  MPI_Op op;
  MPI_Type_contiguous(2, MPI_LONG, &pair);
  MPI_Type_commit(&pair);
  MPI_Op_create(compose, 0, &op);
  std::vector<Affine> in, out(static_cast<size_t>(count), Affine{-1, -1});
  for (int i = 0; i < count; ++i) in.push_back(map_of(p, g.rank, i));
  if (how == 0) MPI_Allreduce(in.data(), out.data(), count, pair, op, g.comm);
  if (how == 1) MPI_Reduce(in.data(), out.data(), count, pair, op, root, g.comm);
  if (how == 2) MPI_Scan(in.data(), out.data(), count, pair, op, g.comm);
  if (how != 1 || g.rank == root) {
    for (int i = 0; i < count; ++i) {
      const Affine should_be = chain(p, how == 2 ? g.rank + 1 : g.size, i);
      p.expect(out[static_cast<size_t>(i)].a, should_be.a);
      p.expect(out[static_cast<size_t>(i)].b, should_be.b);
    }
  }
  MPI_Op_free(&op);
  MPI_Type_free(&pair);
}

// The forms with MPI_Count, where the library has them.
void large_counts(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(400), root = p.draws.below(1 << 20) % g.size;
  const int after = (g.rank + 1) % g.size, before = (g.rank + g.size - 1) % g.size;
  const size_t n = static_cast<size_t>(count);
  std::vector<long> in(n), out(n, -1), told(n, -1);
  for (size_t i = 0; i < n; ++i) in[i] = p.value(g.rank, static_cast<int>(i));
  if (g.rank == root) told = in;
#if MPI_VERSION >= 4
  MPI_Bcast_c(told.data(), count, MPI_LONG, root, g.comm);
  if (g.rank % 2 == 0 && g.size > 1) MPI_Send_c(in.data(), count, MPI_LONG, after, 52, g.comm);
  if (g.size > 1) MPI_Recv_c(out.data(), count, MPI_LONG, before, 52, g.comm, MPI_STATUS_IGNORE);
  if (g.rank % 2 == 1) MPI_Send_c(in.data(), count, MPI_LONG, after, 52, g.comm);
  if (g.size > 1) {
    for (size_t i = 0; i < n; ++i) p.expect(out[i], p.value(before, static_cast<int>(i)));
  }
  MPI_Sendrecv_c(in.data(), count, MPI_LONG, after, 53, out.data(), count, MPI_LONG, before, 53, g.comm,
                 MPI_STATUS_IGNORE);
  MPI_Allreduce_c(MPI_IN_PLACE, in.data(), count, MPI_LONG, MPI_MAX, g.comm);
#else
  MPI_Bcast(told.data(), count, MPI_LONG, root, g.comm);
  MPI_Sendrecv(in.data(), count, MPI_LONG, after, 53, out.data(), count, MPI_LONG, before, 53, g.comm,
               MPI_STATUS_IGNORE);
  MPI_Allreduce(MPI_IN_PLACE, in.data(), count, MPI_LONG, MPI_MAX, g.comm);
#endif
  for (size_t i = 0; i < n; ++i) {
    long most = 0;
    for (int rank = 0; rank < g.size; ++rank) most = std::max(most, p.value(rank, static_cast<int>(i)));
    p.expect(told[i], p.value(root, static_cast<int>(i)));
    p.expect(out[i], p.value(before, static_cast<int>(i)));
    p.expect(in[i], most);
  }
}

}  // namespace

void add_types(std::vector<Operation>& operations) {
  operations.insert(operations.end(), {own_operation, large_counts});
}
