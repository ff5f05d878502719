/* Products of strategies in series of runs. */
#include "study/product.h"

#include "config/config.h"
#include "config/registry.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

bool tess__product_has(const char *product, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = product; *at; at += *at == '+') {
        if (strncmp(at, word, length) == 0 && (at[length] == '+' || !at[length]))
            return true;
        at += strcspn(at, "+");
    }
    return false;
}

static bool product_any_has(const char *const *product_list, int count, const char *word)
{
    for (int i = 0; i < count; i++)
        if (tess__product_has(product_list[i], word))
            return true;
    return false;
}

/* Which axes the product's strategies take; one rank alone takes none. */
static void product_axes(const char *product, bool axis_out[TESS_AXIS_COUNT])
{
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &count);
    for (int i = 0; i < count; i++) {
        const struct tess_strategy_ops *ops = NULL;
        if (tess__product_has(product, name[i]) && strcmp(name[i], "single") != 0 &&
            tess_registry_get_strategy(name[i], &ops) == TESS_OK)
            axis_out[ops->axis] = true;
    }
}

/* Does "data=2,stage=4" name only axes that the product has? The core interprets it. */
static bool product_mesh_fits(const char *mesh, const bool axis[TESS_AXIS_COUNT])
{
    static const char *const name[TESS_AXIS_COUNT] = {"data=", "tensor=", "stage="};
    for (int a = 0; a < TESS_AXIS_COUNT; a++)
        if (!axis[a] && strstr(mesh, name[a]))
            return false;
    return true;
}

enum tess_status tess__product_words(const struct tess__args *args, const char *product,
                                     const char *const *product_list, int count,
                                     struct tess__args *words_out)
{
    bool axis[TESS_AXIS_COUNT] = {false};
    int strategies = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &strategies);
    char text[256];
    *words_out = *args;
    for (int i = 0; i < strategies; i++)
        if (!tess__product_has(product, name[i]) && product_any_has(product_list, count, name[i]) &&
            words_out->skip_count < TESS__SKIP_MAX)
            words_out->skip[words_out->skip_count++] = name[i];
    product_axes(product, axis);
    if (tess_config_peek(words_out->count, words_out->word, "mesh", text, sizeof(text)) &&
        !product_mesh_fits(text, axis))
        TESS_TRY(tess__args_add(words_out, "--mesh="));
    if (tess_config_peek(words_out->count, words_out->word, "tensor.ranks", text, sizeof(text)) &&
        !axis[TESS_AXIS_TENSOR])
        TESS_TRY(tess__args_add(words_out, "--tensor.ranks=0"));
    return TESS_OK;
}
