/* Orders of ranks that tessera bench comm compares; see bench_comm.h. */
#include "bench/comm/bench_comm.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* "0,4,1,5": which rank is in which place. What is wrong with it, or NULL. */
static const char *order_list(const char *text, int32_t ranks, int32_t *rank_out)
{
    bool seen[TESS_WORLD_RANKS_MAX] = {false};
    int32_t count = 0;
    for (;;) {
        char *end;
        const long rank = strtol(text, &end, 10);
        if (end == text || (*end != ',' && *end))
            return "expected natural, interleaved or all ranks like 0,2,1,3";
        if (rank < 0 || rank >= ranks)
            return "there is no such rank";
        if (seen[rank])
            return "a rank is in it twice";
        seen[rank] = true;
        rank_out[count++] = (int32_t)rank;
        if (!*end)
            return count == ranks ? NULL : "ranks are missing";
        text = end + 1;
    }
}

enum tess_status tess__bench_order_read(struct bench *bench)
{
    const char *text = bench->options.rank_orders;
    int32_t rank[TESS_WORLD_RANKS_MAX];
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
                        : order_list(word, (int32_t)bench->options.ranks, rank);
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

/* Hosts in turn: the first rank of each, then the second of each. */
static void order_interleave(const int32_t *host, int32_t ranks, int32_t *place_out)
{
    int32_t turn[TESS_WORLD_RANKS_MAX], place = 0;
    for (int32_t r = 0; r < ranks; r++) {
        turn[r] = 0;
        for (int32_t before = 0; before < r; before++)
            turn[r] += host[before] == host[r];
    }
    for (int32_t t = 0; place < ranks; t++)
        for (int32_t r = 0; r < ranks; r++)
            if (turn[r] == t)
                place_out[r] = place++;
}

void tess__bench_order_places(const struct bench *bench, int index, const int32_t *host,
                              int32_t *place_out)
{
    const int32_t ranks = (int32_t)bench->options.ranks;
    int32_t rank[TESS_WORLD_RANKS_MAX], half[TESS_WORLD_RANKS_MAX];
    bool alone = true;
    for (int32_t r = 0; r < ranks; r++) {
        place_out[r] = r;
        half[r] = r >= (ranks + 1) / 2;
        alone = alone && host[r] == host[0];
    }
    if (strcmp(bench->rank_order[index], "interleaved") == 0)
        order_interleave(alone ? half : host, ranks, place_out);
    else if (strcmp(bench->rank_order[index], "natural") != 0 &&
             !order_list(bench->rank_order[index], ranks, rank))
        for (int32_t p = 0; p < ranks; p++)
            place_out[rank[p]] = p;
}
