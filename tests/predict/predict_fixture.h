/* Predictions of small configurations on made-up devices and links. */
#ifndef TESTS_PREDICT_FIXTURE_H
#define TESTS_PREDICT_FIXTURE_H

#include "config/config.h"
#include "predict/network.h"
#include "predict/predict.h"

/* A device whose products take 1 / flops_per_s a flop, and nothing else takes time that counts:
 * passes over memory run at the greatest rate that a profile may have. */
struct tess_profile fixture_profile(double flops_per_s);

/* All ranks on one host; a rank sends bytes_per_s, and calls have no latency. */
struct tess_network fixture_network(const struct tess_config *config, double bytes_per_s);

/* As on a command line, words joined by one space; made-up rows of 6 x 6 in five classes, or text.
 */
void fixture_open(const char *options, struct tess_config **config_out,
                  struct tess_dataset **dataset_out);
void fixture_close(struct tess_config *config, struct tess_dataset *dataset);

/* Open, predict, close. Fails the test where it cannot be predicted. */
void fixture_predict(const char *options, const struct tess_profile *profile, double bytes_per_s,
                     struct tess_prediction *prediction_out);

/* |a - b| <= 1e-9 of the greater. */
void fixture_same(double a, double b);

#endif
