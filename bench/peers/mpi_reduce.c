/*
 * Time of MPI_Allreduce of f32, in place: one JSON line for each size in bytes given as an
 * argument. Taken as `tessera bench comm` takes it: calls back to back, each timed on rank 0, the
 * median printed.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 1000
#define SAMPLES_MIN 5
#define WARM_UP     2
#define TOUCHED     ((size_t)1 << 30) /* bytes per size, which sets the number of samples */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double time_size(float *data, size_t bytes)
{
    static double sample[SAMPLES_MAX];
    const size_t wanted = TOUCHED / bytes;
    const int samples = wanted > SAMPLES_MAX   ? SAMPLES_MAX
                        : wanted < SAMPLES_MIN ? SAMPLES_MIN
                                               : (int)wanted;

    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = -WARM_UP; i < samples; i++) {
        MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / sizeof(*data)), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
        const double now = MPI_Wtime();
        if (i >= 0)
            sample[i] = now - start;
        start = now;
    }
    qsort(sample, (size_t)samples, sizeof(sample[0]), compare_doubles);
    return sample[samples / 2];
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
