/*
 * What the tests of the option set share: two tables with every type, a folder for files, and a
 * shorthand for loading. Files are named relative to that folder, so messages are the same
 * everywhere.
 */
#ifndef TESSERA_TESTS_OPTIONS_FIXTURE_H
#define TESSERA_TESTS_OPTIONS_FIXTURE_H

#include "base/options.h"

#include <stddef.h>

struct fixture_run {
    bool evaluate;
    int64_t ranks;
    double rate;
    const char *data;
    int32_t precision;
    struct tess_ints layers;
    int64_t any;
};

struct fixture_part {
    int64_t bucket_mib;
    bool overlap;
};

extern const struct tess_option fixture_run_table[];
extern const struct tess_option fixture_part_table[];

/* An open set with both tables, the part's under "part", and the names of "other" allowed. */
struct fixture {
    struct tess_options *options;
    struct fixture_run run;
    struct fixture_part part;
};

/* A fresh temporary folder, made the working directory; removed by fixture_folder_close. */
int fixture_folder_open(void **state);
int fixture_folder_close(void **state);

void fixture_open(struct fixture *fixture);
void fixture_close(struct fixture *fixture);

/* Write `count` bytes, or a string, to `path`. */
void fixture_write(const char *path, const void *bytes, size_t count);
void fixture_write_text(const char *path, const char *text);

/* Write `text` to "t.yaml" and load it into a fresh fixture, which stays open. */
enum tess_status fixture_load_yaml(struct fixture *fixture, const char *text);

/* Split `words` at spaces ('~' stands for a space in a word) and load them into a fresh fixture. */
enum tess_status fixture_load_words(struct fixture *fixture, const char *words);

#endif
