/* Checkpoints as options: how often, and what they may take. */
#include "config/config_save.h"

#include "base/options_set.h"
#include "base/size.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "off", "100", "90s", "10min", "2h". Both 0: off. */
static enum tess_status save_parse_every(const char *text, int64_t *steps_out, double *seconds_out)
{
    static const struct {
        const char *unit;
        double seconds;
    } of[] = {{"s", 1}, {"min", 60}, {"h", 3600}};
    char *end;
    *steps_out = 0;
    *seconds_out = 0;
    if (strcmp(text, "off") == 0)
        return TESS_OK;
    const double number = strtod(text, &end);
    if (end != text && *end == '\0' && number >= 1 && number <= 1e12 &&
        number == (double)(int64_t)number) {
        *steps_out = (int64_t)number;
        return TESS_OK;
    }
    for (size_t i = 0; end != text && i < sizeof(of) / sizeof(of[0]); i++)
        if (strcmp(end, of[i].unit) == 0 && number > 0 && number <= 1e9) {
            *seconds_out = number * of[i].seconds;
            return TESS_OK;
        }
    TESS_FAIL(TESS_ERR_USAGE,
              "--save-every %s: expected a number of steps (100), a time (90s, 10min, 2h) or off",
              text);
}

/* `zero`: what "0" stands for; any other text is a size. */
static enum tess_status save_parse_size(const char *option, const char *text, double zero,
                                        double *bytes_out)
{
    if (strcmp(text, "0") != 0)
        return tess_size_parse(option, text, bytes_out);
    *bytes_out = zero;
    return TESS_OK;
}

/* Scales of the latest calls lie in the kernels' operations of each rank, and depend on which rows
 * it computed in a call: no other layout can have them. */
static enum tess_status save_check_fp8(struct tess_config *config)
{
    struct tess_save_plan *save = &config->save;
    if (config->run.fp8 != TESS_FP8_HISTORY)
        return TESS_OK;
    if (config->run.resume || config->checkpoint[0] != '\0' ||
        (tess_options_is_set(config->options, "save-every") &&
         (save->every_steps > 0 || save->every_s > 0)))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--fp8 history keeps scales of earlier steps, which a checkpoint does not have: "
                  "%s needs --fp8 now, or leave it out",
                  config->run.resume ? "--resume" : "--save-every");
    save->every_steps = 0;
    save->every_s = 0;
    return TESS_OK;
}

enum tess_status tess__config_copies(const char *text, int64_t *steps_out, const char **folder_out)
{
    static const char kind[] = "memory";
    char *end = NULL;
    *steps_out = 0;
    *folder_out = "";
    if (strcmp(text, "off") == 0)
        return TESS_OK;
    if (strncmp(text, kind, strlen(kind)) == 0) {
        const char *rest = text + strlen(kind);
        const char *folder = getenv(TESS_CONFIG_COPIES);
        const bool given = rest[0] == ':' && rest[1] >= '0' && rest[1] <= '9';
        *steps_out = given ? strtoll(rest + 1, &end, 10) : 1;
        rest = given ? end : rest;
        *folder_out = folder != NULL ? folder : "";
        if (*steps_out >= 1 && *steps_out <= 1000000000 && rest[0] == '\0')
            return TESS_OK;
    }
    TESS_FAIL(TESS_ERR_USAGE,
              "--redundancy %s: expected off, memory (a copy after every step) or memory:K (after "
              "every K steps)",
              text);
}

enum tess_status tess__config_save(struct tess_config *config)
{
    const struct tess_run_options *run = &config->run;
    struct tess_save_plan *save = &config->save;
    TESS_TRY(save_parse_every(run->save_every, &save->every_steps, &save->every_s));
    TESS_TRY(save_parse_size("save-bandwidth", run->save_bandwidth, 0, &save->bytes_per_s));
    TESS_TRY(save_check_fp8(config));
    TESS_TRY(tess__config_copies(run->redundancy, &save->copy_steps, &save->copies));
    save->memory_bytes = HUGE_VAL;
    if (strcmp(run->save_memory, "all") == 0)
        return TESS_OK;
    return save_parse_size("save-memory", run->save_memory, 0, &save->memory_bytes);
}

bool tess_config_saves(const struct tess_config *config)
{
    return config->run.run[0] != '\0' && (config->save.every_steps > 0 || config->save.every_s > 0);
}

enum tess_status tess_config_check_unsaved(const struct tess_config *config)
{
    static const char *const of[] = {"save-every",     "keep",          "save-memory",
                                     "save-bandwidth", "save-required", "save-weights",
                                     "overwrite"};
    if (config->run.run[0] != '\0')
        return TESS_OK;
    for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
        const struct tess__option_entry *entry = tess__options_find(config->options, of[i]);
        if (entry->source > TESS__SOURCE_ENVIRONMENT && strcmp(entry->text, "off") != 0)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--%s %s is for a run with a folder, and without one nothing is saved: give "
                      "--run DIR, or leave it out",
                      entry->name, entry->text);
    }
    return TESS_OK;
}
