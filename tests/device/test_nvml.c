/* What we make of NVML's answers: against a made-up library (fake_nvml.c), and without a driver. */
#include "base/clock.h"
#include "device/nvml.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GIB ((int64_t)1 << 30)

static struct tess_watch *open_fake(const char *path, const char *mood, char why[256])
{
    why[0] = '\0';
    assert_int_equal(setenv("TESSERA_NVML", path, 1), 0);
    assert_int_equal(setenv("FAKE_NVML", mood, 1), 0);
    return tess_watch_open(why, 256);
}

static void case_two_devices(void **state)
{
    struct tess_watch_sample sample;
    char why[256], pid[32];
    struct tess_watch *watch;

    (void)state;
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("FAKE_NVML_PID", pid, 1);
    watch = open_fake(FAKE_NVML, "", why);
    assert_non_null(watch);
    assert_int_equal(tess_watch_device_count(watch), 2);
    tess_watch_sample(watch, 0, &sample);
    assert_string_equal(sample.name, "NVIDIA H200");
    assert_string_equal(sample.bus, "0000:18:00.0");
    assert_true(sample.gpu_percent == 97 && sample.memory_percent == 41);
    assert_true(sample.memory_used_bytes == 71 * GIB && sample.memory_total_bytes == 140 * GIB);
    assert_true(sample.sm_mhz == 1980 && sample.memory_mhz == 3201);
    assert_true(fabs(sample.power_w - 651.4) < 1e-9 && fabs(sample.power_limit_w - 700) < 1e-9);
    assert_true(sample.temperature_c == 61);
    assert_int_equal(sample.throttle, 0x4c);
    assert_int_equal(sample.process_count, 2);
    assert_int_equal(sample.process[0].pid, 1);
    assert_int_equal(sample.process[0].memory_bytes, -1);
    assert_true(sample.own_bytes == 5 * GIB);
    tess_watch_sample(watch, 1, &sample);
    assert_string_equal(sample.name, "NVIDIA H100 PCIe");
    assert_true(isnan(sample.power_w)); /* not supported: not a number, and not zero */
    assert_true(isnan(sample.link_tx_bytes_per_s));
    assert_int_equal(sample.process_count, 0);
    assert_int_equal(sample.own_bytes, -1);
    tess_watch_close(watch);
    unsetenv("FAKE_NVML_PID");
}

/* Counters become a rate from the second sample on; the time between is known to within what the
 * samples themselves take. */
static void case_links(void **state)
{
    struct tess_watch_sample sample;
    char why[256];
    struct tess_watch *watch = open_fake(FAKE_NVML, "", why);
    double before[2], after[2];

    (void)state;
    assert_non_null(watch);
    for (int i = 0; i < 2; i++) {
        usleep(20000);
        before[i] = tess_clock_s();
        tess_watch_sample(watch, 0, &sample);
        after[i] = tess_clock_s();
        assert_int_equal(isnan(sample.link_tx_bytes_per_s), i == 0);
    }
    assert_true(sample.link_tx_bytes_per_s >= (double)GIB / (after[1] - before[0]) * (1 - 1e-9));
    assert_true(sample.link_tx_bytes_per_s <= (double)GIB / (before[1] - after[0]) * (1 + 1e-9));
    assert_true(fabs(sample.link_rx_bytes_per_s / sample.link_tx_bytes_per_s - 0.5) < 1e-6);
    tess_watch_close(watch);
}

static void case_find(void **state)
{
    char why[256];
    struct tess_watch *watch = open_fake(FAKE_NVML, "", why);

    (void)state;
    assert_non_null(watch);
    assert_int_equal(tess_watch_find(watch, "0000:18:00.0"), 0);
    assert_int_equal(tess_watch_find(watch, "00000000:AF:00.0"), 1);
    assert_int_equal(tess_watch_find(watch, "0000:19:00.0"), -1);
    assert_int_equal(tess_watch_find(watch, "nonsense"), -1);
    tess_watch_close(watch);
}

/* Missing functions are missing numbers. */
static void case_old_driver(void **state)
{
    struct tess_watch_sample sample;
    char why[256];
    struct tess_watch *watch = open_fake(FAKE_NVML_OLD, "", why);

    (void)state;
    assert_non_null(watch);
    tess_watch_sample(watch, 0, &sample);
    assert_true(sample.gpu_percent == 97);
    assert_true(isnan(sample.power_limit_w) && isnan(sample.link_tx_bytes_per_s));
    assert_int_equal(sample.throttle, -1);
    assert_int_equal(sample.process_count, -1);
    assert_int_equal(sample.own_bytes, -1);
    tess_watch_close(watch);
}

/* A device that has fallen off the bus has no numbers, and ends nothing. */
static void case_lost(void **state)
{
    struct tess_watch_sample sample;
    char why[256];
    struct tess_watch *watch = open_fake(FAKE_NVML, "lost", why);

    (void)state;
    assert_non_null(watch);
    assert_int_equal(tess_watch_device_count(watch), 2);
    for (int32_t d = 0; d < 2; d++) {
        tess_watch_sample(watch, d, &sample);
        assert_string_equal(sample.name, "");
        assert_true(isnan(sample.gpu_percent) && isnan(sample.power_w) && isnan(sample.sm_mhz));
        assert_true(isnan(sample.temperature_c) && isnan(sample.link_tx_bytes_per_s));
        assert_int_equal(sample.memory_used_bytes, -1);
        assert_int_equal(sample.throttle, -1);
        assert_int_equal(sample.process_count, -1);
    }
    tess_watch_close(watch);
}

static void case_refusals(void **state)
{
    char why[256];

    (void)state;
    assert_null(open_fake("/nowhere/libnvidia-ml.so.1", "", why));
    assert_non_null(strstr(why, "not installed"));
    assert_null(open_fake(FAKE_NVML, "unloaded", why));
    assert_non_null(strstr(why, "not loaded"));
    assert_null(open_fake(FAKE_NVML, "none", why));
    assert_non_null(strstr(why, "sees none"));
    assert_null(open_fake("libm.so.6", "", why));
    assert_non_null(strstr(why, "not NVIDIA's"));
}

static void case_throttle(void **state)
{
    char text[TESS_WATCH_THROTTLE_BYTES];

    (void)state;
    assert_string_equal(tess_watch_throttle_text(0x1, text), "");
    assert_string_equal(tess_watch_throttle_text(-1, text), "");
    assert_string_equal(tess_watch_throttle_text(0x4, text), "power cap");
    assert_string_equal(tess_watch_throttle_text(0x4 | 0x8 | 0x40, text),
                        "power cap, heat (hardware)");
    assert_string_equal(tess_watch_throttle_text(0x8, text), "hardware");
    /* All at once fits. */
    assert_true(strlen(tess_watch_throttle_text(0x1ff, text)) < TESS_WATCH_THROTTLE_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_two_devices), cmocka_unit_test(case_links),
        cmocka_unit_test(case_find),        cmocka_unit_test(case_old_driver),
        cmocka_unit_test(case_lost),        cmocka_unit_test(case_refusals),
        cmocka_unit_test(case_throttle),
    };

    return cmocka_run_group_tests_name("nvml", tests, NULL, NULL);
}
