/* What would make a run fit (fit.h). */
#include "run/fit.h"

#include "base/log_sink.h"
#include "config/registry.h"
#include "job/memory_room.h"
#include "tessera/check.h"
#include "tessera/registry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIT_CHANGES 4
#define FIT_WORD    96

/* An option that is changed, and the memory with it. */
struct fit_change {
    char word[FIT_WORD]; /* "--recompute=full" */
    bool known, fits;
    struct tess__memory_room room;
};

/* Plan the run with these changes, which may be refused. */
static bool fit_plan(const struct tess__fit *fit, const struct fit_change *change, int count,
                     struct tess__memory_room *room_out)
{
    struct tess__args args = *fit->args;
    struct tess_config *config = NULL;
    struct tess__run *run = calloc(1, sizeof(*run));
    const struct tess__log_sink *before = tess__log_redirect(&tess__log_silence);
    enum tess_status status = run != NULL ? TESS_OK : TESS_ERR_MEMORY;
    bool known = false;
    for (int i = 0; i < count; i++)
        TESS_KEEP(status, tess__args_add(&args, change[i].word));
    if (status == TESS_OK)
        status = tess_config_open(args.count, args.word, fit->table, 1, &config);
    if (status == TESS_OK) {
        config->saves = fit->config->saves;
        status = tess__run_open(run, config, fit->dataset);
        known = status == TESS_OK && tess__memory_room_of(run, room_out);
        tess__run_close(run);
    }
    tess_config_close(config);
    tess__log_redirect(before);
    free(run);
    return known;
}

/* Plan with a change, and keep it where it needs less than the best of its kind so far. */
static void fit_try(const struct tess__fit *fit, const char *word, struct fit_change *best)
{
    struct fit_change change = {.known = true};
    snprintf(change.word, sizeof(change.word), "%s", word);
    if (!fit_plan(fit, &change, 1, &change.room))
        return;
    change.fits = change.room.need <= change.room.have;
    if (!best->known || change.room.need < best->room.need)
        *best = change;
}

/* The strategy of the data axis that needs least, in place of the one that is given. */
static void fit_try_strategies(const struct tess__fit *fit, struct fit_change *best)
{
    const char *given = fit->config->run.strategy, *rest = strchr(given, '+');
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &count);
    for (int i = 0; i < count; i++) {
        const struct tess_strategy_ops *ops = NULL;
        char first[FIT_WORD], word[FIT_WORD];
        if (tess_registry_summary(TESS_REGISTRY_STRATEGY, name[i])[0] == '\0' ||
            tess_registry_get_strategy(name[i], &ops) != TESS_OK || ops->axis != TESS_AXIS_DATA)
            continue;
        snprintf(first, sizeof(first), "%.*s", (int)strcspn(given, "+"), given);
        if (strcmp(first, name[i]) == 0)
            continue;
        snprintf(word, sizeof(word), "--strategy=%s%s", name[i], rest != NULL ? rest : "");
        fit_try(fit, word, best);
    }
}

/* The fewest micro-batches that fit, or as many as there may be. */
static void fit_try_accumulate(const struct tess__fit *fit, struct fit_change *best)
{
    const int64_t rows = fit->config->run.batch_size / fit->config->mesh.count[TESS_AXIS_DATA];
    for (int64_t count = 2 * fit->config->run.accumulate; count <= rows && !best->fits;
         count *= 2) {
        char word[FIT_WORD];
        snprintf(word, sizeof(word), "--accumulate=%lld", (long long)count);
        fit_try(fit, word, best);
    }
}

static void fit_print(FILE *out, const struct fit_change *change, int count,
                      const struct tess__memory_room *room)
{
    const double gib = 1024.0 * 1024 * 1024;
    for (int i = 0; i < count; i++) {
        const int name = (int)strcspn(change[i].word, "=");
        fprintf(out, "%s%.*s %s", i > 0 ? " " : "", name, change[i].word,
                change[i].word + name + 1);
    }
    fprintf(out, " would need %.1f GiB", room->need / gib);
    if (room->ranks > 1)
        fprintf(out, " (%.1f GiB a rank)", room->fullest / gib);
}

/* Those that are enough alone; else the fewest together, in their order. */
static void fit_write(const struct tess__fit *fit, const struct fit_change *change, int count,
                      FILE *out)
{
    struct tess__memory_room room;
    int shown = 0;
    for (int i = 0; i < count; i++) {
        if (!change[i].fits)
            continue;
        fputs(shown++ > 0 ? ", or " : "", out);
        fit_print(out, &change[i], 1, &change[i].room);
    }
    for (int many = 1; many <= count && shown == 0; many++) {
        if (!fit_plan(fit, change, many, &room) || (room.need > room.have && many < count))
            continue;
        fit_print(out, change, many, &room);
        if (room.need <= room.have)
            return;
        fputs(", which is too much as well: ", out);
    }
    if (shown == 0)
        fputs("use a smaller batch or model, or more hosts", out);
}

void tess__fit_advise(const struct tess__fit *fit, char *text, size_t bytes)
{
    const struct tess_run_options *run = &fit->config->run;
    struct fit_change change[FIT_CHANGES] = {{.known = false}};
    struct tess__memory_room given;
    int count = 0;
    FILE *out = fmemopen(text, bytes, "w");
    if (out == NULL || !fit_plan(fit, NULL, 0, &given)) {
        if (out != NULL)
            fclose(out);
        return;
    }
    fit_try_strategies(fit, &change[0]);
    if (strcmp(run->recompute, "none") == 0)
        fit_try(fit, "--recompute=full", &change[1]);
    fit_try_accumulate(fit, &change[2]);
    if (run->precision == 0)
        fit_try(fit, "--precision=bf16", &change[3]);
    /* What saves nothing is left out. */
    for (int i = 0; i < FIT_CHANGES; i++)
        if (change[i].known && change[i].room.need < given.need)
            change[count++] = change[i];
    fit_write(fit, change, count, out);
    fclose(out);
}
