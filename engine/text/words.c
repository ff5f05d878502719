/* The words for what runs count. */
#include "text/words.h"

#include "data/data.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

struct tess__words tess__words_for(double tokens)
{
    const struct tess__words sequences = {.tokens = true,
                                          .rate_of_row = tokens,
                                          .row = "sequence",
                                          .rows = "sequences",
                                          .counted = "tokens",
                                          .rate = "tokens/s",
                                          .rate_short = "tok/s"};
    const struct tess__words images = {.rate_of_row = 1,
                                       .row = "image",
                                       .rows = "images",
                                       .counted = "images",
                                       .rate = "images/s",
                                       .rate_short = "img/s"};
    return tokens > 0 ? sequences : images;
}

struct tess__words tess__words_of(const struct tess_dataset *dataset)
{
    return tess__words_for(dataset->tokens ? (double)dataset->row.dim[0] : 0);
}

struct tess__words tess__words_mixed(void)
{
    return (struct tess__words){.rate_of_row = 1,
                                .row = "sample",
                                .rows = "samples",
                                .counted = "samples",
                                .rate = "samples/s",
                                .rate_short = "smp/s"};
}

const char *tess__data_id_text(const struct tess_dataset *dataset, const struct tess_split *split,
                               char text[TESS__DATA_ID_BYTES])
{
    if (split->count > 0)
        snprintf(text, TESS__DATA_ID_BYTES, "%016" PRIx64, tess_dataset_id(dataset, split));
    else
        snprintf(text, TESS__DATA_ID_BYTES, "none");
    return text;
}

const char *tess__data_text(const struct tess_dataset *dataset, char text[TESS__DATA_BYTES])
{
    char train[TESS__DATA_ID_BYTES], test[TESS__DATA_ID_BYTES];
    snprintf(text, TESS__DATA_BYTES, "data hashes: training %s, validation %s",
             tess__data_id_text(dataset, &dataset->train, train),
             tess__data_id_text(dataset, &dataset->test, test));
    return text;
}

const char *tess__words_rate(const struct tess__words *words, double rows_per_s,
                             char text[TESS__TEXT_BYTES])
{
    return tess__text_count(words->rate_of_row * rows_per_s, text);
}

const char *tess__words_quality(const struct tess__words *words, double loss, double accuracy,
                                char text[TESS__TEXT_BYTES])
{
    if (words->tokens)
        snprintf(text, TESS__TEXT_BYTES, "perplexity %.*f", exp(loss) < 99.995 ? 2 : 1, exp(loss));
    else
        snprintf(text, TESS__TEXT_BYTES, "accuracy %.2f %%", 100 * accuracy);
    return text;
}
