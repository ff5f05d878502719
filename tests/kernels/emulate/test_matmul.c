/* Comparing arrays bit for bit: lengths with tails, and one bit changed at every place. */
#include "device.h"
#include "emulate/emulate.h"

#include "cuda/slots.h"

#include <string.h>

static uint32_t differ(size_t bytes, const void *a, const void *b, uint32_t before)
{
    uint32_t *flag = emulate_copy_of(&before, sizeof(before));
    assert_int_equal(tess__cuda_matmul_differ(NULL, bytes, a, b, flag), cudaSuccess);
    return *flag;
}

static void case_lengths(void **state)
{
    (void)state;
    static const size_t length[] = {0, 1, 15, 16, 17, 4096, 4099, 100000};
    struct draw draw = {1};
    for (size_t i = 0; i < sizeof(length) / sizeof(length[0]); i++) {
        unsigned char *a = emulate_array(length[i], 0);
        for (size_t k = 0; k < length[i]; k++)
            a[k] = (unsigned char)draw_word(&draw);
        unsigned char *b = emulate_copy_of(a, length[i]);
        assert_int_equal(differ(length[i], a, b, 0), 0);
        assert_int_equal(differ(length[i], a, b, 1), 1); /* kept, where one of several differed */
        for (int change = 0; change < 40 && length[i] > 0; change++) {
            const int64_t at = change < 2 ? (int64_t)(length[i] - 1) * change
                                          : draw_between(&draw, 0, (int64_t)length[i] - 1);
            const unsigned char bit = (unsigned char)(1u << (change % 8));
            b[at] ^= bit;
            assert_int_equal(differ(length[i], a, b, 0), 1);
            b[at] ^= bit;
        }
        emulate_free_all();
    }
}

static void case_unaligned(void **state)
{
    (void)state;
    uint32_t flag = 0;
    char *a = emulate_array(64, 0), *b = emulate_array(64, 4);
    assert_int_not_equal(tess__cuda_matmul_differ(NULL, 16, a, b, &flag), cudaSuccess);
    emulate_free_all();
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_lengths),
        cmocka_unit_test(case_unaligned),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
