// SPDX-License-Identifier: Apache-2.0
// Arguments of the forms with MPI_Count counts, made into those of the plain forms. Programs that find `MPI_Recv_c` by
// a weak reference (mpi4py does) find ours in front of a library that has none; then it has to work.
#ifndef POWERCCL_DOORS_MPI_NARROW_H
#define POWERCCL_DOORS_MPI_NARROW_H
#include "doors/mpi/functions.h"

namespace powerccl::mpi {

class Narrowed {
 public:
  Narrowed() = default;
  ~Narrowed();
  Narrowed(const Narrowed&) = delete;
  Narrowed& operator=(const Narrowed&) = delete;

  // Rewrites `arguments`; what they point to lives as long as this object. 0, or MPI_ERR_COUNT where a count or a
  // displacement does not fit, or MPI_ERR_OTHER for want of memory.
  int narrow(Function function, Word* arguments);

 private:
  int* copies_[4] = {};
};

}  // namespace powerccl::mpi
#endif
