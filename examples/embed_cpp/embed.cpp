/*
 * Trains an MLP on four ranks under fsdp inside this program, and prints the memory of each rank.
 *
 *     c++ -std=c++17 embed.cpp $(pkg-config --cflags --libs tessera) -o embed_cpp && ./embed_cpp
 */
#include <tessera/engine.h>

#include <cinttypes>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <vector>

struct close_job {
    void operator()(tess_job *job) const
    {
        tess_job_close(job);
    }
};
using job_pointer = std::unique_ptr<tess_job, close_job>;

static void check(tess_status status)
{
    if (status != TESS_OK)
        throw std::runtime_error(tess_log_last_error());
}

static job_pointer open_job(const std::vector<tess_job_option> &options)
{
    tess_job_setup setup = {};
    tess_job *job = nullptr;
    setup.option = options.data();
    setup.option_count = static_cast<int32_t>(options.size());
    check(tess_job_open(&setup, &job));
    return job_pointer(job);
}

static void print_memory(const tess_job *job)
{
    for (int32_t rank = 0; rank < tess_job_rank_count(job); rank++) {
        const tess_job_memory memory = tess_job_memory_of(job, rank);
        std::printf("rank %d: %.0f KiB:", rank, memory.total / 1024.0);
        for (int kind = 0; kind < TESS_MEMORY_KIND_COUNT; kind++)
            if (memory.bytes[kind] > 0)
                std::printf(" %s %.0f", tess_memory_kind_name(static_cast<tess_memory_kind>(kind)),
                            memory.bytes[kind] / 1024.0);
        std::printf("\n");
    }
}

int main()
{
    try {
        const job_pointer job = open_job({{"model", "mlp"},
                                          {"strategy", "fsdp"},
                                          {"ranks", "4"},
                                          {"data", "synthetic"},
                                          {"steps", "30"},
                                          {"batch-size", "64"}});
        tess_job_metrics metrics;
        uint64_t hash;
        print_memory(job.get());
        check(tess_job_start(job.get()));
        for (int64_t done = 0; done < tess_job_step_count(job.get()); done += 10) {
            check(tess_job_step(job.get(), 10, nullptr, &metrics));
            std::printf("step %" PRId64 ": loss %.4f, %.0f samples/s\n", metrics.step, metrics.loss,
                        metrics.samples_per_s);
        }
        check(tess_job_hash(job.get(), &hash));
        std::printf("hash %016" PRIx64 "\n", hash);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "embed_cpp: %s\n", error.what());
        return 1;
    }
}
