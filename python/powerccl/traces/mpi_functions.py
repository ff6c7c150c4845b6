# SPDX-License-Identifier: Apache-2.0
"""The MPI functions that traces name by number, in the order of native/abi/mpi_functions.def (without the MPI_)."""

from __future__ import annotations

_IN_ORDER = """
    Barrier Bcast Reduce Allreduce Allgather Allgatherv Gather Gatherv Scatter Scatterv Alltoall Alltoallv Alltoallw
    Reduce_scatter Reduce_scatter_block Scan Exscan Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall
    Neighbor_alltoallv Neighbor_alltoallw Send Ssend Rsend Bsend Recv Mrecv Sendrecv Sendrecv_replace Probe Mprobe
    Wait Waitall Waitany Waitsome Win_fence Win_lock Win_unlock Win_lock_all Win_unlock_all Win_flush Win_flush_all
    Win_flush_local Win_flush_local_all Win_start Win_complete Win_post Win_wait Win_free Win_create Win_allocate
    Win_allocate_shared Win_create_dynamic Comm_dup Comm_dup_with_info Comm_split Comm_split_type Comm_create
    Comm_create_group Comm_create_from_group Intercomm_create Intercomm_create_from_groups Intercomm_merge Comm_accept
    Comm_connect Comm_spawn Comm_spawn_multiple Cart_create Cart_sub Graph_create Dist_graph_create
    Dist_graph_create_adjacent Comm_free Comm_disconnect File_open File_close File_sync File_set_size File_set_view
    File_read_all File_write_all File_read_at_all File_write_at_all File_read_ordered File_write_ordered
    File_read_all_end File_write_all_end File_read_at_all_end File_write_at_all_end Buffer_detach Type_free Init
    Init_thread Session_init Finalize Session_finalize
"""
FUNCTIONS = tuple(_IN_ORDER.split())

# Every rank of the communicator takes part, so their waits can be compared.
_COLLECTIVES = """
    Barrier Bcast Reduce Allreduce Allgather Allgatherv Gather Gatherv Scatter Scatterv Alltoall Alltoallv Alltoallw
    Reduce_scatter Reduce_scatter_block Scan Exscan
"""
COLLECTIVES = frozenset(_COLLECTIVES.split())


def function_name(number: int) -> str:
    """`MPI_Allreduce`, as MPI programmers write it; `MPI function 999` for one that this version does not know."""
    return f"MPI_{FUNCTIONS[number]}" if 0 <= number < len(FUNCTIONS) else f"MPI function {number}"
