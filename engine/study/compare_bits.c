/*
 * What the hashes of a comparison show: runs are grouped by all that decides about their bits, and
 * within a group they must be equal. Runs on several tensor ranks add in another order and have
 * bits of their own: their loss is held against that of the same training on whole layers.
 */
#include "study/compare.h"

#include "base/options.h"
#include "config/config_bits.h"
#include "text/screen.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A share of the loss that is no bound any more. */
#define BITS_BOUND_MAX 0.1

struct bits_key {
    const struct tess_config *config;
    FILE *file;
    bool in_turn; /* sums are not the one tree: who carries them decides too */
};

/* Figures are added by bits_key_of, as they were resolved. */
static void bits_key_option(void *context, const char *name, const char *value, const char *origin,
                            const struct tess_option *option)
{
    struct bits_key *key = context;
    (void)origin;
    (void)option;
    const enum tess_option_bits bits = tess_config_option_bits(key->config, name);
    if (bits == TESS_BITS_DECIDES || bits == TESS_BITS_PLACE ||
        (key->in_turn && strncmp(name, "comm", strlen("comm")) == 0))
        fprintf(key->file, "%s=%s\n", name, value);
}

/* Everything that decides about a run's bits but for the tensor axis, as text to be freed; NULL
 * without memory. */
static char *bits_key_of(const struct tess__run *run)
{
    const struct tess_config *config = run->config;
    const struct tess_plan *plan = tess_engine_plan_of(run->planned);
    char *text = NULL;
    size_t bytes = 0;
    const bool in_turn = plan->reduce_dtype != TESS_F32 || plan->fold_in_turn;
    struct bits_key key = {config, open_memstream(&text, &bytes), in_turn};
    if (!key.file)
        return NULL;
    tess_options_visit(config->options, bits_key_option, &key);
    fprintf(key.file, "%d %" PRId64 " %a %a\n", plan->grid, config->run.batch_size,
            config->optim.learning_rate, config->optim.warmup_start);
    /* Gradients that are rounded on their way, and sums that are not the tree, depend on the
     * layout. */
    if (in_turn)
        fprintf(key.file, "%s %d %d\n", config->run.strategy, run->rank_count, plan->accumulate);
    if (fclose(key.file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* How a run adds up layers that are cut along the tensor axis: in how many parts, 1 for whole
 * layers, and whether in one tree for every number of ranks. */
struct bits_parts {
    int64_t parts;
    bool canonical, sequence;
};

static struct bits_parts bits_parts_of(const struct tess__run *run)
{
    const struct tess_tensor_options *tensor = &run->config->tensor;
    const int32_t ranks = run->config->mesh.count[TESS_AXIS_TENSOR];
    if (tensor->canonical > 1)
        return (struct bits_parts){tensor->canonical, true, false};
    return (struct bits_parts){ranks, false, ranks > 1 && tensor->sequence};
}

struct bits {
    const struct tess__comparison *comparison;
    char *key[TESS__LIST_MAX];
    struct bits_parts parts[TESS__LIST_MAX];
};

static const struct tess__run *bits_run(const struct bits *bits, int i)
{
    return &bits->comparison->run[i].trial.run;
}

static const char *bits_name(const struct bits *bits, int i)
{
    return bits->comparison->run[i].variant->name;
}

static bool bits_same(const struct bits *bits, int a, int b)
{
    return strcmp(bits->key[a], bits->key[b]) == 0 &&
           bits->parts[a].parts == bits->parts[b].parts &&
           bits->parts[a].canonical == bits->parts[b].canonical &&
           bits->parts[a].sequence == bits->parts[b].sequence;
}

/* "f32, grid 8", ", 2 tensor ranks" */
static void bits_print_group(const struct bits *bits, int first)
{
    const struct tess__run *run = bits_run(bits, first);
    const struct bits_parts *parts = &bits->parts[first];
    printf("hashes: %s, grid %d", tess_dtype_name(tess_run_dtype(&run->config->run)),
           tess_engine_plan_of(run->planned)->grid);
    if (parts->canonical)
        printf(", %" PRId64 " canonical parts", parts->parts);
    else if (parts->parts > 1)
        printf(", %" PRId64 " tensor ranks%s", parts->parts,
               parts->sequence ? ", sequence parallel" : "");
}

/* One line about the runs that promise the bits of run `first`. */
static void bits_print_hashes(const struct bits *bits, int first)
{
    const struct tess__comparison *comparison = bits->comparison;
    int members = 0, equal = 0;
    for (int i = first; i < comparison->count; i++)
        if (bits_same(bits, first, i)) {
            members++;
            equal += bits_run(bits, i)->final.hash == bits_run(bits, first)->final.hash;
        }
    if (members == comparison->count && equal == members) {
        printf("%shashes: all %d equal: the same bits under every strategy%s\n",
               tess__screen_colour(stdout, TESS__COLOUR_GOOD), members,
               tess__screen_colour(stdout, TESS__COLOUR_PLAIN));
        return;
    }
    bits_print_group(bits, first);
    if (members == 1) {
        printf(": %s is alone with its options\n", bits_name(bits, first));
        return;
    }
    if (equal == members)
        printf(": %sall %d equal%s:", tess__screen_colour(stdout, TESS__COLOUR_GOOD), members,
               tess__screen_colour(stdout, TESS__COLOUR_PLAIN));
    else
        printf(": %sNOT all equal: %d of %d%s are those of %s:",
               tess__screen_colour(stdout, TESS__COLOUR_BAD), equal, members,
               tess__screen_colour(stdout, TESS__COLOUR_PLAIN), bits_name(bits, first));
    for (int i = first; i < comparison->count; i++)
        if (bits_same(bits, first, i))
            printf("%s %s", i > first ? "," : "", bits_name(bits, i));
    putchar('\n');
}

/* ---- losses of layers in parts --------------------------------------------------------------- */

/*
 * How far, as a share, the loss of a training in parts may lie from that on whole layers. Sums in
 * other groups, rounded to the run's type before they are added, make loss and gradients of one
 * step differ by up to e = 20 u sqrt(parts) of their size, with u half of the type's last digit
 * (tests/models/test_gpt_parts.c derives it). To first order every update then differs by e of
 * itself, and what it changes the loss by, which is not more than the loss, differs by as much:
 * after k updates k e, and e once more for the last step's own sums.
 */
static double bits_loss_bound(const struct tess__run *run, int64_t parts)
{
    const enum tess_dtype dtype = tess_run_dtype(&run->config->run);
    const double u = dtype == TESS_F32 ? 0x1p-24 : dtype == TESS_BF16 ? 0x1p-8 : 0x1p-11;
    return 20 * u * sqrt((double)parts) * (double)(run->final.steps + 1);
}

/* The same training on whole layers; -1: none is here. */
static int bits_find_whole(const struct bits *bits, int i)
{
    for (int whole = 0; whole < bits->comparison->count; whole++)
        if (bits->parts[whole].parts == 1 && strcmp(bits->key[whole], bits->key[i]) == 0)
            return whole;
    return -1;
}

/* One line about all runs in parts of which there is one on whole layers, too. */
static void bits_print_losses(const struct bits *bits)
{
    double bound = INFINITY, most = 0;
    int shown = 0;
    for (int i = 0; i < bits->comparison->count; i++) {
        const int whole = bits->parts[i].parts > 1 ? bits_find_whole(bits, i) : -1;
        const struct tess__run *run = bits_run(bits, i);
        if (whole < 0)
            continue;
        const double loss = bits_run(bits, whole)->final.loss;
        const double apart = fabs(run->final.loss - loss) / fabs(loss);
        most = fmax(most, apart);
        bound = fmin(bound, bits_loss_bound(run, bits->parts[i].parts));
        printf("%s %s %.1e", shown++ == 0 ? "losses: apart from those of whole layers:" : ",",
               bits_name(bits, i), apart);
    }
    if (shown == 0)
        return;
    if (bound > BITS_BOUND_MAX)
        printf("\n        rounding to 16 bits, over so many steps, sets no bound\n");
    else if (most <= bound)
        printf("\n        within what rounding may bring to first order, %.1e\n", bound);
    else
        printf("\n        BEYOND the %.1e that rounding may bring to first order: a lower "
               "--learning-rate magnifies\n        it less; under --tensor.canonical hashes are "
               "equal\n",
               bound);
}

void tess__comparison_print_bits(const struct tess__comparison *comparison)
{
    struct bits bits = {.comparison = comparison};
    bool complete = true;
    if (comparison->count == 1)
        return;
    for (int i = 0; i < comparison->count; i++) {
        bits.key[i] = bits_key_of(bits_run(&bits, i));
        bits.parts[i] = bits_parts_of(bits_run(&bits, i));
        complete = complete && bits.key[i];
    }
    for (int i = 0; complete && i < comparison->count; i++) {
        int first = 0;
        while (!bits_same(&bits, first, i))
            first++;
        if (first == i)
            bits_print_hashes(&bits, i);
    }
    if (complete)
        bits_print_losses(&bits);
    for (int i = 0; i < comparison->count; i++)
        free(bits.key[i]);
}
