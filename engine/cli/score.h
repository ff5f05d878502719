/* tessera score: its options, and the text that is scored (score_text.c). */
#ifndef TESSERA_CLI_SCORE_H
#define TESSERA_CLI_SCORE_H

#include "cli/generate.h"

enum { SCORE_JSON, SCORE_TABLE, SCORE_SUM };

struct score_options {
    struct tess__source_options source;
    const char *text, *text_tokens, *key;
    int64_t limit;
    bool apart;
    int32_t output; /* SCORE_JSON ... */
};

/* Starts zeroed but for the options; tokens.token and end are freed by the owner. */
struct score {
    struct score_options options;
    struct tess__source source;
    struct tess__tokens tokens;
    int64_t *end; /* [document_count]: the token after each document's last one */
    int64_t document_count;
    bool documents;          /* the text says where they end; else it is one */
    int64_t document, begin; /* the one that is scored, its first token */
    double sum;
    int64_t count;
    double took_s;
};

/* The tokens of --text or --text-tokens and the ends of documents, of which one has two tokens. */
enum tess_status tess__score_read(struct score *score, const char *run);

#endif
