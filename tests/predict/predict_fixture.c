#include "predict_fixture.h"

#include "tessera/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORDS_MAX 64

struct tess_profile fixture_profile(double flops_per_s)
{
    struct tess_profile profile = {.name = "made up",
                                   .kernel = "ref",
                                   .bytes_per_s = 1e21,
                                   .units = 1,
                                   .tile_m = 1,
                                   .tile_n = 1,
                                   .attention_forward = 1,
                                   .attention_backward = 1};
    for (int t = 0; t < TESS_PEAK_TYPES; t++) {
        profile.flops_per_s[t] = flops_per_s;
        profile.efficiency[t] = 1;
    }
    return profile;
}

struct tess_network fixture_network(const struct tess_config *config, double bytes_per_s)
{
    const struct tess_cluster cluster = {.ranks = (int32_t)config->run.ranks,
                                         .host_ranks = (int32_t)config->run.ranks,
                                         .host_bytes_per_s = bytes_per_s};
    struct tess_network network;
    tess_network_make(&cluster, &config->mesh, &network);
    return network;
}

void fixture_open(const char *options, struct tess_config **config_out,
                  struct tess_dataset **dataset_out)
{
    char words[1024];
    char *argv[WORDS_MAX];
    int argc = 0;
    snprintf(words, sizeof(words), "--data synthetic --steps 8 %s", options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;) {
        assert_true(argc < WORDS_MAX);
        if (*word != '\0')
            argv[argc++] = word;
    }
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, config_out), TESS_OK);
    const struct tess_config *config = *config_out;
    const enum tess_status status =
        config->model->tokens
            ? tess_dataset_open_synthetic_tokens(config->loader.length, 96, 20, 3, dataset_out)
            : tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 50, 3, dataset_out);
    assert_int_equal(status, TESS_OK);
}

void fixture_close(struct tess_config *config, struct tess_dataset *dataset)
{
    tess_dataset_close(dataset);
    tess_config_close(config);
}

void fixture_predict(const char *options, const struct tess_profile *profile, double bytes_per_s,
                     struct tess_prediction *prediction_out)
{
    struct tess_config *config;
    struct tess_dataset *dataset;
    fixture_open(options, &config, &dataset);
    const struct tess_network network = fixture_network(config, bytes_per_s);
    assert_int_equal(tess_predict_step(config, dataset, profile, &network, prediction_out),
                     TESS_OK);
    fixture_close(config, dataset);
}

void fixture_same(double a, double b)
{
    if (fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)))
        return;
    print_error("%.17g is not %.17g\n", a, b);
    fail();
}
