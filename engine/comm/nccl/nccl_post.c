/*
 * Letters between the threads of a family's ranks, over TCP: invitations to channels, which two
 * ranks make without the others, and word of a failure where ranks are on several hosts. Each rank
 * listens; a letter is one connection, signed with the secret of the job and of this family. What
 * comes from elsewhere is dropped, and delays nothing. A number in each letter makes sure that one
 * that was recorded is not taken again.
 *
 * Signed, and not proved by question and answer as other connections are (boot_secret.h): threads
 * that send letters to each other at the same time would wait for each other's question.
 */
#include "comm/nccl/nccl_group.h"

#include "base/clock.h"
#include "comm/boot/boot_door.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define POST_SEND_S    5.0
#define POST_PENDING_S 0.1 /* between two looks, while a letter has come in part */
#define POST_ADDRESS   256
#define POST_WINDOW    64 /* numbers of letters that may overtake each other */

/* Where a rank listens; rank 0's word is part of the secret. */
struct post_address {
    uint64_t word[2];
    int32_t port, zero;
    char host[POST_ADDRESS];
};

/* What goes over the wire. */
struct post_frame {
    struct nccl_letter letter;
    uint64_t number; /* of the sender's letters, from 1 */
    int32_t sender, to;
    unsigned char proof[TESS_SECRET_PROOF_BYTES];
};

#define POST_SIGNED offsetof(struct post_frame, proof)

_Static_assert(sizeof(struct post_frame) == sizeof(struct nccl_letter) + 48 &&
                   sizeof(struct post_frame) <= BOOT_HELLO_MOST,
               "what goes over the wire has no holes, and the door reads it");

/* A letter that has come and was not taken. */
struct post_item {
    STAILQ_ENTRY(post_item) link;
    struct nccl_letter letter;
};

/* Numbers that have come from a rank: the highest, and of those before it bit k: that k + 1 less.
 */
struct post_seen {
    uint64_t highest, before;
};

struct nccl_post {
    struct boot_door door;
    int wake; /* an eventfd */
    struct tess_secret secret;
    _Atomic uint64_t sent;
    STAILQ_HEAD(post_items, post_item) items;
    struct post_seen *seen;       /* [ranks] */
    struct post_address *address; /* [ranks] */
};

static void post_free(struct nccl_post *post)
{
    struct post_item *item;
    while ((item = STAILQ_FIRST(&post->items)) != NULL) {
        STAILQ_REMOVE_HEAD(&post->items, link);
        free(item);
    }
    tess__boot_door_close(&post->door);
    if (post->wake >= 0)
        close(post->wake);
    free(post->seen);
    free(post->address);
    free(post);
}

/* ---- what comes ------------------------------------------------------------------------------ */

/* False: this number has come before, or is older than is remembered. */
static bool post_is_new(struct post_seen *seen, uint64_t number)
{
    if (number > seen->highest) {
        const uint64_t by = number - seen->highest;
        seen->before = by < POST_WINDOW ? seen->before << by | UINT64_C(1) << (by - 1) : 0;
        seen->highest = number;
        return true;
    }
    const uint64_t behind = seen->highest - number;
    if (behind == 0 || behind > POST_WINDOW || (seen->before >> (behind - 1) & 1) != 0)
        return false;
    seen->before |= UINT64_C(1) << (behind - 1);
    return true;
}

/* Is it of this family, for this rank, and about ranks that there are? */
static bool post_is_ours(const struct nccl_family *family, const struct post_frame *frame)
{
    const struct nccl_letter *letter = &frame->letter;
    int32_t n = family->rank_count;
    return tess_secret_signed(&family->post->secret, frame, POST_SIGNED, frame->proof) &&
           frame->to == family->rank && frame->sender >= 0 && frame->sender < n &&
           letter->kind >= NCCL_REQUEST && letter->kind <= NCCL_FAILED && letter->sender >= 0 &&
           letter->sender < n && letter->from >= 0 && letter->from < n && letter->to >= 0 &&
           letter->to < n;
}

/* A whole letter; see boot_door.h. */
static bool post_greet(void *context, int fd, const unsigned char *bytes)
{
    struct nccl_family *family = context;
    struct nccl_post *post = family->post;
    struct post_frame frame;
    memcpy(&frame, bytes, sizeof(frame));
    if (!post_is_ours(family, &frame) || !post_is_new(&post->seen[frame.sender], frame.number))
        return false;
    struct post_item *item = malloc(sizeof(*item));
    if (item == NULL)
        return false;
    item->letter = frame.letter;
    STAILQ_INSERT_TAIL(&post->items, item, link);
    close(fd);
    return true;
}

/* ---- opening --------------------------------------------------------------------------------- */

static enum tess_status post_meet(struct nccl_post *post, const struct tess_boot *boot)
{
    struct post_address mine = {.port = 0};
    if (getrandom(mine.word, sizeof(mine.word), 0) != (ssize_t)sizeof(mine.word))
        TESS_FAIL(TESS_ERR_IO, "no random number for the ranks' letters: %s", strerror(errno));
    post->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (post->wake < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open an eventfd: %s", strerror(errno));
    TESS_TRY(tess__boot_listen(boot->address, 0, &post->door.listener));
    mine.port = tess__boot_port(&post->door.listener);
    snprintf(mine.host, sizeof(mine.host), "%s", boot->address);
    TESS_TRY(boot->gather(boot->context, &mine, sizeof(mine), post->address));
    tess_boot_secret(boot, post->address[0].word, sizeof(post->address[0].word), &post->secret);
    for (int32_t r = 0; r < boot->rank_count; r++)
        post->address[r].host[POST_ADDRESS - 1] = '\0';
    return TESS_OK;
}

enum tess_status tess__nccl_post_open(struct nccl_family *family, const struct tess_boot *boot)
{
    struct nccl_post *post = calloc(1, sizeof(*post));
    if (post == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the addresses of the ranks");
    post->wake = -1;
    post->door = (struct boot_door){
        .greet = post_greet, .context = family, .hello_bytes = sizeof(struct post_frame)};
    STAILQ_INIT(&post->items);
    post->seen = calloc((size_t)boot->rank_count, sizeof(*post->seen));
    post->address = calloc((size_t)boot->rank_count, sizeof(*post->address));
    const enum tess_status status =
        post->seen != NULL && post->address != NULL
            ? post_meet(post, boot)
            : tess_fail(TESS_ERR_MEMORY, "no memory for the addresses of the ranks");
    if (status == TESS_OK)
        family->post = post;
    else
        post_free(post);
    return status;
}

void tess__nccl_post_close(struct nccl_family *family)
{
    if (family->post != NULL)
        post_free(family->post);
    family->post = NULL;
}

/* ---- letters --------------------------------------------------------------------------------- */

bool tess__nccl_post_send(struct nccl_family *family, int32_t to, const struct nccl_letter *letter)
{
    struct nccl_post *post = family->post;
    if (post == NULL)
        return false;
    const struct post_address *address = &post->address[to];
    double limit_s = tess_clock_s() + POST_SEND_S;
    struct post_frame frame = {.letter = *letter, .sender = family->rank, .to = to};
    char why[BOOT_WHY_BYTES] = "";
    frame.number = atomic_fetch_add(&post->sent, 1) + 1;
    tess_secret_sign(&post->secret, &frame, POST_SIGNED, frame.proof);
    int fd = tess__boot_connect(address->host, address->port, limit_s, why, sizeof(why));
    bool sent = fd >= 0 && tess__boot_send(fd, &frame, sizeof(frame), limit_s, why, sizeof(why));
    if (fd >= 0)
        close(fd);
    if (!sent)
        tess_log(TESS_LOG_WARN, "rank %d does not reach rank %d at %s, port %d: %s",
                 (int)family->rank, (int)to, address->host, (int)address->port, why);
    return sent;
}

void tess__nccl_post_wake(struct nccl_family *family)
{
    const uint64_t one = 1;
    if (family->post != NULL && write(family->post->wake, &one, sizeof(one)) < 0)
        tess_log(TESS_LOG_DEBUG, "waking a thread: %s", strerror(errno));
}

/* Until a connection or a wake comes; connections that are silent are looked at again soon. */
static void post_wait(const struct nccl_post *post, double wait_s)
{
    struct pollfd watch[1 + BOOT_LISTEN_MAX + BOOT_PENDING];
    const struct boot_door *door = &post->door;
    nfds_t count = 0;
    watch[count++] = (struct pollfd){.fd = post->wake, .events = POLLIN};
    for (int i = 0; i < door->listener.count; i++)
        watch[count++] = (struct pollfd){.fd = door->listener.fd[i], .events = POLLIN};
    for (int i = 0; i < door->pending_count; i++)
        watch[count++] = (struct pollfd){.fd = door->pending[i].fd, .events = POLLIN};
    if (door->pending_count > 0 && wait_s > POST_PENDING_S)
        wait_s = POST_PENDING_S;
    (void)poll(watch, count, (int)(wait_s * 1e3));
}

bool tess__nccl_post_take(struct nccl_family *family, double wait_s, struct nccl_letter *letter_out)
{
    struct nccl_post *post = family->post;
    uint64_t woken;
    if (STAILQ_EMPTY(&post->items)) {
        post_wait(post, wait_s);
        const ssize_t got = read(post->wake, &woken, sizeof(woken)); /* it wakes no more */
        (void)got;
        tess__boot_door_take(&post->door);
    }
    struct post_item *item = STAILQ_FIRST(&post->items);
    if (item == NULL)
        return false;
    STAILQ_REMOVE_HEAD(&post->items, link);
    *letter_out = item->letter;
    free(item);
    return true;
}
