/* Matrix instructions of the emulator, as operations of a warp: each lane brings its share of the
 * operands, the last to come computes for all. Layouts: kernels/cuda/mma.cuh. */
#include "emulate/mma.h"

/* in: the address of a row, how many tiles, whether transposed. */
static void load_matrix_work(emulate_thread *const thread[32])
{
    const uint16_t *row[32];
    for (int l = 0; l < 32; l++) {
        if (!thread[l])
            emulate_fail("a matrix instruction without all lanes");
        memcpy(&row[l], thread[l]->in, sizeof(row[l]));
    }
    int tiles = thread[0]->in[8];
    bool transposed = thread[0]->in[9] != 0;
    for (int l = 0; l < 32; l++) {
        int group = l / 4, pair = 2 * (l % 4);
        for (int t = 0; t < tiles; t++) {
            uint16_t two[2];
            for (int k = 0; k < 2; k++)
                two[k] = transposed ? row[8 * t + pair + k][group] : row[8 * t + group][pair + k];
            memcpy(thread[l]->out + 4 * t, two, 4);
        }
    }
}

void emulate_load_matrix(uint32_t *r, int tiles, const void *row, bool transposed)
{
    emulate_thread *me = emulate_now;
    if (me->lane < 8 * tiles && (uintptr_t)row % 16 != 0)
        emulate_fail("a row of a tile that is not 16-byte aligned");
    memcpy(me->in, &row, sizeof(row));
    me->in[8] = (unsigned char)tiles;
    me->in[9] = transposed;
    emulate_warp(0xffffffffu, load_matrix_work);
    memcpy(r, me->out, 4 * (size_t)tiles);
}

static float mma_element(const unsigned char *word, int k, bool half)
{
    uint16_t bits;
    memcpy(&bits, word + 2 * k, 2);
    return half ? __half2float(__ushort_as_half(bits))
                : __bfloat162float(__ushort_as_bfloat16(bits));
}

/* in: a[4], b[2], c[4], and whether elements are f16. */
static void mma_work(emulate_thread *const thread[32])
{
    double a[16][16], b[16][8], sum[16][8];
    for (int l = 0; l < 32; l++)
        if (!thread[l])
            emulate_fail("a matrix instruction without all lanes");
    bool half = thread[0]->in[40] != 0;
    for (int l = 0; l < 32; l++) {
        int group = l / 4, pair = 2 * (l % 4);
        for (int r = 0; r < 4; r++) {
            float c;
            for (int k = 0; k < 2; k++)
                a[group + 8 * (r % 2)][pair + 8 * (r / 2) + k] =
                    (double)mma_element(thread[l]->in + 4 * r, k, half);
            memcpy(&c, thread[l]->in + 24 + 4 * r, 4);
            sum[group + 8 * (r / 2)][pair + r % 2] = (double)c;
        }
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < 2; k++)
                b[pair + 8 * r + k][group] =
                    (double)mma_element(thread[l]->in + 16 + 4 * r, k, half);
    }
    /* A device rounds in its own way: tests leave room for it. */
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                sum[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++) {
        for (int r = 0; r < 4; r++) {
            float c = (float)sum[l / 4 + 8 * (r / 2)][2 * (l % 4) + r % 2];
            memcpy(thread[l]->out + 4 * r, &c, 4);
        }
    }
}

void emulate_mma(float c[4], const uint32_t a[4], const uint32_t b[2], bool half)
{
    emulate_thread *me = emulate_now;
    memcpy(me->in, a, 16);
    memcpy(me->in + 16, b, 8);
    memcpy(me->in + 24, c, 16);
    me->in[40] = half;
    emulate_warp(0xffffffffu, mma_work);
    memcpy(c, me->out, 16);
}
