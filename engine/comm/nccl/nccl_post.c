/*
 * Letters between the threads of a family's ranks, over TCP: invitations to channels, which two
 * ranks make without the others, and word of a failure where ranks are on several hosts. Each rank
 * listens; a letter is one connection. What comes from elsewhere does not have the key and is
 * dropped.
 */
#include "comm/nccl/nccl_group.h"

#include "base/clock.h"
#include "base/hash.h"
#include "comm/boot/boot_socket.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define POST_SEND_S    5.0
#define POST_RECEIVE_S 1.0 /* a letter is written at once */
#define POST_ADDRESS   256

/* Where a rank listens; rank 0's key is that of all. */
struct post_address {
    uint64_t key;
    int32_t port;
    char host[POST_ADDRESS];
};

struct nccl_post {
    struct boot_listener listener;
    int wake; /* an eventfd */
    uint64_t key;
    struct post_address address[TESS_QUEUE_PEERS_MAX];
};

static void post_free(struct nccl_post *post)
{
    tess__boot_unlisten(&post->listener);
    if (post->wake >= 0)
        close(post->wake);
    free(post);
}

static enum tess_status post_meet(struct nccl_post *post, const struct tess_boot *boot)
{
    struct post_address mine = {0};
    if (getrandom(&mine.key, sizeof(mine.key), 0) != (ssize_t)sizeof(mine.key))
        TESS_FAIL(TESS_ERR_IO, "no random number for the ranks' letters: %s", strerror(errno));
    post->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (post->wake < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open an eventfd: %s", strerror(errno));
    TESS_TRY(tess__boot_listen(boot->address, 0, &post->listener));
    mine.port = tess__boot_port(&post->listener);
    snprintf(mine.host, sizeof(mine.host), "%s", boot->address);
    TESS_TRY(boot->gather(boot->context, &mine, sizeof(mine), post->address));
    post->key = post->address[0].key;
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
    const enum tess_status status = post_meet(post, boot);
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

bool tess__nccl_post_send(struct nccl_family *family, int32_t to, const struct nccl_letter *letter)
{
    const struct nccl_post *post = family->post;
    if (post == NULL)
        return false;
    const struct post_address *address = &post->address[to];
    double limit_s = tess_clock_s() + POST_SEND_S;
    struct nccl_letter keyed = *letter;
    char why[BOOT_WHY_BYTES] = "";
    keyed.key = post->key;
    int fd = tess__boot_connect(address->host, address->port, limit_s, why, sizeof(why));
    bool sent = fd >= 0 && tess__boot_send(fd, &keyed, sizeof(keyed), limit_s, why, sizeof(why));
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

/* Is it of this family, and about ranks that there are? */
static bool post_is_ours(const struct nccl_family *family, const struct nccl_letter *letter)
{
    int32_t n = family->rank_count;
    return letter->key == family->post->key && letter->kind >= NCCL_REQUEST &&
           letter->kind <= NCCL_FAILED && letter->sender >= 0 && letter->sender < n &&
           letter->from >= 0 && letter->from < n && letter->to >= 0 && letter->to < n;
}

bool tess__nccl_post_take(struct nccl_family *family, double wait_s, struct nccl_letter *letter_out)
{
    struct nccl_post *post = family->post;
    struct pollfd watch[BOOT_LISTEN_MAX + 1];
    nfds_t count = 0;
    uint64_t woken;
    watch[count++] = (struct pollfd){.fd = post->wake, .events = POLLIN};
    for (int i = 0; i < post->listener.count; i++)
        watch[count++] = (struct pollfd){.fd = post->listener.fd[i], .events = POLLIN};
    if (poll(watch, count, (int)(wait_s * 1e3)) <= 0)
        return false;
    const ssize_t got = read(post->wake, &woken, sizeof(woken)); /* it wakes no more */
    (void)got;
    int fd = tess__boot_accept(&post->listener);
    if (fd < 0)
        return false;
    bool came = tess__boot_receive(fd, letter_out, sizeof(*letter_out),
                                   tess_clock_s() + POST_RECEIVE_S, NULL, 0);
    close(fd);
    return came && post_is_ours(family, letter_out);
}
