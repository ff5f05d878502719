/* tessera checkpoint: what a run has saved: list, verify, export, prune. */
#include "state/checkpoint.h"
#include "checkpoint_export.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct checkpoint_options {
    int64_t step, keep;
    struct tess__export_options export;
};

#define CHECKPOINT_FIELD(member) offsetof(struct checkpoint_options, member)

static const struct tess_option checkpoint_table[] = {
    TESS_ROW_INT("step", CHECKPOINT_FIELD(step), "-1", -1, 1e12,
                 "verify, export: the checkpoint after this step; -1: verify all, export the "
                 "newest"),
    TESS_ROW_INT("keep", CHECKPOINT_FIELD(keep), "1", 1, 1e6,
                 "prune: newest checkpoints that stay"),
    TESS_ROW_STRING("out", CHECKPOINT_FIELD(export.out), "", "export: folder for the weights"),
    TESS_ROW_STRING("file-size", CHECKPOINT_FIELD(export.file_size), "5GB",
                    "export: size of a file of weights at most, unless one tensor is larger"),
    TESS_ROW_CHOICE("format", CHECKPOINT_FIELD(export.format), "safetensors", "safetensors|gguf",
                    "export: a folder for transformers, or one file for llama.cpp in it"),
    TESS_ROW_CHOICE("dtype", CHECKPOINT_FIELD(export.dtype), "f32", "f32|bf16|f16|q8_0",
                    "export: type of the weights; q8_0, 8 bits with a scale for 32 of them, is of "
                    "gguf"),
    TESS_ROW_BOOL("adapters", CHECKPOINT_FIELD(export.adapters), "off",
                  "export: only the adapters of a run with --lora.rank, as PEFT reads them; off "
                  "adds them to the weights of their layers"),
    TESS_ROW_STRING("tokenizer", CHECKPOINT_FIELD(export.tokenizer), "",
                    "export: folder whose tokenizer is copied; empty: the one that the run began "
                    "with (--model, --init), where it is still there"),
    TESS_ROW_END,
};

static const char checkpoint_usage[] =
    "usage: tessera checkpoint list|verify|export|prune RUN [--option value ...]\n"
    "\n"
    "The checkpoints that a run (train --run RUN) has written.\n"
    "\n"
    "  list      step, size, time and layout of each\n"
    "  verify    read every byte of one or all, and compare it with what was saved\n"
    "  export    write the weights of one, without the optimizer, to a folder that Hugging Face's\n"
    "            loaders, --model and --init read: of model gpt with config.json and tokenizer, "
    "of\n"
    "            cnn and wrn in the order of PyTorch\n"
    "  prune     remove all but the newest\n"
    "\n"
    "examples\n"
    "  tessera checkpoint list out\n"
    "  tessera checkpoint verify out --step 100\n"
    "  tessera checkpoint export out --out weights\n";

struct checkpoint_call {
    const char *run;
    const struct checkpoint_options *options;
    int64_t *step; /* [count], increasing */
    int32_t count;
};

static enum tess_status checkpoint_list(const struct checkpoint_call *call)
{
    printf("%10s  %-19s  %-10s %s\n", "step", "time", "size", "written by");
    for (int32_t i = 0; i < call->count; i++) {
        char folder[TESS_CHECKPOINT_PATH], when[32] = "", text[TESS__TEXT_BYTES];
        struct tess_checkpoint_state state;
        struct stat about;
        struct tm local;
        uint64_t bytes;
        TESS_TRY(tess_checkpoint_path(call->run, call->step[i], false, folder));
        TESS_TRY(tess_checkpoint_read_state(folder, &state));
        TESS_TRY(tess_checkpoint_bytes(folder, &bytes));
        if (stat(folder, &about) == 0 && localtime_r(&about.st_mtime, &local) != NULL)
            strftime(when, sizeof(when), "%F %T", &local);
        printf("%10" PRId64 "  %-19s  %-10s %s\n", call->step[i], when,
               tess__text_bytes((double)bytes, text), state.layout);
        tess_checkpoint_state_fini(&state);
    }
    return TESS_OK;
}

static enum tess_status checkpoint_verify(const struct checkpoint_call *call)
{
    enum tess_status status = TESS_OK;
    for (int32_t i = 0; i < call->count; i++) {
        char folder[TESS_CHECKPOINT_PATH], text[TESS__TEXT_BYTES];
        uint64_t bytes;
        if (call->options->step >= 0 && call->step[i] != call->options->step)
            continue;
        TESS_TRY(tess_checkpoint_path(call->run, call->step[i], false, folder));
        const enum tess_status one = tess_checkpoint_verify(folder, &bytes);
        if (one == TESS_OK)
            printf("%s: %s, as it was saved\n", folder, tess__text_bytes((double)bytes, text));
        TESS_KEEP(status, one); /* the others are looked at all the same */
    }
    return status;
}

static enum tess_status checkpoint_export(const struct checkpoint_call *call)
{
    char folder[TESS_CHECKPOINT_PATH];
    const int64_t step =
        call->options->step >= 0 ? call->options->step : call->step[call->count - 1];
    TESS_TRY(tess_checkpoint_path(call->run, step, false, folder));
    TESS_TRY(tess__checkpoint_export(call->run, folder, &call->options->export));
    printf("weights after step %" PRId64 " in %s\n", step, call->options->export.out);
    return TESS_OK;
}

static enum tess_status checkpoint_prune(const struct checkpoint_call *call)
{
    for (int32_t i = 0; i < call->count - call->options->keep; i++) {
        TESS_TRY(tess_checkpoint_remove(call->run, call->step[i]));
        printf("removed the checkpoint after step %" PRId64 "\n", call->step[i]);
    }
    return TESS_OK;
}

static enum tess_status checkpoint_run(const struct tess__call *words, struct checkpoint_call *call)
{
    static const struct {
        const char *name;
        enum tess_status (*run)(const struct checkpoint_call *call);
    } of[] = {{"list", checkpoint_list},
              {"verify", checkpoint_verify},
              {"export", checkpoint_export},
              {"prune", checkpoint_prune}};
    const size_t count = sizeof(of) / sizeof(of[0]);
    size_t chosen = 0;
    if (words->word_count < 2)
        TESS_FAIL(TESS_ERR_USAGE, "checkpoint needs what to do and a run: tessera checkpoint "
                                  "list|verify|export|prune RUN");
    while (chosen < count && strcmp(words->word[0], of[chosen].name) != 0)
        chosen++;
    if (chosen == count)
        TESS_FAIL(TESS_ERR_USAGE, "checkpoint %s: expected list, verify, export or prune",
                  words->word[0]);
    call->run = words->word[1];
    if (access(call->run, F_OK) != 0)
        TESS_FAIL(TESS_ERR_NOT_FOUND, "there is no folder %s", call->run);
    TESS_TRY(tess_checkpoint_list(call->run, &call->step, &call->count));
    if (call->count == 0)
        TESS_FAIL(TESS_ERR_NOT_FOUND, "%s has no complete checkpoint", call->run);
    bool there = call->options->step < 0;
    for (int32_t i = 0; i < call->count; i++)
        there = there || call->step[i] == call->options->step;
    if (!there)
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "%s has no checkpoint after step %" PRId64 "; list shows them", call->run,
                  call->options->step);
    return of[chosen].run(call);
}

static int checkpoint_command(struct tess__call *words)
{
    struct checkpoint_call call = {.options = words->values};
    const enum tess_status status = checkpoint_run(words, &call);
    free(call.step);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_checkpoint = {
    .name = "checkpoint",
    .summary = "list, verify, export or prune what a run has saved",
    .usage = checkpoint_usage,
    .table = checkpoint_table,
    .options_size = sizeof(struct checkpoint_options),
    .words_max = 2,
    .run = checkpoint_command,
};
