/*
 * Do the rows of a result depend on how many rows are run at once? A library may choose another
 * blocking, and so another rounding, for another size. Tested per shape when an operation is
 * opened, by running both over the same random data, and remembered while the backend is open.
 */
#include "cpu/prim.h"

#include "base/half.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Numbers in [-1, 1) of a linear congruential generator (Knuth's MMIX constants), top 24 bits. */
static void rows_fill(enum tess_dtype dtype, size_t bytes, void *memory)
{
    uint64_t x = 12345;
    float *whole = memory;
    uint16_t *half = memory;
    size_t count = bytes / tess_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        float value = (float)((int64_t)(x >> 40) - (1 << 23)) * 0x1p-23f;
        if (dtype == TESS_BF16)
            half[i] = tess__bf16_of_f32(value);
        else
            whole[i] = value;
    }
}

/* All inputs are the same random bytes: only equality of the results matters. */
static enum tess_status rows_run(const struct cpu_rows_test *test, char *random, char *full,
                                 char *leaf, bool *alike_out)
{
    const void *data[4] = {random, random, full, random};
    TESS_TRY(test->run(test->op, test->what, test->full, data));
    int64_t last = test->rows / test->leaf_rows - 1;
    bool alike = true;
    for (int64_t g = 0; g <= last; g += last > 0 ? last : 1) { /* the first and the last leaf */
        data[0] = random + (size_t)(g * test->leaf_rows) * test->in_bytes;
        data[2] = leaf;
        TESS_TRY(test->run(test->op, test->what, test->leaf, data));
        const char *same = full + (size_t)(g * test->leaf_rows) * test->out_bytes;
        alike = alike && memcmp(same, leaf, (size_t)test->leaf_rows * test->out_bytes) == 0;
    }
    *alike_out = alike;
    return TESS_OK;
}

static enum tess_status rows_remember(struct cpu_state *state, const struct cpu_rows_test *test,
                                      bool alike)
{
    struct cpu_verdict *grown =
        realloc(state->verdict, (size_t)(state->verdict_count + 1) * sizeof(*state->verdict));
    if (grown == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d kernel verdicts", state->verdict_count + 1);
    state->verdict = grown;
    struct cpu_verdict *slot = &grown[state->verdict_count++];
    memset(slot, 0, sizeof(*slot));
    slot->desc = test->op->desc;
    slot->what = (int)test->what;
    slot->alike = alike;
    return TESS_OK;
}

static bool rows_same_shape(const struct tess_op_desc *a, const struct tess_op_desc *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->rows == b->rows &&
           a->leaf_rows == b->leaf_rows && a->in == b->in && a->out == b->out &&
           a->height == b->height && a->width == b->width && a->window == b->window &&
           a->stride == b->stride && a->padding == b->padding && a->relu == b->relu;
}

enum tess_status tess__cpu_rows_alike(const struct cpu_rows_test *test, bool *alike_out)
{
    const struct tess_op_desc *desc = &test->op->desc;
    struct cpu_state *state = tess__cpu_state(test->op);
    for (int i = 0; i < state->verdict_count; i++) {
        const struct cpu_verdict *known = &state->verdict[i];
        if (known->what == (int)test->what && rows_same_shape(&known->desc, desc)) {
            *alike_out = known->alike;
            return TESS_OK;
        }
    }
    size_t random = tess__cpu_max((size_t)test->rows * test->in_bytes, test->weight_bytes);
    random = tess__cpu_round_up(tess__cpu_max(random, test->bias_bytes));
    size_t full = tess__cpu_round_up((size_t)test->rows * test->out_bytes);
    size_t leaf = tess__cpu_round_up((size_t)test->leaf_rows * test->out_bytes);
    /* Mapped, not from malloc: given back to the system at once. */
    char *memory = mmap(NULL, random + full + leaf, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to test a kernel: %zu bytes", random + full + leaf);
    rows_fill(desc->dtype, random, memory);
    enum tess_status status =
        rows_run(test, memory, memory + random, memory + random + full, alike_out);
    munmap(memory, random + full + leaf);
    TESS_TRY(status);
    return rows_remember(state, test, *alike_out);
}
