/*
 * Trains an MLP on four ranks under fsdp inside this program, and prints the memory of each rank.
 *
 *     cc embed.c $(pkg-config --cflags --libs tessera) -o embed && ./embed
 */
#include <tessera/engine.h>

#include <inttypes.h>
#include <stdio.h>

static const struct tess_job_option option[] = {
    {"model", "mlp"},      {"strategy", "fsdp"}, {"ranks", "4"},
    {"data", "synthetic"}, {"steps", "30"},      {"batch-size", "64"},
};

static void print_memory(const struct tess_job *job)
{
    for (int32_t rank = 0; rank < tess_job_rank_count(job); rank++) {
        const struct tess_job_memory memory = tess_job_memory_of(job, rank);
        printf("rank %d: %.0f KiB:", (int)rank, (double)memory.total / 1024);
        for (int kind = 0; kind < TESS_MEMORY_KIND_COUNT; kind++)
            if (memory.bytes[kind] > 0)
                printf(" %s %.0f", tess_memory_kind_name((enum tess_memory_kind)kind),
                       (double)memory.bytes[kind] / 1024);
        printf("\n");
    }
}

static enum tess_status train(struct tess_job *job)
{
    struct tess_job_metrics metrics;
    uint64_t hash;
    enum tess_status status = tess_job_start(job);
    for (int64_t done = 0; status == TESS_OK && done < tess_job_step_count(job); done += 10) {
        status = tess_job_step(job, 10, NULL, &metrics);
        if (status == TESS_OK)
            printf("step %" PRId64 ": loss %.4f, %.0f samples/s\n", metrics.step, metrics.loss,
                   metrics.samples_per_s);
    }
    if (status == TESS_OK)
        status = tess_job_hash(job, &hash);
    if (status == TESS_OK)
        printf("hash %016" PRIx64 "\n", hash);
    return status;
}

int main(void)
{
    struct tess_job_setup setup = {.option = option,
                                   .option_count = sizeof(option) / sizeof(*option)};
    struct tess_job *job = NULL;
    enum tess_status status = tess_job_open(&setup, &job);
    if (status == TESS_OK) {
        print_memory(job);
        status = train(job);
    }
    if (status != TESS_OK)
        fprintf(stderr, "embed: %s\n", tess_log_last_error());
    tess_job_close(job);
    return tess_status_exit_code(status);
}
