/*
 * Which samples make the batches of a rank: by their global position, so that every layout sees the
 * same ones; and how batches come into device memory. The loader knows what a sample is.
 *
 * Where device memory is the host's, loaders write into it. To far memory the kernels' queue copies
 * a batch from the loader's slot, after the work that read the batch before; the host waits only
 * until a batch has left its slot, before the loader fills that again.
 */
#ifndef TESSERA_CORE_BATCHES_H
#define TESSERA_CORE_BATCHES_H

#include "core/schedule.h"

#define TESS_SLOTS_MAX 4

struct tess_batches {
    /* Borrowed. */
    const struct tess_config *config;
    const struct tess_dataset *dataset;
    const struct tess_plan *plan;
    const struct tess_sizes *sizes;
    const struct tess_schedule *schedule;
    struct tess_kernel *kernel;
    struct tess_memory *memory;

    struct tess_block input[TESS_SLOTS_MAX], label[TESS_SLOTS_MAX]; /* far memory: one */
    struct tess_block test_input, test_label;
    struct tess_block kept_input, kept_label;   /* [slots of a chunk] where several are under way */
    struct tess_loader *loader, *test_loader;   /* NULL where this rank loads nothing */
    void *pinned[TESS_SLOTS_MAX], *test_pinned; /* far memory: rows, then labels */
    struct tess_fence *sent;                    /* far memory: the latest batch has been copied */
};

/* The borrowed fields are set. open follows after the memory is there; close accepts a zeroed one.
 */
enum tess_status tess__batches_reserve(struct tess_batches *batches);
enum tess_status tess__batches_open(struct tess_batches *batches);
void tess__batches_close(struct tess_batches *batches);

/* Are all batches of a step in places of their own before it begins? Where steps are recorded. */
static inline bool tess__batches_ahead(const struct tess_batches *batches)
{
    return batches->config->cuda.graph;
}
/* Then: load those of the coming step. */
enum tess_status tess__batches_load_step(struct tess_batches *batches);

/* The next batch for training, micro-batch `micro` of the step, or for a test, in device memory. */
enum tess_status tess__batches_next(struct tess_batches *batches, bool test, int32_t micro,
                                    void **input_out, int32_t **label_out);

/* Copy the rows and labels that a chunk needs to its slot, as other batches are loaded before its
 * backward; the pointers become those of the copies. Nothing with one micro-batch under way. */
void tess__batches_keep(struct tess_batches *batches, const struct tess_chunk *chunk, int32_t slot,
                        const void **input, const int32_t **label);

#endif
