/*
 * JPEG, by libjpeg-turbo. Its exact integer transform is chosen, which has the same bits with and
 * without vector instructions. Data that end too early or are damaged, of which the library makes
 * grey areas and a warning, are errors here.
 */
#include "data/data_images.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* Each scan of a progressive file goes over the whole picture: thousands fit into a small file. */
#define JPEG_SCANS_MAX 256

struct jpeg_fault {
    struct jpeg_error_mgr base; /* first: the library passes a pointer to it */
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    char *why;
};

static void jpeg_stop(j_common_ptr info, const char *message)
{
    struct jpeg_fault *fault = (struct jpeg_fault *)(void *)info->err;
    snprintf(fault->why, TESS__IMAGE_WHY, "not a whole JPEG: %s", message);
    longjmp(fault->jump, 1);
}

static void jpeg_fail(j_common_ptr info)
{
    char message[JMSG_LENGTH_MAX];
    info->err->format_message(info, message);
    jpeg_stop(info, message);
}

/* Warnings have level -1. Those that are let pass change no pixel. */
static void jpeg_message(j_common_ptr info, int level)
{
    const int code = info->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM &&
        code != JWRN_JFIF_MAJOR)
        jpeg_fail(info);
}

static void jpeg_progress(j_common_ptr info)
{
    const struct jpeg_decompress_struct *jpeg = (struct jpeg_decompress_struct *)(void *)info;
    if (jpeg->input_scan_number > JPEG_SCANS_MAX)
        jpeg_stop(info, "it has more than 256 scans");
}

static void jpeg_head(struct jpeg_decompress_struct *jpeg, struct tess__picture *picture)
{
    jpeg_read_header(jpeg, TRUE);
    picture->height = (int32_t)jpeg->image_height;
    picture->width = (int32_t)jpeg->image_width;
    picture->channels = jpeg->jpeg_color_space == JCS_GRAYSCALE ? 1 : 3;
    if (jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK)
        jpeg_stop((j_common_ptr)jpeg, "its colours are for print (CMYK): convert it to RGB");
}

static void jpeg_body(struct jpeg_decompress_struct *jpeg, const struct tess__picture *picture,
                      uint8_t *pixel)
{
    const size_t line = (size_t)picture->width * (size_t)picture->channels;
    jpeg->out_color_space = picture->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = pixel + jpeg->output_scanline * line;
        jpeg_read_scanlines(jpeg, &row, 1);
    }
    jpeg_finish_decompress(jpeg);
}

/* What the library may jump back to: nothing is changed here after the jump was set. */
static enum tess_status jpeg_run(struct jpeg_decompress_struct *jpeg, struct jpeg_fault *fault,
                                 const uint8_t *byte, size_t count, struct tess__picture *picture,
                                 uint8_t *pixel)
{
    struct tess__picture head;
    if (setjmp(fault->jump) != 0)
        return TESS_ERR_DATA;
    jpeg_create_decompress(jpeg); /* which clears all but the place of its messages */
    jpeg->progress = &fault->progress;
    jpeg_mem_src(jpeg, byte, count);
    jpeg_head(jpeg, &head);
    if (pixel == NULL)
        *picture = head;
    else if (head.height != picture->height || head.width != picture->width ||
             head.channels > picture->channels)
        jpeg_stop((j_common_ptr)jpeg, "it has changed while it was read");
    else
        jpeg_body(jpeg, picture, pixel);
    return TESS_OK;
}

enum tess_status tess__jpeg_read(const uint8_t *byte, size_t count, struct tess__picture *picture,
                                 uint8_t *pixel, char why[TESS__IMAGE_WHY])
{
    struct jpeg_fault fault = {.progress = {.progress_monitor = jpeg_progress}, .why = why};
    struct jpeg_decompress_struct jpeg = {.err = jpeg_std_error(&fault.base)};
    fault.base.error_exit = jpeg_fail;
    fault.base.emit_message = jpeg_message;
    const enum tess_status status = jpeg_run(&jpeg, &fault, byte, count, picture, pixel);
    jpeg_destroy_decompress(&jpeg);
    return status;
}
