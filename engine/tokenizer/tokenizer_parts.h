/* What the files of the tokenizer share: its tables, and the steps from a text to its tokens. */
#ifndef TESSERA_TOKENIZER_TOKENIZER_PARTS_H
#define TESSERA_TOKENIZER_TOKENIZER_PARTS_H

#include "base/array.h"
#include "tessera/check.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_text.h"

#include <jansson.h>
#include <stdbool.h>

/* Far above every vocabulary, far below what would make a machine swap for a wrong digit. */
#define TOKENIZER_IDS_MAX 16000000

static inline enum tess_status tess__ids_append(struct tess__ids *ids, uint32_t id)
{
    uint32_t *more = tess__array_grow(ids->id, ids->count, sizeof(id));
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu tokens", ids->count);
    ids->id = more;
    ids->id[ids->count++] = id;
    return TESS_OK;
}

/* ---- tokenizer_bpe.c: words to tokens -------------------------------------------------------- */

struct bpe_token {
    uint32_t first, count; /* bytes of it in `text`; count 0: no token has this number */
};

struct bpe_pair {
    uint64_t key; /* left << 32 | right; UINT64_MAX: empty */
    uint32_t rank, id;
};

struct bpe_slot;
struct bpe_symbol;
struct bpe_merge;

struct bpe {
    bool ignore_merges; /* a word that is a token as a whole is that token */
    struct tokenizer_buffer text;
    struct bpe_token *token; /* [token_count] */
    int32_t token_count;
    uint32_t *word; /* [word_mask + 1]: id + 1 by the hash of the bytes; 0: empty */
    uint32_t word_mask;
    struct bpe_pair *pair; /* [pair_mask + 1] */
    uint32_t pair_mask;
    uint32_t byte_token[256];
    struct bpe_slot *cache; /* words met before */
    struct bpe_symbol *symbol;
    struct bpe_merge *heap;
    size_t room; /* symbols; three times as many merges */
};

/* Room for tokens 0 .. token_count - 1 and `merge_count` merges. */
enum tess_status tess__bpe_init(struct bpe *bpe, int32_t token_count, size_t merge_count);
void tess__bpe_fini(struct bpe *bpe);
/* `word`: merges and words can make it; false: an added token. TESS_ERR_DATA: the number has a
 * token already. */
enum tess_status tess__bpe_add_token(struct bpe *bpe, uint32_t id, const char *bytes, size_t count,
                                     bool word);
int64_t tess__bpe_find(const struct bpe *bpe, const char *bytes, size_t count); /* -1: none */
void tess__bpe_add_merge(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank,
                         uint32_t id);
/* All tokens are there: the bytes' tokens. Returns a byte of UTF-8 that has none, or -1. */
int tess__bpe_seal(struct bpe *bpe);
enum tess_status tess__bpe_word(struct bpe *bpe, const char *bytes, size_t count,
                                struct tess__ids *ids);

/* ---- tokenizer_split.c: text to words -------------------------------------------------------- */

struct split; /* one regular expression, compiled */

/* A list of steps, each of which cuts the pieces of the one before; starts zeroed. */
struct splits {
    struct split *step;
    int count;
};

/* The "pre_tokenizer" of a tokenizer.json. `file` is for messages. */
enum tess_status tess__splits_read(struct splits *splits, const json_t *object, const char *file);
void tess__splits_fini(struct splits *splits);
/* Cut a valid UTF-8 text into words, and encode each. */
enum tess_status tess__splits_encode(const struct splits *splits, int step, struct bpe *bpe,
                                     const char *text, size_t bytes, struct tess__ids *ids);

/* ---- tokenizer_added.c: tokens that are found before all others ------------------------------ */

struct added_token {
    char *text; /* owned */
    size_t bytes;
    uint32_t id;
    bool left, right; /* takes white space before or behind it */
    bool normalized;  /* looked for in the normalised text */
};

struct added_set {
    struct added_token **token; /* by their first two bytes, then the longest first; borrowed */
    int32_t count;
    uint8_t begins[8192]; /* a bit for each two bytes that a token may begin with */
};

struct added {
    struct added_token *token; /* [count] */
    int32_t count;
    struct added_set raw, normalized;
};

enum tess_status tess__added_read(struct added *added, const json_t *array, const char *file);
/* `token` and `count` are filled in: the sets. */
enum tess_status tess__added_seal(struct added *added);
void tess__added_fini(struct added *added);
/*
 * The next token of the set at or after byte `at`: its bytes are [*first_out, *end_out). NULL:
 * none.
 */
const struct added_token *tess__added_next(const struct added_set *set, const char *text,
                                           size_t bytes, size_t at, size_t *first_out,
                                           size_t *end_out);

/* ---- tokenizer_keys.c ------------------------------------------------------------------------ */

/* Absent, null, false, 0 or empty. */
bool tess__key_is_off(const json_t *value);

/*
 * TESS_ERR_UNSUPPORTED for a key of the object that is not in `known` (NULL at the end), whose
 * meaning is not known then: it may change numbers. One that is off is let pass. `where`: the
 * object, for the message.
 */
enum tess_status tess__keys_check(const json_t *object, const char *const *known, const char *where,
                                  const char *file);

/* ---- tokenizer_sentence.c: SentencePiece -----------------------------------------------------
 */

struct tess__sentence;

/* Fill a zeroed tokenizer from the bytes of a tokenizer.model; its `file` is set. */
enum tess_status tess__sentence_read(struct tess__tokenizer *tokenizer, const char *bytes,
                                     size_t count);
int32_t tess__sentence_find(const struct tess__tokenizer *tokenizer, const char *token);
/* Append the pieces of valid UTF-8. `begins`: no text is before it. */
enum tess_status tess__sentence_append(struct tess__tokenizer *tokenizer, const char *text,
                                       size_t bytes, bool begins, struct tess__ids *ids);
/* The same; control pieces that are written out in it are those pieces, and begin a text anew. */
enum tess_status tess__sentence_append_chat(struct tess__tokenizer *tokenizer, const char *text,
                                            size_t bytes, bool begins, struct tess__ids *ids);

struct tess__tokenizer {
    char file[4096];
    uint64_t id;
    int32_t end;                     /* -1: unknown */
    struct tess__sentence *sentence; /* NULL: byte-level BPE */
    bool compose;
    struct bpe bpe; /* of SentencePiece: the bytes of tokens alone */
    struct splits splits;
    struct added added;
    struct tokenizer_buffer repaired, composed;
};

#endif
