// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

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

void where_the_most_is(Program& p, const Group& g) {
  struct {
    double value;
    int rank;
  } in{static_cast<double>(p.value(g.rank, 0)), g.rank}, out{0, -1};
  int most = 0;
  for (int rank = 1; rank < g.size; ++rank) {
    if (p.value(rank, 0) > p.value(most, 0)) most = rank;
  }
  MPI_Allreduce(&in, &out, 1, MPI_DOUBLE_INT, MPI_MAXLOC, g.comm);
  p.expect(out.rank, most);
}

struct Particle {
  char kind;
  double place[3];
  int charge;
  long number;
};

Particle particle_of(const Program& p, int rank, int index) {
  const long value = p.value(rank, index);
  return {static_cast<char>('a' + value % 26),
          {static_cast<double>(value) / 8, static_cast<double>(value) / 4, -1.0},
          static_cast<int>(value % 7),
          value};
}

void expect_particle(Program& p, const Particle& is, const Particle& should_be) {
  p.expect(is.kind, should_be.kind);
  p.expect(static_cast<long>(is.place[0] * 8), static_cast<long>(should_be.place[0] * 8));
  p.expect(is.charge, should_be.charge);
  p.expect(is.number, should_be.number);
}

// A C struct with gaps, gathered, told to all and sent around.
void structures(Program& p, const Group& g) {
  const int count = 1 + p.draws.below(25), root = p.draws.below(1 << 20) % g.size;
  const int lengths[4] = {1, 3, 1, 1};
  const MPI_Aint places[4] = {offsetof(Particle, kind), offsetof(Particle, place), offsetof(Particle, charge),
                              offsetof(Particle, number)};
  const MPI_Datatype types[4] = {MPI_CHAR, MPI_DOUBLE, MPI_INT, MPI_LONG};
  MPI_Datatype loose, type;
  MPI_Type_create_struct(4, lengths, places, types, &loose);
  MPI_Type_create_resized(loose, 0, sizeof(Particle), &type);
  MPI_Type_commit(&type);
  MPI_Type_free(&loose);
  const size_t n = static_cast<size_t>(count);
  std::vector<Particle> mine(n), all(n * static_cast<size_t>(g.size));
  for (int i = 0; i < count; ++i) mine[static_cast<size_t>(i)] = particle_of(p, g.rank, i);
  MPI_Gather(mine.data(), count, type, all.data(), count, type, root, g.comm);
  MPI_Bcast(all.data(), static_cast<int>(all.size()), type, root, g.comm);
  for (int rank = 0; rank < g.size; ++rank) {
    for (int i = 0; i < count; ++i)
      expect_particle(p, all[static_cast<size_t>(rank * count + i)], particle_of(p, rank, i));
  }
  const int before = (g.rank + g.size - 1) % g.size;
  MPI_Status status;
  MPI_Sendrecv_replace(mine.data(), count, type, (g.rank + 1) % g.size, 50, before, 50, g.comm, &status);
  int received = 0;
  MPI_Get_count(&status, type, &received);
  p.expect(received, count);
  for (int i = 0; i < count; ++i) expect_particle(p, mine[static_cast<size_t>(i)], particle_of(p, before, i));
  MPI_Type_free(&type);
}

// A matrix transposed on its way: rows leave, columns arrive.
void transposed(Program& p, const Group& g) {
  const int edge = 1 + p.draws.below(20);
  const size_t cells = static_cast<size_t>(edge * edge);
  std::vector<long> matrix(cells), other(cells, -1);
  for (int i = 0; i < edge * edge; ++i) matrix[static_cast<size_t>(i)] = p.value(g.rank, i);
  MPI_Datatype column, columns;
  MPI_Type_vector(edge, 1, edge, MPI_LONG, &column);
  MPI_Type_create_resized(column, 0, sizeof(long), &columns);
  MPI_Type_commit(&columns);
  const int after = (g.rank + 1) % g.size, before = (g.rank + g.size - 1) % g.size;
  MPI_Request request;
  MPI_Irecv(other.data(), edge, columns, before, 51, g.comm, &request);
  MPI_Send(matrix.data(), edge * edge, MPI_LONG, after, 51, g.comm);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int row = 0; row < edge; ++row) {
    for (int at = 0; at < edge; ++at)
      p.expect(other[static_cast<size_t>(at * edge + row)], p.value(before, row * edge + at));
  }
  MPI_Type_free(&column);
  MPI_Type_free(&columns);
}

// Packed by one, told to all, unpacked by each.
void packed(Program& p, const Group& g) {
  const int root = p.draws.below(1 << 20) % g.size, count = 1 + p.draws.below(50);
  std::vector<char> bytes(static_cast<size_t>(64 + count * 16));
  std::vector<long> values(static_cast<size_t>(count));
  int place = 0, told = 0;
  if (g.rank == root) {
    for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = p.value(root, i);
    MPI_Pack(&count, 1, MPI_INT, bytes.data(), static_cast<int>(bytes.size()), &place, g.comm);
    MPI_Pack(values.data(), count, MPI_LONG, bytes.data(), static_cast<int>(bytes.size()), &place, g.comm);
  }
  MPI_Bcast(&place, 1, MPI_INT, root, g.comm);
  MPI_Bcast(bytes.data(), place, MPI_PACKED, root, g.comm);
  const int whole = place;
  place = 0;
  MPI_Unpack(bytes.data(), whole, &place, &told, 1, MPI_INT, g.comm);
  MPI_Unpack(bytes.data(), whole, &place, values.data(), count, MPI_LONG, g.comm);
  p.expect(told, count);
  for (int i = 0; i < count; ++i) p.expect(values[static_cast<size_t>(i)], p.value(root, i));
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
  operations.insert(operations.end(), {own_operation, where_the_most_is, structures, transposed, packed, large_counts});
}
