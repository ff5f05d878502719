/* The words for what runs count: images, or sequences and the tokens in them. */
#ifndef TESSERA_TEXT_WORDS_H
#define TESSERA_TEXT_WORDS_H

#include "text/text.h"

#include <stdbool.h>

struct tess_dataset;
struct tess_split;

/* All texts are static. Rates are per row within the program; the shown figure is rate_of_row times
 * that, with `rate` behind it. */
struct tess__words {
    bool tokens;            /* rows are sequences of tokens */
    double rate_of_row;     /* 1, or the tokens of a sequence */
    const char *row, *rows; /* "image", "images" */
    const char *counted;    /* in rates: "images", "tokens" */
    const char *rate;       /* "images/s" */
    const char *rate_short; /* "img/s" */
};

/* `tokens` of a row; 0 or NaN: rows are images. */
struct tess__words tess__words_for(double tokens);
struct tess__words tess__words_of(const struct tess_dataset *dataset);

/* For a table of several kinds of rows: "samples", as they are. */
struct tess__words tess__words_mixed(void);

#define TESS__DATA_ID_BYTES 17

/* The fingerprint of a split (tess_dataset_id) as 16 hexadecimal digits, "none" where it is empty.
 * Fills and returns the caller's buffer. */
const char *tess__data_id_text(const struct tess_dataset *dataset, const struct tess_split *split,
                               char text[TESS__DATA_ID_BYTES]);

#define TESS__DATA_BYTES 80

/* "data hashes: training 0123456789abcdef, validation none": the fingerprints of both splits. */
const char *tess__data_text(const struct tess_dataset *dataset, char text[TESS__DATA_BYTES]);

/* A rate of rows as text: "17.3 k". Fills and returns the caller's buffer. */
const char *tess__words_rate(const struct tess__words *words, double rows_per_s,
                             char text[TESS__TEXT_BYTES]);

/* The quality on a split, beside its loss: "accuracy 91.20 %"; of text "perplexity 5.31",
 * the number of tokens among which the model is as unsure as if all were equally likely. */
const char *tess__words_quality(const struct tess__words *words, double loss, double accuracy,
                                char text[TESS__TEXT_BYTES]);

#endif
