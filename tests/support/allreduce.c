/* A program for Open MPI that needs none of its headers: every rank adds its number to a sum that
 * all get, through the network between them. The objects' sizes do not matter, only where they are. */
#include <stdio.h>

extern char ompi_mpi_comm_world, ompi_mpi_int, ompi_mpi_op_sum;
int MPI_Init(int *, char ***);
int MPI_Comm_rank(void *, int *);
int MPI_Comm_size(void *, int *);
int MPI_Allreduce(const void *, void *, int, void *, void *, void *);
int MPI_Finalize(void);

int main(int argc, char **argv)
{
    int rank, size, mine, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(&ompi_mpi_comm_world, &rank);
    MPI_Comm_size(&ompi_mpi_comm_world, &size);
    mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, &ompi_mpi_int, &ompi_mpi_op_sum, &ompi_mpi_comm_world);
    printf("rank %d of %d: sum %d\n", rank, size, sum);
    return MPI_Finalize();
}
