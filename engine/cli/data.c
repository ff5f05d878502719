/* tessera data prepare: from text to tokens. */
#include "prepare/prepare.h"
#include "tessera/check.h"
#include "text/command.h"

#define DATA_FIELD(member) offsetof(struct tess__prepare_options, member)

static const struct tess_option data_table[] = {
    TESS_ROW_STRING(
        "tokenizer", DATA_FIELD(tokenizer), "",
        "a tokenizer.json, a tokenizer.model of SentencePiece, or a Hugging Face folder that "
        "has one"),
    TESS_ROW_STRING("text", DATA_FIELD(text), "",
                    "files joined by commas, or patterns: *.jsonl (a document is a line) or any "
                    "text (a document is a file), plain or compressed by gzip or zstd"),
    TESS_ROW_STRING("out", DATA_FIELD(out), "", "folder for the tokens"),
    TESS_ROW_STRING("key", DATA_FIELD(key), "",
                    "of JSON Lines: the key that has the text (empty: text), or with --chat the "
                    "messages (empty: messages)"),
    TESS_ROW_STRING("chat", DATA_FIELD(chat), "none",
                    "lines are chats, of which the assistant's answers are learnt: by the template "
                    "chatml or llama3; auto: by the tokenizer's tokens"),
    TESS_ROW_STRING("end", DATA_FIELD(end), "auto",
                    "token behind every document; none, or auto: the tokenizer's own, and none "
                    "behind a chat"),
    TESS_ROW_INT("processes", DATA_FIELD(processes), "0", 0, 1024, "0: one for each core"),
    {"overwrite", TESS_OPTION_BOOL, DATA_FIELD(overwrite), "off", 0, 0, NULL,
     "replace shards of other texts or options in --out"},
    TESS_ROW_END,
};

static const char data_usage[] =
    "usage: tessera data prepare --tokenizer FOLDER|FILE --text FILES --out DIR\n"
    "                            [--option value ...]\n"
    "\n"
    "Turn text into the tokens of a byte-level BPE tokenizer (GPT-2, Llama 3, Qwen and others\n"
    "like them) or of SentencePiece, in shards that train --data DIR reads. If it was\n"
    "interrupted, the same command continues. The result does not depend on the number of\n"
    "processes.\n"
    "\n"
    "examples\n"
    "  tessera data prepare --tokenizer Qwen3-0.6B --text 'corpus/*.jsonl.zst' --out tokens\n"
    "  tessera data prepare --tokenizer Qwen3-0.6B --text chats.jsonl --chat auto --out chats\n"
    "  tessera train configs/models/gpt-21m.yaml --data tokens --steps 1000\n";

static enum tess_status data_check(const struct tess__prepare_options *options)
{
    if (!options->tokenizer[0])
        TESS_FAIL(TESS_ERR_USAGE, "data prepare needs a tokenizer: --tokenizer FOLDER|FILE");
    if (!options->text[0])
        TESS_FAIL(TESS_ERR_USAGE, "data prepare needs text: --text 'corpus/*.jsonl'");
    if (!options->out[0])
        TESS_FAIL(TESS_ERR_USAGE, "data prepare needs a folder to write to: --out DIR");
    return TESS_OK;
}

static int data_command(struct tess__call *call)
{
    enum tess_status status = data_check(call->values);
    if (status == TESS_OK)
        status = tess__prepare(call->values);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_data_prepare = {
    .name = "data prepare",
    .summary = "text to tokens, by the tokenizer of a Hugging Face folder",
    .usage = data_usage,
    .table = data_table,
    .options_size = sizeof(struct tess__prepare_options),
    .run = data_command,
};
