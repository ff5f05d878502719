/*
 * Packed samples in model gpt, on one backend (argv[1]): what is computed of a document depends
 * neither on the other documents of its sample nor on where it lies.
 */
#include "gpt_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH = 24, ROWS = 2, POSITIONS = ROWS * LENGTH, CLASSES = 40, COUNT = 5 };

static const char *gpt_kernel = "ref";

/* Row 0 has three documents, row 1 two, none as long as another. */
static const int32_t document[COUNT + 1] = {0, 7, 16, 24, 29, 48};

static int32_t place[POSITIONS];

static void set_documents(struct model_driver *driver, const int32_t *of)
{
    for (int d = 0; d < COUNT; d++)
        for (int32_t i = of[d]; i < of[d + 1]; i++)
            place[i] = i - of[d];
    driver->document = of;
    driver->place = place;
    driver->document_count = COUNT;
}

/* Dropout numbers elements by where they lie, so these models are without. */
static bool open_model(struct model_driver *driver, int which)
{
    const struct tess_model_input input = gpt_input(LENGTH, CLASSES, ROWS, 1);
    for (int i = 0; gpt_small[which].word[i] != NULL; i++)
        if (strstr(gpt_small[which].word[i], "dropout=") != NULL)
            return false;
    gpt_open(driver, gpt_kernel, &input, &gpt_small[which]);
    driver->training = true;
    set_documents(driver, document);
    return true;
}

/* Other tokens in positions [first, end). */
static void change(struct model_driver *driver, int32_t first, int32_t end)
{
    int32_t *token = driver->x_low;
    for (int32_t i = first; i < end; i++)
        token[i] = (token[i] + 1 + i % 5) % CLASSES;
}

/* The gradients of all parameters, or of the embedded tokens; to be freed. */
static float *run(struct model_driver *driver, bool params, size_t *count_out)
{
    size_t count = 0;
    model_forward(driver);
    model_backward(driver);
    if (!params)
        count = (size_t)driver->declare.unit[0].output_count * ROWS;
    for (int32_t p = 0; params && p < driver->declare.param_count; p++)
        count += (size_t)model_param_count(driver, p);
    float *all = malloc(count * sizeof(*all)), *at = all;
    assert_non_null(all);
    if (!params)
        memcpy(all, driver->output_grad[0], count * sizeof(*all));
    for (int32_t p = 0; params && p < driver->declare.param_count; p++) {
        memcpy(at, driver->grad[p], gpt_bytes(driver, p));
        at += model_param_count(driver, p);
    }
    *count_out = count;
    return all;
}

/* Document 1 has no labels: its tokens may be any, and no gradient of a parameter changes. */
static void case_parameters(void **state)
{
    (void)state;
    for (int which = 0; which < GPT_SMALL_COUNT; which++) {
        struct model_driver driver;
        size_t count;
        if (!open_model(&driver, which))
            continue;
        for (int32_t i = document[1]; i < document[2]; i++)
            driver.label[i] = -1;
        for (int packed = 1; packed >= 0; packed--) {
            if (!packed)
                driver.document = driver.place = NULL;
            float *before = run(&driver, true, &count);
            change(&driver, document[1], document[2]);
            float *after = run(&driver, true, &count);
            /* +0 and -0 are the same: sums of nothing. */
            size_t others = 0;
            for (size_t i = 0; i < count; i++)
                others += before[i] != after[i];
            assert_true(packed ? others == 0 : others > count / 4);
            free(before);
            free(after);
        }
        model_close(&driver);
    }
}

/* A document with labels: the gradients by the other documents' tokens have the same bits. */
static void case_tokens(void **state)
{
    (void)state;
    for (int which = 0; which < GPT_SMALL_COUNT; which++) {
        struct model_driver driver;
        size_t count;
        if (!open_model(&driver, which))
            continue;
        float *before = run(&driver, false, &count);
        change(&driver, document[1], document[2]);
        float *after = run(&driver, false, &count);
        const size_t width = count / POSITIONS;
        for (int d = 0; d < COUNT; d++) {
            const size_t at = (size_t)document[d] * width;
            const size_t bytes = (size_t)(document[d + 1] - document[d]) * width * sizeof(float);
            assert_int_equal(memcmp(before + at, after + at, bytes) == 0, d != 1);
        }
        free(before);
        free(after);
        model_close(&driver);
    }
}

/* Row 0 with its documents in another order: the same bits at other places. */
static void case_moved(void **state)
{
    (void)state;
    static const int32_t moved[COUNT + 1] = {0, 8, 15, 24, 29, 48}; /* documents 2, 0, 1, 3, 4 */
    static const int from[3] = {2, 0, 1};
    for (int which = 0; which < GPT_SMALL_COUNT; which++) {
        struct model_driver driver;
        size_t count;
        if (!open_model(&driver, which))
            continue;
        float *before = run(&driver, false, &count);
        const size_t width = count / POSITIONS;
        int32_t token[LENGTH], label[LENGTH], *now = driver.x_low;
        memcpy(token, now, sizeof(token));
        memcpy(label, driver.label, sizeof(label));
        for (int d = 0; d < 3; d++) {
            const size_t words = (size_t)(moved[d + 1] - moved[d]);
            memcpy(now + moved[d], token + document[from[d]], words * sizeof(*token));
            memcpy(driver.label + moved[d], label + document[from[d]], words * sizeof(*label));
        }
        set_documents(&driver, moved);
        float *after = run(&driver, false, &count);
        for (int d = 0; d < 3; d++)
            assert_memory_equal(after + (size_t)moved[d] * width,
                                before + (size_t)document[from[d]] * width,
                                (size_t)(moved[d + 1] - moved[d]) * width * sizeof(float));
        free(before);
        free(after);
        model_close(&driver);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_parameters),
        cmocka_unit_test(case_tokens),
        cmocka_unit_test(case_moved),
    };
    if (argc > 1)
        gpt_kernel = argv[1];
    return cmocka_run_group_tests_name("documents", cases, NULL, NULL);
}
