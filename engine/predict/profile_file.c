/* Profiles in files. One table has the keys, their limits, and where their numbers go. */
#include "predict/profile.h"

#include "base/file.h"
#include "base/options.h"
#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Texts of an option set live as long as the set. */
struct profile_file {
    struct tess_profile profile;
    const char *name, *kernel, *source;
    const char *points[TESS_PRODUCT_COUNT][TESS_WIDTHS];
};

#define FIELD(member) offsetof(struct profile_file, member)
#define NUMBER(key, member, least, most, text)                                                     \
    TESS_ROW_REAL(key, FIELD(profile.member), "0", least, most, text)

/* Limits of single numbers; tess_profile_check has those that are more than this. What a number may
 * be: far beyond any device, so that no product of two overflows. */
#define RATE_MAX       1e21
#define TIME_MAX       1e3
#define SIZE_MAX_BYTES 1e18
#define RATIO_MAX      1e6

/* Of each type; a peak of 0: there are no such units. */
#define PEAK(key, type, text)                                                                      \
    NUMBER("flops-per-s-" key, flops_per_s[type], 0, RATE_MAX, "Peak of products in " text "."),   \
        NUMBER("efficiency-" key, efficiency[type], 0, 1, "Share of it that products reach.")

/* Of each operation, and of each kind of product, in both widths. */
#define WORK(name, key)                                                                            \
    NUMBER("work-" key "-32-s", work_s[TESS_WORK_##name][TESS_WIDTH_32], 0, TIME_MAX,              \
           "Seconds of an element, f32."),                                                         \
        NUMBER("work-" key "-16-s", work_s[TESS_WORK_##name][TESS_WIDTH_16], 0, TIME_MAX,          \
               "In 16 bits."),                                                                     \
        NUMBER("work-" key "-far-32-s", far_work_s[TESS_WORK_##name][TESS_WIDTH_32], 0, TIME_MAX,  \
               "Of arrays that no cache keeps, f32."),                                             \
        NUMBER("work-" key "-far-16-s", far_work_s[TESS_WORK_##name][TESS_WIDTH_16], 0, TIME_MAX,  \
               "In 16 bits."),
#define RATE(name, key, width, bits)                                                               \
    NUMBER("product-" key "-" bits "-flops-per-s",                                                 \
           product[TESS_PRODUCT_##name][width].flops_per_s, 0, RATE_MAX,                           \
           "Rate of such products; "                                                               \
           "0: as any."),                                                                          \
        NUMBER("product-" key "-" bits "-half-m", product[TESS_PRODUCT_##name][width].half_m, 0,   \
               1e9, "Rows."),                                                                      \
        NUMBER("product-" key "-" bits "-half-n", product[TESS_PRODUCT_##name][width].half_n, 0,   \
               1e9, "Columns."),                                                                   \
        NUMBER("product-" key "-" bits "-half-k", product[TESS_PRODUCT_##name][width].half_k, 0,   \
               1e9, "Length of sums."),                                                            \
        TESS_ROW_STRING("product-" key "-" bits "-points",                                         \
                        FIELD(points[TESS_PRODUCT_##name][width]), "",                             \
                        "What some sizes took by what the rate gives: m n k ratio, ..."),
#define PRODUCT(name, key) RATE(name, key, TESS_WIDTH_32, "32") RATE(name, key, TESS_WIDTH_16, "16")

/* The row of a key, without its last comma. */
#define CACHE(key, field, when)                                                                    \
    NUMBER(key "share-bytes", field.share_bytes, 0, SIZE_MAX_BYTES, "Kept all where " when "."),   \
        NUMBER(key "gone-bytes", field.gone_bytes, 0, SIZE_MAX_BYTES, "From here on nothing."),    \
        NUMBER(key "lost-byte-s", field.lost_byte_s, 0, TIME_MAX, "More for such a byte.")

static const struct tess_option profile_table[] = {
    TESS_ROW_STRING("name", FIELD(name), "", "Name of the profile."),
    TESS_ROW_STRING("kernel", FIELD(kernel), "", "Backend whose memory is planned."),
    TESS_ROW_STRING("source", FIELD(source), "", "Where the figures come from."),
    TESS_ROW_BOOL("measured", FIELD(profile.measured), "off", "Measured, not published."),
    NUMBER("sm", sm, 0, 1000, "Compute capability, times ten; 0: unknown."),
    NUMBER("memory-bytes", memory_bytes, 0, SIZE_MAX_BYTES, "Memory of a device; 0: not bounded."),
    NUMBER("beside-bytes", beside_bytes, 0, SIZE_MAX_BYTES, "What driver and libraries take."),
    NUMBER("launch-s", launch_s, 0, TIME_MAX, "Seconds of the host for an operation."),
    NUMBER("start-s", start_s, 0, TIME_MAX, "Seconds of the smallest operation."),
    NUMBER("bytes-per-s", bytes_per_s, 0, RATE_MAX, "Memory passes."),
    NUMBER("host-bytes-per-s", host_bytes_per_s, 0, RATE_MAX, "Memory passes of a whole host."),
    NUMBER("cache-bytes", cache_bytes, 0, SIZE_MAX_BYTES, "Passes over less run from the cache."),
    NUMBER("cache-bytes-per-s", cache_bytes_per_s, 0, RATE_MAX, "Passes from the cache."),
    NUMBER("link-bytes-per-s", link_bytes_per_s, 0, RATE_MAX, "Between host and device."),
    NUMBER("old-byte-s", old_byte_s, 0, TIME_MAX, "More for a byte touched long ago."),
    NUMBER("old-age-s", old_age_s, 0, 1e6, "When most of that is due; 0: not measured."),
    CACHE("", cache_one, "one core is busy"),
    CACHE("all-", cache_all, "all cores are"),
    NUMBER("element-s", element_s, 0, TIME_MAX, "For an element of exp, tanh or random numbers."),
    NUMBER("copy-bytes-per-s", copy_bytes_per_s, 0, RATE_MAX, "Between ranks of the processor."),
    NUMBER("sum-bytes-per-s", sum_bytes_per_s, 0, RATE_MAX, "Arrays that they add up."),
    NUMBER("scatter-bytes-per-s", scatter_bytes_per_s, 0, RATE_MAX,
           "Arrays of which each gets a share."),
    NUMBER("shared-bytes-per-s", share_bytes_per_s, 0, RATE_MAX, "Sums that are used in place."),
    NUMBER("call-s", call_s, 0, TIME_MAX, "Smallest call between them."),
    NUMBER("turn-s", turn_s, 0, TIME_MAX, "Of ranks that take turns, for each of a core."),
    NUMBER("turn-copy-bytes-per-s", turn_copy_bytes_per_s, 0, RATE_MAX, "Copies of such ranks."),
    NUMBER("turn-sum-bytes-per-s", turn_sum_bytes_per_s, 0, RATE_MAX, "Sums of such ranks."),
    NUMBER("turn-shared-bytes-per-s", turn_share_bytes_per_s, 0, RATE_MAX, "The same of such."),
    NUMBER("lag-short-s", lag_short_s, 0, TIME_MAX, "The last rank is late, after 1 ms of work."),
    NUMBER("lag-long-s", lag_long_s, 0, TIME_MAX, "After 10 ms."),
    NUMBER("turn-lag-short-s", turn_lag_short_s, 0, TIME_MAX, "Of ranks that take turns: 1 ms."),
    NUMBER("turn-lag-long-s", turn_lag_long_s, 0, TIME_MAX, "10 ms."),
    NUMBER("turn-chain", turn_chain, 0, 1e6, "Stages that take turns: time by that of even turns."),
    NUMBER("net-call-s", net_call_s, 0, TIME_MAX, "Smallest call over sockets."),
    NUMBER("net-bytes-per-s", net_bytes_per_s, 0, RATE_MAX, "Between ranks over sockets."),
    NUMBER("net-sum-bytes-per-s", net_sum_bytes_per_s, 0, RATE_MAX, "Arrays added up over them."),
    NUMBER("cores", cores, 0, 1e6, "Cores that ranks share; 0: a device each."),
    PEAK("f32", TESS_PEAK_F32, "f32"),
    PEAK("tf32", TESS_PEAK_TF32, "tf32"),
    PEAK("16", TESS_PEAK_16, "16 bits"),
    PEAK("fp8", TESS_PEAK_FP8, "8 bits"),
    NUMBER("units", units, 0, 1e6, "Tiles that are computed at once."),
    NUMBER("tile-m", tile_m, 0, 1e6, "Rows of a tile."),
    NUMBER("tile-n", tile_n, 0, 1e6, "Columns of a tile."),
    NUMBER("half-m", half_m, 0, 1e9, "Rows at which products reach half of their rate."),
    NUMBER("half-n", half_n, 0, 1e9, "Columns at which they do."),
    NUMBER("half-k", half_k, 0, 1e9, "Length of sums at which they do."),
    NUMBER("attention-forward", attention_forward, 0, 1, "Share of the peak, forward."),
    NUMBER("attention-backward", attention_backward, 0, 1, "Share of the peak, backward."),
    NUMBER("attention-half", attention_half, 0, 1e9, "Positions at which it is half of that."),
    TESS_WORK_LIST(WORK) TESS_PRODUCT_LIST(PRODUCT) TESS_ROW_END,
};

/* ---- checks ---------------------------------------------------------------------------------- */

static double profile_number(const struct profile_file *file, const struct tess_option *row)
{
    double value;
    memcpy(&value, (const char *)file + row->offset, sizeof(value));
    return value;
}

/* `what`: the subject of messages, a file or a profile. */
static enum tess_status profile_check(const char *what, const struct tess_profile *profile)
{
    const struct profile_file file = {.profile = *profile};
    for (const struct tess_option *row = profile_table; row->name != NULL; row++) {
        const double value = row->type == TESS_OPTION_REAL ? profile_number(&file, row) : 0;
        if (row->type == TESS_OPTION_REAL && !(value >= row->min && value <= row->max))
            TESS_FAIL(TESS_ERR_USAGE, "%s: %s is %g; it must be from %g to %g", what, row->name,
                      value, row->min, row->max);
    }
    if (!(profile->bytes_per_s > 0) || !(profile->flops_per_s[TESS_PEAK_F32] > 0) ||
        !(profile->attention_forward > 0) || !(profile->attention_backward > 0))
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s: bytes-per-s, flops-per-s-f32, attention-forward and "
                  "attention-backward must be there and above 0",
                  what);
    for (int t = 0; t < TESS_PEAK_TYPES; t++)
        if (profile->flops_per_s[t] > 0 && !(profile->efficiency[t] > 0))
            TESS_FAIL(TESS_ERR_USAGE, "%s: efficiency-%s must be above 0", what,
                      t == TESS_PEAK_16 ? "16" : tess_peak_type_name(t));
    const double whole[] = {profile->units, profile->tile_m, profile->tile_n};
    for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++)
        if (whole[i] < 1 || whole[i] != floor(whole[i]))
            TESS_FAIL(TESS_ERR_USAGE,
                      "%s: units, tile-m and tile-n must be there, and whole numbers", what);
    return TESS_OK;
}

enum tess_status tess_profile_check(const struct tess_profile *profile)
{
    char what[sizeof(profile->name) + 16];
    snprintf(what, sizeof(what), "profile '%s'", profile->name);
    return profile_check(what, profile);
}

/* ---- files ----------------------------------------------------------------------------------- */

static enum tess_status profile_text(const char *path, const char *key, const char *text,
                                     char *copy, size_t room)
{
    if (strlen(text) >= room)
        TESS_FAIL(TESS_ERR_USAGE, "%s: %s is longer than %zu bytes", path, key, room - 1);
    memcpy(copy, text, strlen(text) + 1);
    return TESS_OK;
}

/* "m n k ratio" of each, with commas between them. */
static enum tess_status profile_points(const char *path, const char *text,
                                       struct tess_product_rate *rate)
{
    int count = 0, used = 0;
    for (const char *at = text; *at != '\0'; at += used + (at[used] == ',')) {
        struct tess_product_point *point = &rate->point[count];
        double size[3], ratio;
        if (count == TESS_PROFILE_POINTS ||
            sscanf(at, "%lf %lf %lf %lf%n", &size[0], &size[1], &size[2], &ratio, &used) != 4 ||
            (at[used] != ',' && at[used] != '\0'))
            TESS_FAIL(TESS_ERR_USAGE,
                      "%s: points must be up to %d times \"m n k ratio\", with commas between "
                      "them, not \"%.40s\"",
                      path, TESS_PROFILE_POINTS, at);
        for (int axis = 0; axis < 3; axis++) {
            if (!(size[axis] >= 1 && size[axis] <= SIZE_MAX_BYTES))
                TESS_FAIL(TESS_ERR_USAGE, "%s: a point's size is %g; it must be from 1 to %g", path,
                          size[axis], SIZE_MAX_BYTES);
            point->log2_size[axis] = log2(size[axis]);
        }
        if (!(ratio >= 1 / RATIO_MAX && ratio <= RATIO_MAX))
            TESS_FAIL(TESS_ERR_USAGE, "%s: a point's ratio is %g; it must be from %g to %g", path,
                      ratio, 1 / RATIO_MAX, RATIO_MAX);
        point->ratio = ratio;
        count++;
    }
    return TESS_OK;
}

static enum tess_status profile_take(const char *path, struct profile_file *file)
{
    struct tess_profile *profile = &file->profile;
    TESS_TRY(profile_text(path, "name", file->name, profile->name, sizeof(profile->name)));
    TESS_TRY(profile_text(path, "kernel", file->kernel, profile->kernel, sizeof(profile->kernel)));
    TESS_TRY(profile_text(path, "source", file->source, profile->source, sizeof(profile->source)));
    for (int i = 0; i < TESS_PRODUCT_COUNT * TESS_WIDTHS; i++)
        TESS_TRY(profile_points(path, file->points[i / TESS_WIDTHS][i % TESS_WIDTHS],
                                &profile->product[i / TESS_WIDTHS][i % TESS_WIDTHS]));
    if (profile->kernel[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE, "%s: there is no kernel: the file is no profile, or cut", path);
    return profile_check(path, profile);
}

enum tess_status tess_profile_read(const char *path, struct tess_profile *profile_out)
{
    struct profile_file file = {0};
    struct tess_options *options;
    TESS_TRY(tess_options_open(&options));
    enum tess_status status = tess_options_add(options, "", profile_table, &file);
    if (status == TESS_OK)
        status = tess_options_load_yaml(options, path);
    if (status == TESS_OK)
        status = profile_take(path, &file);
    if (status == TESS_OK)
        *profile_out = file.profile;
    tess_options_close(options);
    return status;
}

/* A text in quotes, by YAML's rules for them. */
static void profile_quote(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text != '\0'; text++)
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else
            fputc((unsigned char)*text < ' ' ? ' ' : *text, to);
    fputc('"', to);
}

static void profile_print(FILE *to, const struct profile_file *file)
{
    for (const struct tess_option *row = profile_table; row->name != NULL; row++) {
        const char *text;
        fprintf(to, "%s: ", row->name);
        if (row->type == TESS_OPTION_REAL) {
            fprintf(to, "%.17g", profile_number(file, row));
        } else if (row->type == TESS_OPTION_BOOL) {
            fputs(file->profile.measured ? "on" : "off", to);
        } else {
            memcpy(&text, (const char *)file + row->offset, sizeof(text));
            profile_quote(to, text);
        }
        fputc('\n', to);
    }
}

static void profile_print_points(FILE *to, const struct tess_product_rate *rate)
{
    for (int i = 0; i < TESS_PROFILE_POINTS && rate->point[i].ratio > 0; i++) {
        const double *size = rate->point[i].log2_size;
        fprintf(to, "%s%.0f %.0f %.0f %.4g", i > 0 ? ", " : "", exp2(size[0]), exp2(size[1]),
                exp2(size[2]), rate->point[i].ratio);
    }
}

/* The texts of all points, one after the other; with its room freed by the caller. */
static char *profile_text_of_points(const struct tess_profile *profile, struct profile_file *file)
{
    size_t begin[TESS_PRODUCT_COUNT * TESS_WIDTHS], bytes = 0;
    char *text = NULL;
    FILE *to = open_memstream(&text, &bytes);
    for (int i = 0; to != NULL && i < TESS_PRODUCT_COUNT * TESS_WIDTHS; i++) {
        begin[i] = (size_t)ftell(to);
        profile_print_points(to, &profile->product[i / TESS_WIDTHS][i % TESS_WIDTHS]);
        fputc('\0', to);
    }
    if (to == NULL || fclose(to) != 0) {
        free(text);
        return NULL;
    }
    for (int i = 0; i < TESS_PRODUCT_COUNT * TESS_WIDTHS; i++)
        file->points[i / TESS_WIDTHS][i % TESS_WIDTHS] = text + begin[i];
    return text;
}

enum tess_status tess_profile_write(const struct tess_profile *profile, const char *path)
{
    struct profile_file file = {.profile = *profile,
                                .name = profile->name,
                                .kernel = profile->kernel,
                                .source = profile->source};
    char *text = NULL;
    size_t bytes = 0;
    TESS_TRY(tess_profile_check(profile));
    char *points = profile_text_of_points(profile, &file);
    FILE *to = points != NULL ? open_memstream(&text, &bytes) : NULL;
    if (to != NULL)
        profile_print(to, &file);
    enum tess_status status = TESS_OK;
    if (to == NULL || fclose(to) != 0)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the text of a profile");
    if (status == TESS_OK)
        status = tess_file_write(path, text, bytes);
    free(points);
    free(text);
    return status;
}

/* Homes may be shared by hosts. */
bool tess_profile_kept(bool make, char *path, size_t bytes)
{
    char host[64] = "", name[96];
    if (gethostname(host, sizeof(host) - 1) != 0)
        return false;
    snprintf(name, sizeof(name), "processor-%s.yaml", host);
    if (strchr(host, '/') != NULL || !tess_file_cache(name, make, path, bytes))
        return false;
    char *name_at = strrchr(path, '/');
    *name_at = '\0';
    const bool kept = !make || access(path, W_OK | X_OK) == 0;
    *name_at = '/';
    return kept;
}

enum tess_status tess_profile_here(const char *kernel, struct tess_profile *profile_out)
{
    char path[512];
    if (tess_profile_kept(false, path, sizeof(path)) && access(path, R_OK) == 0) {
        TESS_TRY(tess_profile_read(path, profile_out));
        if (strcmp(profile_out->kernel, kernel) == 0)
            return TESS_OK; /* else it is of another backend */
    }
    *profile_out = *tess_profile_find("cpu");
    snprintf(profile_out->kernel, sizeof(profile_out->kernel), "%s", kernel);
    return TESS_OK;
}
