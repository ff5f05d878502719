/* Made-up images and made-up text, from a seed. */
#include "data/data_tokens.h"

#include "base/rng.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Numbers of the random streams of a made-up set. */
enum { SYNTHETIC_TEMPLATES, SYNTHETIC_LABELS, SYNTHETIC_NOISE, SYNTHETIC_FOLLOWERS };

/* `count` random bytes, 16 per block of the generator. */
static void synthetic_bytes(struct tess_rng_key key, uint64_t high, int64_t count, uint8_t *target)
{
    for (int64_t i = 0; i < count; i += 16) {
        uint32_t word[4];
        tess_rng_block(key, (uint64_t)i / 16, high, word);
        for (int64_t j = i; j < i + 16 && j < count; j++)
            target[j] = (uint8_t)(word[(j - i) / 4] >> 8 * ((j - i) % 4));
    }
}

/* Each pixel is the mean of its class's template and of noise as strong as that. */
static void synthetic_fill(const struct tess_split *split, uint64_t which, uint64_t seed,
                           int64_t row_count, int32_t class_count, const uint8_t *template)
{
    const struct tess_rng_key label_key = tess_rng_key(seed, TESS_RNG_TEST, SYNTHETIC_LABELS);
    const struct tess_rng_key noise_key = tess_rng_key(seed, TESS_RNG_TEST, SYNTHETIC_NOISE);
    synthetic_bytes(noise_key, which, row_count * split->count, split->image);
    for (int64_t i = 0; i < split->count; i++) {
        const uint32_t c = tess_rng_word(label_key, (uint64_t)i, which) % (uint32_t)class_count;
        uint8_t *row = split->image + i * row_count;
        split->label[i] = (uint16_t)c;
        for (int64_t p = 0; p < row_count; p++)
            row[p] = (uint8_t)((row[p] + template[(int64_t)c * row_count + p] + 1) / 2);
    }
}

enum tess_status tess_dataset_open_synthetic(struct tess_shape row, int32_t class_count,
                                             int64_t train_count, int64_t test_count, uint64_t seed,
                                             struct tess_dataset **dataset_out)
{
    struct tess_dataset *dataset;
    if (tess__dataset_bytes(row, (uint64_t)train_count, (uint64_t)test_count) >
        tess__dataset_bytes_max())
        TESS_FAIL(TESS_ERR_USAGE,
                  "%lld and %lld images of %lld x %lld x %lld are more than the %.1f GiB of "
                  "memory that this process may use",
                  (long long)train_count, (long long)test_count, (long long)row.dim[0],
                  (long long)row.dim[1], (long long)row.dim[2], tess__dataset_gib_max());
    const int64_t row_count = tess_shape_count(&row);
    uint8_t *template = malloc((size_t)row_count * (size_t)class_count);
    if (template == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the templates of %d made-up classes",
                  (int)class_count);
    const enum tess_status status =
        tess__dataset_new(row, class_count, train_count, test_count, &dataset);
    if (status == TESS_OK) {
        synthetic_bytes(tess_rng_key(seed, TESS_RNG_TEST, SYNTHETIC_TEMPLATES), 0,
                        row_count * class_count, template);
        synthetic_fill(&dataset->train, 0, seed, row_count, class_count, template);
        synthetic_fill(&dataset->test, 1, seed, row_count, class_count, template);
        tess__dataset_seal(dataset);
        *dataset_out = dataset;
    }
    free(template);
    return status;
}

/* Followers of a token in made-up text. */
#define SYNTHETIC_CHOICES 4

enum tess_status tess_dataset_open_synthetic_tokens(int64_t length, int64_t train_count,
                                                    int64_t test_count, uint64_t seed,
                                                    struct tess_dataset **dataset_out)
{
    const struct tess_rng_key key = tess_rng_key(seed, TESS_RNG_TEST, SYNTHETIC_NOISE);
    const uint64_t samples = (uint64_t)train_count + (uint64_t)test_count;
    uint8_t follower[256][SYNTHETIC_CHOICES], *memory, token = 0;
    if (tess__dataset_product(samples, (uint64_t)length) >= tess__dataset_bytes_max())
        TESS_FAIL(TESS_ERR_USAGE,
                  "%lld and %lld samples of %lld tokens are more than the %.1f GiB of memory that "
                  "this process may use",
                  (long long)train_count, (long long)test_count, (long long)length,
                  tess__dataset_gib_max());
    struct tess_token_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a data set's description");
    stream->kind = &tess__token_text;
    const size_t bytes = (size_t)samples * (size_t)length + 1;
    enum tess_status status = tess__stream_map(bytes, &memory);
    if (status == TESS_OK) {
        synthetic_bytes(tess_rng_key(seed, TESS_RNG_TEST, SYNTHETIC_FOLLOWERS), 0, sizeof(follower),
                        follower[0]);
        synthetic_bytes(key, 0, (int64_t)bytes, memory);
        for (size_t i = 0; i < bytes; i++)
            memory[i] = token = follower[token][memory[i] % SYNTHETIC_CHOICES];
        mprotect(memory, bytes, PROT_READ);
        status = tess__stream_append(
            stream, "made-up text",
            (struct tess__token_piece){
                .token = memory, .count = (int64_t)bytes, .map = memory, .map_bytes = bytes});
    }
    if (status != TESS_OK) {
        tess__stream_close(stream);
        return status;
    }
    TESS_TRY(tess__tokens_split(stream, NULL, 0, length, false, dataset_out));
    (*dataset_out)->train.count = train_count;
    (*dataset_out)->test.count = test_count;
    (*dataset_out)->test.first = train_count * length;
    return TESS_OK;
}
