/*
 * Time of MPI_Allreduce of f32, in place: one JSON line for each size in bytes given as an
 * argument. Taken as `tessera bench comm` takes it: calls back to back, each timed on rank 0, from
 * 5 of them on twice as many while they fit into the time of a row on the slowest rank; the median
 * is printed.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 1000
#define SAMPLES_MIN 5
#define WARM_UP     2
#define TOUCHED     ((size_t)1 << 30) /* bytes per size, which sets the number of samples */
#define ROW_S       2.0               /* a size */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int more_samples(int samples, int most, double passed)
{
    double slowest;

    MPI_Allreduce(&passed, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (2 * slowest > ROW_S)
        return samples;
    return 2 * samples < most ? 2 * samples : most;
}

static double time_size(float *data, size_t bytes)
{
    static double sample[SAMPLES_MAX];
    const size_t wanted = TOUCHED / bytes;
    const int most = wanted > SAMPLES_MAX   ? SAMPLES_MAX
                     : wanted < SAMPLES_MIN ? SAMPLES_MIN
                                            : (int)wanted;
    int samples = SAMPLES_MIN;

    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime(), begin = start;
    for (int i = -WARM_UP; i < samples;) {
        MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / sizeof(*data)), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
        const double now = MPI_Wtime();
        if (i >= 0)
            sample[i] = now - start;
        start = now;
        if (++i == 0)
            begin = now;
        if (i == samples) {
            samples = more_samples(samples, most, now - begin);
            start = MPI_Wtime();
        }
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
