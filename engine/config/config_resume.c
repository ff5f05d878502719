/*
 * A checkpoint has the options that decide on the bits of its run (config_bits.h), and a run that
 * continues from it takes them from there.
 */
#include "config/config_resume.h"

#include "base/options_set.h"
#include "config/config_bits.h"
#include "config/config_save.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool resume_is_free(const struct tess_config *config, const char *name)
{
    const enum tess_option_bits bits = tess_config_option_bits(config, name);
    return bits == TESS_BITS_FREE || bits == TESS_BITS_PLACE;
}

/* The layout is in the file too, for a run that continues as it was, and may be another one. */
static const char *const resume_layout[] = {"strategy", "ranks", "mesh", "accumulate"};

static bool resume_is_layout(const char *name)
{
    for (size_t i = 0; i < sizeof(resume_layout) / sizeof(*resume_layout); i++)
        if (strcmp(name, resume_layout[i]) == 0)
            return true;
    return false;
}

/* ---- saving ---------------------------------------------------------------------------------- */

struct resume_text {
    const struct tess_config *config;
    FILE *stream;
};

static void resume_print(void *context, const char *name, const char *value, const char *origin,
                         const struct tess_option *option)
{
    const struct resume_text *text = context;
    (void)origin, (void)option;
    /* A layout that was not given follows from what was: its default is not what the run had. */
    if (resume_is_layout(name) ? !tess_options_is_set(text->config->options, name)
                               : resume_is_free(text->config, name))
        return;
    fprintf(text->stream, "%s: \"", name);
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            fputc('\\', text->stream);
        fputc(*c, text->stream);
    }
    fputs("\"\n", text->stream);
}

char *tess_config_bits(const struct tess_config *config)
{
    char *bytes = NULL;
    size_t count = 0;
    struct resume_text text = {config, open_memstream(&bytes, &count)};
    if (text.stream == NULL)
        return NULL;
    tess_options_visit(config->options, resume_print, &text);
    const bool failed = ferror(text.stream) != 0;
    if (fclose(text.stream) == 0 && !failed)
        return bytes;
    free(bytes);
    return NULL;
}

/* ---- continuing ------------------------------------------------------------------------------ */

/* The newest checkpoint of the copies in memory, if it is newer; -1: there is none. */
static int64_t resume_newest_copy(const char *copies, int64_t newest)
{
    int64_t *step, found = -1;
    int32_t count;
    if (copies[0] == '\0' || tess_checkpoint_list(copies, &step, &count) != TESS_OK)
        return -1;
    if (count > 0 && step[count - 1] > newest)
        found = step[count - 1];
    free(step);
    return found;
}

enum tess_status tess__resume_find(const char *run, const char *redundancy,
                                   char folder[TESS_CHECKPOINT_PATH])
{
    int64_t *step, every;
    int32_t count;
    const char *copies = "";
    if (run == NULL || run[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE, "--resume continues the run of a folder: give it with --run DIR");
    if (redundancy != NULL)
        TESS_TRY(tess__config_copies(redundancy, &every, &copies));
    TESS_TRY(tess_checkpoint_list(run, &step, &count));
    const int64_t copy = resume_newest_copy(copies, count > 0 ? step[count - 1] : -1);
    if (count == 0 && copy < 0) {
        free(step);
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "%s has no complete checkpoint to continue from: leave --resume out to begin "
                  "(with --overwrite where the folder has a run)",
                  run);
    }
    const int64_t newest = copy >= 0 ? copy : step[count - 1];
    free(step);
    TESS_TRY(tess_checkpoint_path(copy >= 0 ? copies : run, newest, false, folder));
    return tess_checkpoint_check_options(folder);
}

/* May this option have another value than the checkpoint's? Data may have moved: what is in them is
 * compared by itself. A run may become longer where nothing before its end depends on its length.
 */
static bool resume_may_differ(const struct tess_config *config, const char *name)
{
    const bool length = strcmp(name, "steps") == 0 || strcmp(name, "epochs") == 0;
    return strcmp(name, "data") == 0 || strcmp(name, "data.validation-files") == 0 ||
           strcmp(name, "data.mix") == 0 ||
           (length && (config->optim.schedule == TESS_SCHEDULE_CONSTANT ||
                       config->optim.schedule == TESS_SCHEDULE_STEP));
}

enum tess_status tess__resume_load(struct tess_config *config, bool as_it_was)
{
    bool former[sizeof(resume_layout) / sizeof(*resume_layout)];
    const size_t count = sizeof(former) / sizeof(*former);
    for (size_t i = 0; i < count; i++) {
        struct tess__option_entry *entry = tess__options_find(config->options, resume_layout[i]);
        former[i] = entry->skips_file;
        entry->skips_file = former[i] || (!as_it_was && i > 0);
    }
    const enum tess_status status = tess_options_load_yaml(config->options, config->resume_options);
    for (size_t i = 0; i < count; i++)
        tess__options_find(config->options, resume_layout[i])->skips_file = former[i];
    return status;
}

enum tess_status tess__resume_check(struct tess_config *config)
{
    const struct tess__yaml_file *file = tess__yaml_get(config->options, config->resume_options);
    if (file == NULL)
        return tess__options_no_memory();
    if (config->run.overwrite)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--resume continues the run in %s, which --overwrite removes: "
                  "give one of the two",
                  config->run.run);
    for (int i = 0; i < file->item_count; i++) {
        const struct tess__yaml_item *item = &file->item[i];
        const char *now = tess_options_text(config->options, item->name);
        if (now == NULL || item->text == NULL || strcmp(now, item->text) == 0 ||
            resume_is_layout(item->name) || resume_may_differ(config, item->name))
            continue;
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--%s is '%s', and '%s' in %s: a resumed run keeps the options that decide on its "
            "numbers; leave it out, or begin another run with --init %s",
            item->name, now, item->text, config->checkpoint, config->checkpoint);
    }
    return TESS_OK;
}

enum tess_status tess__resume_resolve(struct tess_config *config)
{
    struct tess_checkpoint_state state;
    TESS_TRY(tess_checkpoint_read_state(config->checkpoint, &state));
    config->run.batch_size = state.batch_size;
    config->run.grid = state.grid;
    config->optim.learning_rate = state.learning_rate;
    config->optim.warmup_start = state.warmup_start;
    tess_checkpoint_state_fini(&state);
    return TESS_OK;
}
