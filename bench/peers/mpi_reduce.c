/*
 * Time of MPI_Allreduce of f32, in place: one JSON line for each size in bytes given as an argument.
 * A block is timed by its slowest rank; the median of the blocks after the first is printed.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 7

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Many short calls, but no more than about half a second at 1 GB/s. */
static int repeats(size_t bytes)
{
    const size_t count = ((size_t)256 << 20) / bytes;

    return count > 400 ? 400 : count < 1 ? 1 : (int)count;
}

static double time_size(float *data, size_t bytes)
{
    double seconds[BLOCKS];

    for (int block = -1; block < BLOCKS; block++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        for (int i = 0; i < repeats(bytes); i++)
            MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / sizeof *data), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
        double mine = (MPI_Wtime() - begin) / repeats(bytes), slowest;
        MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (block >= 0)
            seconds[block] = slowest;
    }
    qsort(seconds, BLOCKS, sizeof seconds[0], compare_doubles);
    return seconds[BLOCKS / 2];
}

int main(int argc, char **argv)
{
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        const size_t bytes = strtoull(argv[i], NULL, 10);
        float *data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

        if (!data)
            MPI_Abort(MPI_COMM_WORLD, 1);
        memset(data, 0, bytes);
        const double seconds = time_size(data, bytes);
        if (rank == 0) {
            printf("{\"peer\": \"open mpi\", \"ranks\": %d, \"bytes\": %zu, \"seconds\": %.9f}\n",
                   ranks, bytes, seconds);
            fflush(stdout);
        }
        free(data);
    }
    MPI_Finalize();
    return 0;
}
