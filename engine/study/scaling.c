/* tessera scaling: step time by ranks, and a prediction for other links. Here: the command line. */
#include "study/scaling.h"
#include "base/cgroup.h"
#include "study/trial.h"
#include "tessera/check.h"
#include "text/command.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LINKS_DEFAULT   "nvlink,pcie,infiniband,infiniband-hdr,ethernet-100g,ethernet-10g"
#define LINKS_BYTES_MAX 16384

_Static_assert(TESS_RANKS_MAX <= 1 << (TESS__SCALING_POINTS_MAX - 2),
               "there is a point for each power of two");

static const struct tess_option scaling_option_table[] = {
    {"max-ranks", TESS_OPTION_INT, offsetof(struct tess__scaling_options, max_ranks), "0", 0,
     TESS_RANKS_MAX, NULL,
     "measure 1, 2, 4, ... and this many ranks; 0: the largest power of two within the cores"},
    {"steps", TESS_OPTION_INT, offsetof(struct tess__scaling_options, steps), "30", 1, 1e9, NULL,
     "optimizer steps of every run"},
    {"repeats", TESS_OPTION_INT, offsetof(struct tess__scaling_options, repeats), "3", 1, 99, NULL,
     "runs of every rank count; the median counts"},
    {"weak", TESS_OPTION_BOOL, offsetof(struct tess__scaling_options, weak), "off", 0, 0, NULL,
     "weak scaling: batch-size is that of one rank, and the batch grows with the ranks; off: "
     "strong scaling, the batch is divided"},
    {"links", TESS_OPTION_STRING, offsetof(struct tess__scaling_options, links), LINKS_DEFAULT, 0,
     0, NULL, "links to predict for: names, NAME:LATENCY:BANDWIDTH, or a file of these"},
    {"to", TESS_OPTION_INT, offsetof(struct tess__scaling_options, to), "1024", 2, TESS_RANKS_MAX,
     NULL, "ranks up to which to predict"},
    {"json", TESS_OPTION_STRING, offsetof(struct tess__scaling_options, json), "", 0, 0, NULL,
     "file for all figures: {\"scaling\": {...}}; empty writes none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const char scaling_usage[] =
    "usage: tessera scaling [CONFIG] [--strategy ddp] [--max-ranks N] [--steps K] [--weak]\n"
    "                       [--repeats R] [--links LIST|FILE] [--to N] [--json FILE]\n\n"
    "Measure the time of a training step on 1, 2, 4, ... N ranks, split into computing, waiting\n"
    "for data, and communication that is exposed or hidden behind computing; speed-up is\n"
    "T(1)/T(N) and efficiency its share of N. Amdahl's p, the share of the work that can be\n"
    "divided, is fitted by least squares to T(N)/T(1) = (1-p) + p/N; outside 0..1 the law does\n"
    "not hold here, and the figure is shown as it is.\n\n"
    "Then predict ddp and fsdp on up to --to ranks of this speed over other links, from the\n"
    "measured one-rank step and the bytes that the strategy's own formula gives for the model:\n"
    "a ring of N ranks takes 2(N-1) latency + 2 (N-1)/N M/bandwidth for an all-reduce of M\n"
    "bytes, half of that for an all-gather or a reduce-scatter. It hides behind backward (fsdp:\n"
    "forward and backward) but for the first gather and the last reduction. Assumed: the time\n"
    "to compute a share of the batch is that share of the time for all of it.\n";

static void scaling_print_links(void)
{
    int count = 0;
    const struct tess_link *preset = tess_link_presets(&count);
    printf("links, latency and bandwidth of a step around the ring\n");
    for (int i = 0; i < count; i++)
        printf("  %-15s %5.1f us %7.2f GB/s\n", preset[i].name, 1e6 * preset[i].latency_s,
               preset[i].bandwidth / 1e9);
    printf("\nexamples\n"
           "  tessera scaling configs/labs/fashion_cnn.yaml --max-ranks 4\n"
           "  tessera scaling configs/labs/fashion_mlp.yaml --weak --json scaling.json\n"
           "  tessera scaling configs/labs/fashion_mlp.yaml --batch-size 8192 --links "
           "mylink:5us:25GB/s,nvlink\n\n");
}

/* The list itself, or that of the file it names. */
static enum tess_status scaling_read_links(struct tess__scaling *scaling, const char *list)
{
    static char text[LINKS_BYTES_MAX];
    struct stat about;
    if (stat(list, &about) != 0 || !S_ISREG(about.st_mode))
        return tess_link_parse("--links", list, scaling->link, &scaling->link_count);
    FILE *file = fopen(list, "r");
    if (!file)
        TESS_FAIL(TESS_ERR_IO, "--links: %s cannot be read", list);
    size_t bytes = fread(text, 1, sizeof(text), file);
    if (ferror(file) || bytes == sizeof(text) || memchr(text, '\0', bytes)) {
        fclose(file);
        TESS_FAIL(TESS_ERR_USAGE, "--links: %s is not a short text of links, one a line", list);
    }
    fclose(file);
    text[bytes] = '\0';
    return tess_link_parse(list, text, scaling->link, &scaling->link_count);
}

/* A strategy is measured on one rank, too, so that only the number of ranks changes. */
static enum tess_status scaling_read_strategy(struct tess__scaling *scaling)
{
    const char *given =
        tess_options_peek_arguments("strategy", scaling->args.count, scaling->args.word);
    if (given && strcmp(given, "single") == 0)
        TESS_FAIL(TESS_ERR_USAGE, "strategy single has one rank and does not scale: use --strategy "
                                  "ddp, or another that spreads the work");
    if (given)
        snprintf(scaling->strategy, sizeof(scaling->strategy), "%s", given);
    else if (!tess_config_peek(scaling->args.count, scaling->args.word, "strategy",
                               scaling->strategy, sizeof(scaling->strategy)) ||
             strcmp(scaling->strategy, "single") == 0)
        snprintf(scaling->strategy, sizeof(scaling->strategy), "ddp");
    return TESS_OK;
}

/* Sizes of the mesh's axes fix the number of ranks, which is what varies here. */
static enum tess_status scaling_refuse_mesh(struct tess__scaling *scaling)
{
    static const char *const name[] = {"mesh", "tensor.ranks", "pp.stages"};
    char text[128];
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        if (tess_config_peek(scaling->args.count, scaling->args.word, name[i], text,
                             sizeof(text)) &&
            text[0] && strcmp(text, "0") != 0)
            TESS_FAIL(
                TESS_ERR_USAGE,
                "--%s %s fixes ranks along an axis, and scaling varies their number: leave it "
                "out, and the ranks are spread over the axes that --strategy %s has",
                name[i], text, scaling->strategy);
    return TESS_OK;
}

static enum tess_status scaling_read_args(struct tess__scaling *scaling,
                                          const struct tess__call *call)
{
    struct tess__args *args = &scaling->args;
    struct tess__scaling_options *asked = &scaling->asked;
    scaling->cores = tess_cores();
    *args = call->args;
    *asked = *(const struct tess__scaling_options *)call->values;
    if (tess_options_peek_arguments("ranks", args->count, args->word))
        TESS_FAIL(TESS_ERR_USAGE, "scaling measures 1, 2, 4, ... ranks: --max-ranks limits them");
    TESS_TRY(scaling_read_strategy(scaling));
    TESS_TRY(scaling_refuse_mesh(scaling));
    TESS_TRY(tess__trial_check(args, asked->json));
    if (asked->max_ranks == 0)
        for (asked->max_ranks = 1;
             2 * asked->max_ranks <= scaling->cores && asked->max_ranks < TESS_RANKS_MAX;)
            asked->max_ranks *= 2;
    return scaling_read_links(scaling, asked->links);
}

static int scaling_command(struct tess__call *call)
{
    static struct tess__scaling scaling; /* too large for a small stack */
    memset(&scaling, 0, sizeof(scaling));
    enum tess_status status = scaling_read_args(&scaling, call);
    if (status == TESS_OK)
        status = tess__scaling_measure(&scaling);
    if (status == TESS_OK)
        status = tess__scaling_predict(&scaling);
    if (status == TESS_OK) {
        tess__scaling_print(&scaling);
        status = tess__scaling_write(&scaling);
    }
    tess_dataset_close(scaling.dataset);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_scaling = {
    .name = "scaling",
    .summary = "step time by ranks, Amdahl's p, and the curve over other links",
    .usage = scaling_usage,
    .table = scaling_option_table,
    .options_size = sizeof(struct tess__scaling_options),
    .print_more = scaling_print_links,
    .reads = TESS__READS_SERIES,
    .run = scaling_command,
};
