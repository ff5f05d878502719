/*
 * Exchanges with rank 0 alone, along the connections of a meeting: for what not every rank needs of
 * every other. Whatever their shape is, each rank sends what has come from the ranks behind it on
 * in one message.
 */
#ifndef TESSERA_COMM_BOOT_BOOT_POST_H
#define TESSERA_COMM_BOOT_BOOT_POST_H

#include "comm/boot/boot.h"

/* A blob of each rank, of any size: that of rank r is bytes + first[r], first[r + 1] - first[r]
 * bytes long. Zeroed: none. */
struct tess_boot_parts {
    int32_t count; /* blobs so far, of ranks 0 .. count - 1 */
    size_t *first; /* [ranks + 1] */
    char *bytes;
    size_t room;
};

/* No blobs, with room for those of so many ranks; tess_boot_parts_close frees it. */
enum tess_status tess_boot_parts_open(struct tess_boot_parts *parts, int32_t ranks);
/* The next rank's blob, to be filled in; invalid after the next call. NULL, without a message,
 * where there is no memory. */
void *tess_boot_parts_add(struct tess_boot_parts *parts, size_t bytes);
void tess_boot_parts_close(struct tess_boot_parts *parts); /* a zeroed one is allowed */

struct tess_boot_post;

/* Of a meeting (tess_boot_open), borrowed until close. Not collective. */
enum tess_status tess_boot_post_open(const struct tess_boot *boot,
                                     struct tess_boot_post **post_out);
void tess_boot_post_close(struct tess_boot_post *post); /* NULL is allowed */

/*
 * All collective, within the meeting's limit of time; blobs of at most TESS_BOOT_BLOB_MAX bytes.
 * What failed elsewhere a rank may find only in its next exchange.
 *
 *   collect  a blob of each rank, of any size, to rank 0, where *parts_out is to be closed; it
 *            stays zeroed elsewhere
 *   deal     from rank 0, which has `parts`, to each rank its own, of up to `room` bytes; after a
 *            collection, from which ranks know the way
 *   share    the same bytes from rank 0 to all
 *   least    the least number of all ranks, to all: two messages for each connection
 *   swap     with the neighbours alone: theirs_out [tess_boot_links()][bytes], in that order; of
 *            some bytes, which wait in the connections
 */
enum tess_status tess_boot_collect(struct tess_boot_post *post, const void *mine, size_t bytes,
                                   struct tess_boot_parts *parts_out);
enum tess_status tess_boot_deal(struct tess_boot_post *post, const struct tess_boot_parts *parts,
                                void *mine, size_t room, size_t *bytes_out);
enum tess_status tess_boot_share(struct tess_boot_post *post, void *data, size_t bytes);
enum tess_status tess_boot_least(struct tess_boot_post *post, int64_t *number);
enum tess_status tess_boot_swap(struct tess_boot_post *post, const void *mine, size_t bytes,
                                void *theirs_out);

#endif
