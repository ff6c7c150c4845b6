! SPDX-License-Identifier: Apache-2.0
! mpif.h: three reductions of five doubles, one message of a hundred integers to rank 1, one in place.
program legacy
  implicit none
  include 'mpif.h'
  integer :: rank, ranks, ierror, i
  integer :: status(MPI_STATUS_SIZE), numbers(100)
  double precision :: mine(5), sums(5)
  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  mine = rank + 1.5d0
  do i = 1, 3
    call MPI_Allreduce(mine, sums, 5, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
    mine = sums + rank
  end do
  call MPI_Reduce_scatter_block(MPI_IN_PLACE, sums, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
  numbers = 0
  if (rank == 0) then
    numbers = [(i * i, i = 1, 100)]
    call MPI_Send(numbers, 100, MPI_INTEGER, 1, 4, MPI_COMM_WORLD, ierror)
  else if (rank == 1) then
    call MPI_Recv(numbers, 100, MPI_INTEGER, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, status, ierror)
    if (status(MPI_SOURCE) /= 0 .or. status(MPI_TAG) /= 4) numbers = -1
  end if
  call MPI_Bcast(numbers, 100, MPI_INTEGER, 1, MPI_COMM_WORLD, ierror)
  write (*, '(a,i0,a,2f10.2,i8)') 'rank ', rank, ':', sums(1:2), sum(numbers)
  call MPI_Finalize(ierror)
end program
