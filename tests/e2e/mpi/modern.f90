! SPDX-License-Identifier: Apache-2.0
! The module mpi_f08: three reductions of five doubles, one message of a hundred integers to rank 1, one in place.
program modern
  use mpi_f08
  implicit none
  integer :: rank, ranks, i
  integer :: numbers(100)
  type(MPI_Status) :: status
  type(MPI_Comm) :: copy
  type(MPI_Request) :: request
  double precision :: mine(5), sums(5)
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_dup(MPI_COMM_WORLD, copy)
  call MPI_Comm_size(copy, ranks)
  mine = rank + 1.5d0
  do i = 1, 3
    call MPI_Allreduce(mine, sums, 5, MPI_DOUBLE_PRECISION, MPI_SUM, copy)
    mine = sums + rank
  end do
  call MPI_Reduce_scatter_block(MPI_IN_PLACE, sums, 1, MPI_DOUBLE_PRECISION, MPI_SUM, copy)
  numbers = 0
  if (rank == 0) then
    numbers = [(i * i, i = 1, 100)]
    call MPI_Isend(numbers, 100, MPI_INTEGER, 1, 4, copy, request)
    call MPI_Wait(request, MPI_STATUS_IGNORE)
  else if (rank == 1) then
    call MPI_Recv(numbers, 100, MPI_INTEGER, MPI_ANY_SOURCE, 4, copy, status)
    if (status%MPI_SOURCE /= 0 .or. status%MPI_TAG /= 4) numbers = -1
  end if
  call MPI_Bcast(numbers, 100, MPI_INTEGER, 1, copy)
  write (*, '(a,i0,a,2f10.2,i8)') 'rank ', rank, ':', sums(1:2), sum(numbers)
  call MPI_Comm_free(copy)
  call MPI_Finalize()
end program
