/*
 * A command of the program: its option table, its help, and what runs it. engine/cli/command.c has
 * the list of commands; it prints the help and reads the options, from the environment, the
 * configuration file and the command line, before a command runs.
 */
#ifndef TESSERA_TEXT_COMMAND_H
#define TESSERA_TEXT_COMMAND_H

#include "base/options.h"

#define TESS__ARGS_MAX 512
#define TESS__SKIP_MAX 24
#define TESS__LIST_MAX TESS_INTS_MAX

/* Words of a command line that go to a configuration. All texts are borrowed. */
struct tess__args {
    int count;
    char *word[TESS__ARGS_MAX];
    const struct tess_option *own; /* the command's options, which were taken out; or NULL */
    int skip_count;
    const char *skip[TESS__SKIP_MAX]; /* strategies whose options do not apply */
};

enum tess_status tess__args_init(struct tess__args *args, int argc, char **argv);
/* Add a word at the end, such as "--name=value". */
enum tess_status tess__args_add(struct tess__args *args, const char *word);

/* A list "a,b,c" cut in place at its commas. TESS_ERR_USAGE for an empty item or too many. */
enum tess_status tess__list_split(const char *option, char *text, const char *item[TESS__LIST_MAX],
                                  int *count_out);

enum tess__reads {
    TESS__READS_OWN,      /* the command has its own options and words only */
    TESS__READS_SERIES,   /* its own are taken out of the words; the rest is a configuration's */
    TESS__READS_TRAINING, /* the command reads its options together with the configuration */
};

/* What a command is called with. */
struct tess__call {
    struct tess_options *options; /* the command's own */
    void *values;                 /* [options_size] of its table */
    struct tess__args args;       /* SERIES: what is left; TRAINING: all words */
    int word_count;               /* OWN: words that are no options */
    const char *word[TESS__ARGS_MAX];
};

struct tess__command {
    const char *name;                /* words joined by a space */
    const char *summary;             /* one line of tessera --help */
    const char *usage;               /* what stands above the options in its own help */
    void (*print_more)(void);        /* OPTIONAL: printed behind `usage` */
    const char *first;               /* OPTIONAL: options of its short help beside its own, in
                                        their order, between spaces */
    const struct tess_option *table; /* OPTIONAL: none */
    size_t options_size;             /* of the struct that the table fills */
    enum tess__reads reads;
    int words_max; /* OWN */
    /* OPTIONAL, OWN: add tables of parts beside `table`, and free what that needed. */
    enum tess_status (*declare)(struct tess_options *options, void *values);
    void (*release)(void *values);
    /* OPTIONAL, OWN: take words out before the options are read. */
    enum tess_status (*prepare)(struct tess__args *args, void *values);
    int (*run)(struct tess__call *call); /* returns the exit status */
};

extern const struct tess__command tess__command_train, tess__command_generate, tess__command_score,
    tess__command_sweep, tess__command_diff, tess__command_compare, tess__command_scaling,
    tess__command_tune_batch, tess__command_report, tess__command_top, tess__command_topo,
    tess__command_bench_comm, tess__command_bench_gpu, tess__command_bench_kernels,
    tess__command_bench_step, tess__command_checkpoint, tess__command_status, tess__command_plan,
    tess__command_accuracy, tess__command_data_prepare;

/* The program: runs argv's command, returns the exit status (0, 1 run, 2 usage, 130). */
int tess__main(int argc, char **argv);

#endif
