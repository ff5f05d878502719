/* See gguf.h. Here: tensors and the file; its keys are gguf_keys.c's. */
#include "state/gguf.h"

#include "base/file.h"
#include "base/half.h"
#include "state/gguf_keys.h"
#include "tessera/check.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GGUF_ALIGN 32
#define GGUF_BLOCK 32 /* elements of a block of Q8_0, which takes two bytes more */

/* ---- names ----------------------------------------------------------------------------------- */

/* Behind the number of a layer, and by themselves; without ".weight" and ".bias". */
static const struct {
    const char *from, *to;
} gguf_names[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"wte", "token_embd"},
    {"wpe", "position_embd"},
    {"ln_f", "output_norm"},
};

/* "model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight". False: it is none of these. */
static bool gguf_name(const char *name, char to[96])
{
    static const char *const layers[] = {"model.layers.", "h."};
    const char *rest = name;
    long layer = -1;
    for (size_t i = 0; i < 2 && layer < 0; i++)
        if (strncmp(name, layers[i], strlen(layers[i])) == 0) {
            char *end;
            layer = strtol(name + strlen(layers[i]), &end, 10);
            rest = *end == '.' ? end + 1 : end;
        }
    const char *kind = strrchr(rest, '.');
    for (size_t i = 0; kind != NULL && i < sizeof(gguf_names) / sizeof(*gguf_names); i++)
        if (strlen(gguf_names[i].from) == (size_t)(kind - rest) &&
            strncmp(gguf_names[i].from, rest, (size_t)(kind - rest)) == 0) {
            if (layer >= 0)
                snprintf(to, 96, "blk.%ld.%s%s", layer, gguf_names[i].to, kind);
            else
                snprintf(to, 96, "%s%s", gguf_names[i].to, kind);
            return true;
        }
    return false;
}

/* ---- tensors --------------------------------------------------------------------------------- */

struct gguf_tensor {
    const struct tess_export_tensor *from; /* NULL: `factors` */
    char name[96];
    enum tess_gguf_type type;
    bool turned;        /* [in, out] becomes [out, in] */
    int64_t heads;      /* > 0: of each head's rows, the halves are interleaved */
    int64_t rows, line; /* as the file has them */
    uint64_t begin;
};

struct gguf {
    const struct tess_weights *weights;
    const struct tess_export *export;
    struct tess_export_list list;
    struct gguf_tensor *tensor; /* [count] */
    int64_t count;
    float *factors; /* [factor_count] of rotary angles; NULL: none */
    int64_t factor_count;
    struct gguf_keys keys;
};

static uint64_t gguf_row_bytes(enum tess_gguf_type type, int64_t line)
{
    return type == TESS_GGUF_F32    ? (uint64_t)line * 4
           : type == TESS_GGUF_Q8_0 ? (uint64_t)line / GGUF_BLOCK * (GGUF_BLOCK + 2)
                                    : (uint64_t)line * 2;
}

static uint64_t gguf_align(uint64_t bytes)
{
    return (bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
}

static enum tess_gguf_type gguf_type_of(const struct gguf_tensor *tensor, int32_t rank,
                                        enum tess_gguf_type wanted)
{
    if (rank < 2 || strcmp(tensor->name, "position_embd.weight") == 0)
        return TESS_GGUF_F32;
    return wanted == TESS_GGUF_Q8_0 && tensor->line % GGUF_BLOCK != 0 ? TESS_GGUF_F16 : wanted;
}

static enum tess_status gguf_plan(struct gguf *gguf, enum tess_gguf_type type)
{
    uint64_t at = 0;
    gguf->tensor = calloc((size_t)gguf->list.count + 1, sizeof(*gguf->tensor));
    if (gguf->tensor == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to export %d tensors", gguf->list.count);
    for (int32_t t = 0; t < gguf->list.count; t++) {
        const struct tess_export_tensor *from = &gguf->list.tensor[t];
        struct gguf_tensor *tensor = &gguf->tensor[gguf->count++];
        *tensor = (struct gguf_tensor){.from = from, .rows = from->rows, .line = from->line};
        if (from->rank > 2 || !gguf_name(from->name, tensor->name))
            TESS_FAIL(TESS_ERR_UNSUPPORTED, "GGUF has no name for tensor '%.80s'", from->name);
        if (from->rank == 1) {
            tensor->rows = 1;
            tensor->line = from->rows;
        }
        tensor->turned = gguf->export->gpt2 && strncmp(from->name, "h.", 2) == 0 && from->rank == 2;
        if (tensor->turned) {
            tensor->rows = from->line;
            tensor->line = from->rows;
        }
        const bool q = strstr(tensor->name, ".attn_q.") != NULL;
        const bool k = strstr(tensor->name, ".attn_k.") != NULL;
        if (gguf->keys.pairs && from->rank == 2 && (q || k))
            tensor->heads = q ? gguf->keys.heads : gguf->keys.kv_heads;
        if (tensor->heads > 0 && tensor->rows % (2 * tensor->heads) != 0)
            TESS_FAIL(TESS_ERR_DATA, "tensor '%.80s' has %lld rows for %lld heads", from->name,
                      (long long)tensor->rows, (long long)tensor->heads);
        tensor->type = gguf_type_of(tensor, from->rank, type);
        tensor->begin = at;
        at += gguf_align((uint64_t)tensor->rows * gguf_row_bytes(tensor->type, tensor->line));
    }
    if (gguf->factors != NULL) {
        gguf->tensor[gguf->count++] = (struct gguf_tensor){
            .name = "rope_freqs.weight", .rows = 1, .line = gguf->factor_count, .begin = at};
    }
    return TESS_OK;
}

static void gguf_put_tensor(struct gguf_keys *keys, const struct gguf_tensor *tensor)
{
    const bool matrix = tensor->from != NULL && tensor->from->rank == 2;
    tess__gguf_string(keys, tensor->name);
    tess__gguf_u32(keys, matrix ? 2 : 1);
    tess__gguf_u64(keys, (uint64_t)tensor->line);
    if (matrix)
        tess__gguf_u64(keys, (uint64_t)tensor->rows);
    tess__gguf_u32(keys, (uint32_t)tensor->type);
    tess__gguf_u64(keys, tensor->begin);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Quantise x [32 blocks] to Q8_0, [34 blocks] bytes: scale = greatest magnitude / 127. */
static void gguf_q8_0(const float *x, int64_t blocks, uint8_t *q)
{
    for (int64_t b = 0; b < blocks; b++, x += GGUF_BLOCK, q += GGUF_BLOCK + 2) {
        float most = 0;
        for (int i = 0; i < GGUF_BLOCK; i++)
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        const float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
        const uint16_t half = tess__f16_of_f32(scale);
        memcpy(q, &half, sizeof(half));
        for (int i = 0; i < GGUF_BLOCK; i++)
            q[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
    }
}

static void gguf_round(enum tess_gguf_type type, const float *x, int64_t line, uint8_t *to)
{
    if (type == TESS_GGUF_F32) {
        memcpy(to, x, (size_t)line * sizeof(*x));
    } else if (type == TESS_GGUF_Q8_0) {
        gguf_q8_0(x, line / GGUF_BLOCK, to);
    } else {
        for (int64_t i = 0; i < line; i++) {
            const uint16_t low =
                type == TESS_GGUF_F16 ? tess__f16_of_f32(x[i]) : tess__bf16_of_f32(x[i]);
            memcpy(to + 2 * i, &low, sizeof(low));
        }
    }
}

/* The row of the run's tensor that row r of the file is: j and t of [head, j, t] from [head, t, j].
 */
static int64_t gguf_row(const struct gguf_tensor *tensor, int64_t r)
{
    if (tensor->heads == 0)
        return r;
    const int64_t size = tensor->rows / tensor->heads, within = r % size;
    return r - within + within % 2 * (size / 2) + within / 2;
}

static enum tess_status gguf_fill(struct gguf *gguf, const struct gguf_tensor *tensor, float *whole,
                                  int64_t r, float *row)
{
    const struct tess_export_tensor *from = tensor->from;
    if (from == NULL) {
        memcpy(row, gguf->factors, (size_t)tensor->line * sizeof(*row));
        return TESS_OK;
    }
    for (int64_t i = 0; tensor->turned && i < tensor->line; i++)
        row[i] = whole[i * tensor->rows + r];
    if (tensor->turned)
        return TESS_OK;
    const bool vector = from->rank == 1;
    return tess_export_rows(gguf->weights, gguf->export, &gguf->list, from,
                            vector ? 0 : gguf_row(tensor, r), vector ? from->rows : 1, row);
}

static enum tess_status gguf_put_values(struct gguf *gguf, const struct gguf_tensor *tensor, int fd,
                                        int *error)
{
    static const uint8_t none[GGUF_ALIGN];
    const size_t bytes = gguf_row_bytes(tensor->type, tensor->line);
    const size_t all = tensor->turned ? (size_t)(tensor->rows * tensor->line) : 0;
    float *row = malloc((size_t)tensor->line * sizeof(*row));
    float *whole = malloc((all + 1) * sizeof(*whole));
    uint8_t *low = malloc(bytes + 1);
    enum tess_status status = TESS_OK;
    if (row == NULL || whole == NULL || low == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to export '%s'", tensor->name);
    if (status == TESS_OK && tensor->turned)
        status = tess_export_rows(gguf->weights, gguf->export, &gguf->list, tensor->from, 0,
                                  tensor->from->rows, whole);
    for (int64_t r = 0; status == TESS_OK && *error == 0 && r < tensor->rows; r++) {
        status = gguf_fill(gguf, tensor, whole, r, row);
        gguf_round(tensor->type, row, tensor->line, low);
        if (status == TESS_OK)
            *error = tess_file_append(fd, low, bytes);
    }
    const uint64_t used = (uint64_t)tensor->rows * bytes;
    if (status == TESS_OK && *error == 0)
        *error = tess_file_append(fd, none, gguf_align(used) - used);
    free(row);
    free(whole);
    free(low);
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

static enum tess_status gguf_put(struct gguf *gguf, const char *path)
{
    struct gguf_keys head = {.text = NULL};
    struct tess_file_writer writer;
    tess__gguf_bytes(&head, "GGUF", 4);
    tess__gguf_u32(&head, 3);
    tess__gguf_u64(&head, (uint64_t)gguf->count);
    tess__gguf_u64(&head, gguf->keys.count);
    tess__gguf_bytes(&head, gguf->keys.text, gguf->keys.bytes);
    for (int64_t t = 0; t < gguf->count; t++)
        gguf_put_tensor(&head, &gguf->tensor[t]);
    while (head.bytes % GGUF_ALIGN != 0 && !head.failed)
        tess__gguf_bytes(&head, "", 1);
    if (head.failed || gguf->keys.failed) {
        tess__gguf_keys_fini(&head);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the header of %s", path);
    }
    enum tess_status status = tess_file_create(path, &writer);
    if (status == TESS_OK) {
        int error = tess_file_append(writer.fd, head.text, head.bytes);
        for (int64_t t = 0; t < gguf->count && status == TESS_OK; t++)
            status = gguf_put_values(gguf, &gguf->tensor[t], writer.fd, &error);
        TESS_KEEP(status, tess_file_commit(&writer, status != TESS_OK ? ECANCELED : error));
    }
    tess__gguf_keys_fini(&head);
    return status;
}

enum tess_status tess_gguf_write(const char *path, const struct tess_weights *weights,
                                 const struct tess_export *export, enum tess_gguf_type type,
                                 const json_t *config, const char *tokenizer)
{
    struct gguf gguf = {.weights = weights, .export = export};
    enum tess_status status = tess_export_list(weights, export, &gguf.list);
    if (status == TESS_OK)
        status = tess__gguf_keys(config, tokenizer, (uint32_t)type, &gguf.keys);
    if (status == TESS_OK)
        status = tess__gguf_factors(config, &gguf.factors, &gguf.factor_count);
    if (status == TESS_OK)
        status = gguf_plan(&gguf, type);
    if (status == TESS_OK)
        status = gguf_put(&gguf, path);
    tess_export_list_fini(&gguf.list);
    tess__gguf_keys_fini(&gguf.keys);
    free(gguf.tensor);
    free(gguf.factors);
    return status;
}
