/*
 * Byte pair encoding (Sennrich et al., "Neural machine translation of rare words with subword
 * units", 2016, over bytes as GPT-2 does): a word's bytes are merged pair by pair, of all
 * neighbours the pair with the lowest rank, of equal ones the leftmost. Words that were met before
 * come from a table.
 */
#include "base/hash.h"
#include "tessera/check.h"
#include "tokenizer/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* The table of words: one cache line each, as many as a core's second level holds. */
#define BPE_SLOTS      32768
#define BPE_SLOT_BYTES 26
#define BPE_SLOT_IDS   8

struct bpe_slot {
    uint32_t hash;
    uint8_t bytes, count; /* count 0: empty */
    char text[BPE_SLOT_BYTES];
    uint32_t id[BPE_SLOT_IDS];
};

_Static_assert(sizeof(struct bpe_slot) == 64, "a slot is a cache line");

/* Up to this many symbols the least rank is searched for; a heap is faster for more. */
#define BPE_SHORT 64

struct bpe_symbol {
    uint32_t id;
    int64_t before, after; /* neighbours; -1: none */
    bool alive;
};

struct bpe_merge {
    uint32_t rank, id, left, right;
    int64_t at;
};

/* ---- tables ---------------------------------------------------------------------------------- */

static uint32_t bpe_mask(size_t count)
{
    uint32_t slots = 16;
    while (slots < 2 * count)
        slots *= 2;
    return slots - 1;
}

enum tess_status tess__bpe_init(struct bpe *bpe, int32_t token_count, size_t merge_count)
{
    bpe->token_count = token_count;
    bpe->word_mask = bpe_mask((size_t)token_count);
    bpe->pair_mask = bpe_mask(merge_count);
    bpe->token = calloc((size_t)token_count, sizeof(*bpe->token));
    bpe->word = calloc((size_t)bpe->word_mask + 1, sizeof(*bpe->word));
    bpe->pair = malloc(((size_t)bpe->pair_mask + 1) * sizeof(*bpe->pair));
    bpe->cache = aligned_alloc(sizeof(struct bpe_slot), BPE_SLOTS * sizeof(struct bpe_slot));
    if (!bpe->token || !bpe->word || !bpe->pair || !bpe->cache)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a tokenizer of %d tokens and %zu merges",
                  token_count, merge_count);
    memset(bpe->pair, 0xff, ((size_t)bpe->pair_mask + 1) * sizeof(*bpe->pair));
    memset(bpe->cache, 0, BPE_SLOTS * sizeof(struct bpe_slot));
    return TESS_OK;
}

void tess__bpe_fini(struct bpe *bpe)
{
    free(bpe->text.at);
    free(bpe->token);
    free(bpe->word);
    free(bpe->pair);
    free(bpe->cache);
    free(bpe->symbol);
    free(bpe->heap);
}

int64_t tess__bpe_find(const struct bpe *bpe, const char *bytes, size_t count)
{
    for (uint64_t at = tess_hash_bytes(bytes, count);; at++) {
        const uint32_t entry = bpe->word[at & bpe->word_mask];
        if (entry == 0)
            return -1;
        const struct bpe_token *token = &bpe->token[entry - 1];
        if (token->count == count && memcmp(bpe->text.at + token->first, bytes, count) == 0)
            return entry - 1;
    }
}

enum tess_status tess__bpe_add_token(struct bpe *bpe, uint32_t id, const char *bytes, size_t count,
                                     bool word)
{
    if (bpe->token[id].count > 0)
        TESS_FAIL(TESS_ERR_DATA, "two tokens have the number %u", id);
    if (bpe->text.count + count > UINT32_MAX)
        TESS_FAIL(TESS_ERR_DATA, "the tokens have more than 4 GiB of text");
    bpe->token[id] = (struct bpe_token){(uint32_t)bpe->text.count, (uint32_t)count};
    TESS_TRY(tess__tokenizer_append(&bpe->text, bytes, count));
    if (!word || tess__bpe_find(bpe, bytes, count) >= 0)
        return TESS_OK;
    uint64_t at = tess_hash_bytes(bytes, count);
    while (bpe->word[at & bpe->word_mask] != 0)
        at++;
    bpe->word[at & bpe->word_mask] = id + 1;
    return TESS_OK;
}

static uint64_t bpe_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* Where the pair is, or the empty place where it would be. */
static struct bpe_pair *bpe_pair_at(const struct bpe *bpe, uint64_t key)
{
    uint64_t at = (key * 0x9e3779b97f4a7c15) >> 32;
    while (bpe->pair[at & bpe->pair_mask].key != key &&
           bpe->pair[at & bpe->pair_mask].key != UINT64_MAX)
        at++;
    return &bpe->pair[at & bpe->pair_mask];
}

void tess__bpe_add_merge(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    *bpe_pair_at(bpe, bpe_key(left, right)) =
        (struct bpe_pair){.key = bpe_key(left, right), .rank = rank, .id = id};
}

int tess__bpe_seal(struct bpe *bpe)
{
    for (int byte = 0; byte < 256; byte++) {
        const char text = (char)byte;
        const int64_t id = tess__bpe_find(bpe, &text, 1);
        /* c0, c1 and f5 to ff are in no UTF-8. */
        if (id < 0 && byte != 0xc0 && byte != 0xc1 && byte < 0xf5)
            return byte;
        bpe->byte_token[byte] = id < 0 ? 0 : (uint32_t)id;
    }
    return -1;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* At most BPE_SHORT bytes; the tokens that are left are at the beginning of `id`. */
static size_t bpe_merge_short(const struct bpe *bpe, const uint8_t *byte, size_t count,
                              uint32_t id[BPE_SHORT])
{
    struct {
        uint32_t rank, id;
    } pair[BPE_SHORT]; /* of symbol i and the one after it */
    for (size_t i = 0; i < count; i++)
        id[i] = bpe->byte_token[byte[i]];
    for (size_t i = 0; i + 1 < count; i++) {
        const struct bpe_pair *found = bpe_pair_at(bpe, bpe_key(id[i], id[i + 1]));
        pair[i].rank = found->rank; /* of an empty place the greatest number */
        pair[i].id = found->id;
    }
    while (count > 1) {
        size_t least = 0;
        for (size_t i = 1; i + 1 < count; i++)
            least = pair[i].rank < pair[least].rank ? i : least;
        if (pair[least].rank == UINT32_MAX)
            break;
        id[least] = pair[least].id;
        count--;
        memmove(id + least + 1, id + least + 2, (count - least - 1) * sizeof(*id));
        memmove(pair + least, pair + least + 1, (count - least - 1) * sizeof(*pair));
        for (size_t i = least > 0 ? least - 1 : 0; i <= least && i + 1 < count; i++) {
            const struct bpe_pair *found = bpe_pair_at(bpe, bpe_key(id[i], id[i + 1]));
            pair[i].rank = found->rank;
            pair[i].id = found->id;
        }
    }
    return count;
}

static bool bpe_is_before(const struct bpe_merge *a, const struct bpe_merge *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void bpe_heap_push(struct bpe_merge *heap, size_t *count, struct bpe_merge merge)
{
    size_t at = (*count)++;
    while (at > 0 && bpe_is_before(&merge, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = merge;
}

static struct bpe_merge bpe_heap_pop(struct bpe_merge *heap, size_t *count)
{
    const struct bpe_merge first = heap[0], last = heap[--*count];
    size_t at = 0;
    for (size_t child = 1; child < *count; child = 2 * at + 1) {
        if (child + 1 < *count && bpe_is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!bpe_is_before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}

/* The merge of symbol `at` and the one after it, where there is one. */
static void bpe_offer(const struct bpe *bpe, int64_t at, size_t *count)
{
    const struct bpe_symbol *left = &bpe->symbol[at];
    if (at < 0 || left->after < 0)
        return;
    const struct bpe_symbol *right = &bpe->symbol[left->after];
    const struct bpe_pair *pair = bpe_pair_at(bpe, bpe_key(left->id, right->id));
    if (pair->rank != UINT32_MAX)
        bpe_heap_push(bpe->heap, count,
                      (struct bpe_merge){pair->rank, pair->id, left->id, right->id, at});
}

static enum tess_status bpe_room(struct bpe *bpe, size_t count)
{
    if (count <= bpe->room)
        return TESS_OK;
    free(bpe->symbol);
    free(bpe->heap);
    bpe->symbol = malloc(count * sizeof(*bpe->symbol));
    bpe->heap = malloc(3 * count * sizeof(*bpe->heap));
    bpe->room = bpe->symbol && bpe->heap ? count : 0;
    if (bpe->room == 0)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a word of %zu bytes", count);
    return TESS_OK;
}

/* Symbols are a list, the merges that are possible a heap. Each merge removes a symbol and offers
 * at most two: no more than three merges are offered for a byte. */
static enum tess_status bpe_merge_long(struct bpe *bpe, const uint8_t *byte, size_t count,
                                       struct tess__ids *ids)
{
    size_t merges = 0;
    TESS_TRY(bpe_room(bpe, count));
    for (size_t i = 0; i < count; i++)
        bpe->symbol[i] = (struct bpe_symbol){.id = bpe->byte_token[byte[i]],
                                             .before = (int64_t)i - 1,
                                             .after = i + 1 < count ? (int64_t)i + 1 : -1,
                                             .alive = true};
    for (size_t i = 0; i + 1 < count; i++)
        bpe_offer(bpe, (int64_t)i, &merges);
    while (merges > 0) {
        const struct bpe_merge merge = bpe_heap_pop(bpe->heap, &merges);
        struct bpe_symbol *left = &bpe->symbol[merge.at];
        if (!left->alive || left->id != merge.left || left->after < 0 ||
            bpe->symbol[left->after].id != merge.right)
            continue; /* one of the two was merged meanwhile */
        struct bpe_symbol *right = &bpe->symbol[left->after];
        right->alive = false;
        left->id = merge.id;
        left->after = right->after;
        if (left->after >= 0)
            bpe->symbol[left->after].before = merge.at;
        bpe_offer(bpe, merge.at, &merges);
        if (left->before >= 0)
            bpe_offer(bpe, left->before, &merges);
    }
    for (int64_t i = 0; i >= 0; i = bpe->symbol[i].after)
        TESS_TRY(tess__ids_append(ids, bpe->symbol[i].id));
    return TESS_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

static uint32_t bpe_load32(const char *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

static uint64_t bpe_load64(const char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

/* Of 1 to BPE_SLOT_BYTES bytes, in few loads that may overlap. */
static uint32_t bpe_slot_hash(const char *bytes, size_t count)
{
    const uint64_t factor = 0x9e3779b97f4a7c15;
    uint64_t hash = count;
    if (count >= 8) {
        for (size_t at = 0; at + 8 < count; at += 8)
            hash = (hash ^ bpe_load64(bytes + at)) * factor, hash ^= hash >> 29;
        hash ^= bpe_load64(bytes + count - 8);
    } else if (count >= 4) {
        hash ^= bpe_load32(bytes) ^ (uint64_t)bpe_load32(bytes + count - 4) << 29;
    } else {
        hash ^= (uint64_t)(uint8_t)bytes[0] << 8 | (uint64_t)(uint8_t)bytes[count / 2] << 16 |
                (uint64_t)(uint8_t)bytes[count - 1] << 24;
    }
    hash *= factor;
    return (uint32_t)(hash >> 32);
}

static enum tess_status bpe_append(struct tess__ids *ids, const uint32_t *id, size_t count)
{
    for (size_t i = 0; i < count; i++)
        TESS_TRY(tess__ids_append(ids, id[i]));
    return TESS_OK;
}

/* A word that is not in the table. */
static enum tess_status bpe_encode(struct bpe *bpe, const char *bytes, size_t count,
                                   struct bpe_slot *slot, struct tess__ids *ids)
{
    uint32_t id[BPE_SHORT];
    size_t made = 1;
    const int64_t whole = bpe->ignore_merges ? tess__bpe_find(bpe, bytes, count) : -1;
    if (whole < 0 && count > BPE_SHORT)
        return bpe_merge_long(bpe, (const uint8_t *)bytes, count, ids);
    if (whole >= 0)
        id[0] = (uint32_t)whole;
    else
        made = bpe_merge_short(bpe, (const uint8_t *)bytes, count, id);
    if (slot != NULL && made <= BPE_SLOT_IDS) {
        slot->bytes = (uint8_t)count;
        slot->count = (uint8_t)made;
        memcpy(slot->text, bytes, count);
        memcpy(slot->id, id, made * sizeof(*id));
    } else if (slot != NULL) {
        slot->count = 0;
    }
    return bpe_append(ids, id, made);
}

enum tess_status tess__bpe_word(struct bpe *bpe, const char *bytes, size_t count,
                                struct tess__ids *ids)
{
    if (count > BPE_SLOT_BYTES)
        return bpe_encode(bpe, bytes, count, NULL, ids);
    const uint32_t hash = bpe_slot_hash(bytes, count);
    struct bpe_slot *slot = &bpe->cache[hash % BPE_SLOTS];
    if (slot->count > 0 && slot->hash == hash && slot->bytes == count &&
        memcmp(slot->text, bytes, count) == 0)
        return bpe_append(ids, slot->id, slot->count);
    slot->hash = hash;
    return bpe_encode(bpe, bytes, count, slot, ids);
}
