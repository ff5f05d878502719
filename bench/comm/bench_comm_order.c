/* Orders of ranks that tessera bench comm compares; see bench_comm.h. */
#include "bench/comm/bench_comm.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* "0,4,1,5": the place of every rank. What is wrong with it, or NULL. */
static const char *order_list(const char *text, int32_t ranks, int32_t *place_out)
{
    int32_t count = 0;
    for (int32_t r = 0; r < ranks; r++)
        place_out[r] = -1;
    for (;;) {
        char *end;
        const long rank = strtol(text, &end, 10);
        if (end == text || (*end != ',' && *end))
            return "expected natural, interleaved or all ranks like 0,2,1,3";
        if (rank < 0 || rank >= ranks)
            return "there is no such rank";
        if (place_out[rank] >= 0)
            return "a rank is in it twice";
        place_out[rank] = count++;
        if (!*end)
            return count == ranks ? NULL : "ranks are missing";
        text = end + 1;
    }
}

static enum tess_status order_read(struct bench *bench, int32_t *place)
{
    const char *text = bench->options.rank_orders;
    while (*text) {
        const size_t length = strcspn(text, ";");
        char *word = bench->rank_order[bench->rank_order_count];
        const char *wrong = "there are too many of them";
        if (bench->rank_order_count < BENCH_ORDERS_MAX && length < sizeof(bench->rank_order[0])) {
            memcpy(word, text, length);
            word[length] = '\0';
            bench->rank_order_count++;
            wrong = strcmp(word, "natural") == 0 || strcmp(word, "interleaved") == 0
                        ? NULL
                        : order_list(word, (int32_t)bench->options.ranks, place);
        }
        if (wrong)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--rank-orders '%.*s': %s; up to %d, separated by ';', of %lld ranks",
                      (int)length, text, wrong, BENCH_ORDERS_MAX, (long long)bench->options.ranks);
        text += length + (text[length] == ';');
    }
    if (bench->rank_order_count == 0)
        TESS_FAIL(TESS_ERR_USAGE, "--rank-orders is empty: give an order such as natural");
    return TESS_OK;
}

enum tess_status tess__bench_order_read(struct bench *bench)
{
    int32_t *place = calloc((size_t)bench->options.ranks, sizeof(*place));
    if (!place)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for an order of %lld ranks",
                  (long long)bench->options.ranks);
    const enum tess_status status = order_read(bench, place);
    free(place);
    return status;
}

/* Hosts in turn: the first rank of each, then the second of each. Of the ranks without a place, the
 * first of each host gets one in a turn; next: the turn of a host, by its number. */
static void order_interleave(const int32_t *host, int32_t ranks, int32_t *next, int32_t *place_out)
{
    memset(next, 0, (size_t)ranks * sizeof(*next));
    for (int32_t r = 0; r < ranks; r++)
        place_out[r] = -1;
    for (int32_t turn = 1, place = 0; place < ranks; turn++)
        for (int32_t r = 0; r < ranks; r++)
            if (place_out[r] < 0 && next[host[r]] < turn) {
                next[host[r]] = turn;
                place_out[r] = place++;
            }
}

void tess__bench_order_places(const struct bench *bench, int index, const int32_t *host,
                              int32_t *scratch, int32_t *place_out)
{
    const int32_t ranks = (int32_t)bench->options.ranks, half = (ranks + 1) / 2;
    const char *word = bench->rank_order[index];
    bool alone = true;
    for (int32_t r = 0; r < ranks; r++)
        alone = alone && host[r] == host[0];
    if (strcmp(word, "interleaved") == 0 && !alone)
        order_interleave(host, ranks, scratch, place_out);
    else if (strcmp(word, "interleaved") != 0 && strcmp(word, "natural") != 0)
        (void)order_list(word, ranks, place_out); /* it has been checked */
    else
        for (int32_t r = 0; r < ranks; r++)
            place_out[r] = strcmp(word, "natural") == 0 ? r : r < half ? 2 * r : 2 * (r - half) + 1;
}
