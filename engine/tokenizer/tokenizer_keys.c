/* Keys of a tokenizer.json that are not known: they may change tokens. */
#include "tokenizer/tokenizer_parts.h"

#include <string.h>

bool tess__key_is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

enum tess_status tess__keys_check(const json_t *object, const char *const *known, const char *where,
                                  const char *file)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        int i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known[i] == NULL && !tess__key_is_off(value))
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "%s: the key %s%s%.60s is not known here, and may change tokens", file, where,
                      where[0] ? "." : "", key);
    }
    return TESS_OK;
}
