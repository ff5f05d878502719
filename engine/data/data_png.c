/* PNG, by libpng: every chunk's checksum is checked, and damage is an error, not a warning. */
#include "data/data_images.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#define PNG_CHUNK_BYTES ((png_alloc_size_t)64 << 20) /* of text, colour profiles ... */

struct png_source {
    const uint8_t *at;
    size_t left;
    char *why;
};

static PNG_FUNCTION(void, png_fail, (png_structp png, png_const_charp message), PNG_NORETURN)
{
    const struct png_source *source = png_get_error_ptr(png);
    snprintf(source->why, TESS__IMAGE_WHY, "not a whole PNG: %s", message);
    png_longjmp(png, 1);
}

static void png_warn(png_structp png, png_const_charp message)
{
    (void)png, (void)message; /* of what changes no pixel */
}

static void png_take(png_structp png, png_bytep target, size_t count)
{
    struct png_source *source = png_get_io_ptr(png);
    if (count > source->left)
        png_error(png, "truncated");
    memcpy(target, source->at, count);
    source->at += count;
    source->left -= count;
}

static void png_head(png_structp png, png_infop info, struct tess__picture *picture)
{
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* the caller has its own */
    png_set_chunk_malloc_max(png, PNG_CHUNK_BYTES);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_read_info(png, info);
    picture->height = (int32_t)png_get_image_height(png, info);
    picture->width = (int32_t)png_get_image_width(png, info);
    picture->channels = (png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1;
}

static void png_body(png_structp png, png_infop info, const struct tess__picture *picture,
                     uint8_t *pixel)
{
    const size_t line = (size_t)picture->width * (size_t)picture->channels;
    png_set_expand(png);
    png_set_scale_16(png);
    png_set_strip_alpha(png);
    if (picture->channels == 3)
        png_set_gray_to_rgb(png);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != line)
        png_error(png, "it has changed while it was read");
    for (int pass = 0; pass < passes; pass++)
        for (int32_t y = 0; y < picture->height; y++)
            png_read_row(png, pixel + (size_t)y * line, NULL);
    png_read_end(png, NULL);
}

/* What libpng may jump back to: nothing is changed here after the jump was set. */
static enum tess_status png_run(png_structp png, png_infop info, struct tess__picture *picture,
                                uint8_t *pixel)
{
    struct tess__picture head;
    if (setjmp(png_jmpbuf(png)) != 0)
        return TESS_ERR_DATA;
    png_head(png, info, &head);
    if (pixel == NULL)
        *picture = head;
    else if (head.height != picture->height || head.width != picture->width)
        png_error(png, "it has changed while it was read");
    else
        png_body(png, info, picture, pixel);
    return TESS_OK;
}

enum tess_status tess__png_read(const uint8_t *byte, size_t count, struct tess__picture *picture,
                                uint8_t *pixel, char why[TESS__IMAGE_WHY])
{
    struct png_source source = {byte, count, why};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, png_fail, png_warn);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;
    enum tess_status status = TESS_ERR_MEMORY;
    snprintf(why, TESS__IMAGE_WHY, "no memory to decode it");
    if (info != NULL) {
        png_set_read_fn(png, &source, png_take);
        status = png_run(png, info, picture, pixel);
    }
    png_destroy_read_struct(&png, &info, NULL);
    return status;
}
