/*
 * What the sets of images share that are read from files: data_folder.c (folders of classes),
 * data_picture.c (their pictures, decoded by data_png.c and data_jpeg.c), data_cifar.c.
 */
#ifndef TESSERA_DATA_DATA_IMAGES_H
#define TESSERA_DATA_DATA_IMAGES_H

#include "data/data_tokens.h"

#include <limits.h>

#define TESS__IMAGE_WHY (PATH_MAX + 512)

/* Bytes of a file; `byte` is freed by the owner. Starts zeroed. */
struct tess__image_file {
    uint8_t *byte;
    size_t count, room;
};

/*
 * The whole of a regular file of at most bytes_max, in place of what was there. `why`: what is
 * wrong, with the name; it is not logged, since threads read.
 */
enum tess_status tess__image_file_read(struct tess__image_file *file, const char *path,
                                       size_t bytes_max, char why[TESS__IMAGE_WHY]);

/* ---- one picture ----------------------------------------------------------------------------- */

#define TESS__PICTURE_SIDE_MAX   16384
#define TESS__PICTURE_PIXELS_MAX ((int64_t)1 << 26)

struct tess__picture {
    int32_t height, width;
    int32_t channels; /* 1: grey; 3: red, green, blue */
};

/*
 * Decode a PNG or a JPEG. `pixel` NULL: its head alone, into *picture. Else all of it into `pixel`
 * [height, width, channels] of *picture, whose size is that of the head; a grey one may be asked
 * for in 3 channels. Opacity is left out, 16 bits become 8. TESS_ERR_DATA for what is truncated or
 * damaged, checksums included; TESS_ERR_UNSUPPORTED where the library was not built in. `why`: the
 * reason, without a name.
 */
enum tess_status tess__png_read(const uint8_t *byte, size_t count, struct tess__picture *picture,
                                uint8_t *pixel, char why[TESS__IMAGE_WHY]);
enum tess_status tess__jpeg_read(const uint8_t *byte, size_t count, struct tess__picture *picture,
                                 uint8_t *pixel, char why[TESS__IMAGE_WHY]);

/*
 * Scale the shorter side to `size` and cut the middle out: `target` [size, size, channels], by the
 * triangle filter, widened where pictures shrink, in integers: the same bits on every machine.
 */
enum tess_status tess__picture_scale(const struct tess__picture *picture, const uint8_t *pixel,
                                     int32_t size, uint8_t *target, char why[TESS__IMAGE_WHY]);

/* ---- sets ------------------------------------------------------------------------------------ */

struct tess__picture_name {
    const char *path;
    uint16_t label;
};

/*
 * A set of pictures, the first `train_count` for training. All have one size, or are scaled to
 * `size` > 0; it has one channel where all are grey. Logs what is wrong with the first bad one.
 */
enum tess_status tess__pictures_open(const struct tess__picture_name *name, int64_t train_count,
                                     int64_t test_count, int32_t class_count, int32_t size,
                                     struct tess_dataset **dataset_out);

bool tess__idx_is_there(const char *folder);
bool tess__cifar_is_there(const char *folder);
enum tess_status tess__cifar_open(const char *folder, struct tess_dataset **dataset_out);

#endif
