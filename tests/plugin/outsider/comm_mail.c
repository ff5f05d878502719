/*
 * An outsider's communicator: each message is a file in a folder that all ranks can see. Only the
 * messages are here; tess_comm_net_open builds the collectives from them. Nothing but public
 * headers.
 */
#include "outsider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAIL_RANKS_MAX 64
#define MAIL_BYTES     256 /* of a path */

struct mail_options {
    const char *folder;
};

static const struct tess_option mail_option_table[] = {
    {"folder", TESS_OPTION_STRING, offsetof(struct mail_options, folder), "/tmp", 0, 0, NULL,
     "Where the folder of messages is made."},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

/* How many messages of one tag went from one rank to another one: the next one's number. */
struct mail_count {
    struct mail_count *next;
    int32_t from, to;
    uint32_t tag, number;
};

struct mail {
    struct tess_transport transport; /* first */
    char folder[MAIL_BYTES / 2];
    int32_t host[MAIL_RANKS_MAX]; /* all 0: taken to be one host */
    struct mail_count *counts;
    struct mail_request {
        bool used;
        void *data; /* NULL: a send, which is complete at once */
        size_t bytes;
        char path[MAIL_BYTES];
    } request[TESS_TRANSPORT_REQUESTS];
};

/* Takes a free request, and names the file of the next message. */
static enum tess_status mail_begin(struct mail *mail, int32_t from, int32_t to, uint32_t tag,
                                   uint32_t *request_out)
{
    struct mail_count *count = mail->counts;
    uint32_t r = 0;

    while (r < TESS_TRANSPORT_REQUESTS && mail->request[r].used)
        r++;
    while (count != NULL && (count->from != from || count->to != to || count->tag != tag))
        count = count->next;
    if (count == NULL && (count = calloc(1, sizeof(*count))) != NULL) {
        *count = (struct mail_count){mail->counts, from, to, tag, 0};
        mail->counts = count;
    }
    if (r == TESS_TRANSPORT_REQUESTS || count == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a message to rank %d", (int)to);
    mail->request[r] = (struct mail_request){.used = true};
    snprintf(mail->request[r].path, MAIL_BYTES, "%s/%d.%d.%u.%u", mail->folder, (int)from, (int)to,
             tag, count->number++);
    *request_out = r;
    return TESS_OK;
}

/* A reader sees the whole file or none: it is written under another name first. */
static enum tess_status mail_write(const char *path, const void *data, size_t bytes)
{
    char partial[MAIL_BYTES + 8];
    snprintf(partial, sizeof(partial), "%s.part", path);
    FILE *file = fopen(partial, "w");
    const bool written = file != NULL && fwrite(data, 1, bytes, file) == bytes;
    if (file == NULL || fclose(file) != 0 || !written || rename(partial, path) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write '%s'", path);
    return TESS_OK;
}

static enum tess_status mail_send(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                  const void *data, size_t bytes, uint32_t *request_out)
{
    struct mail *mail = (struct mail *)transport;
    TESS_TRY(mail_begin(mail, transport->rank, peer, tag, request_out));
    return mail_write(mail->request[*request_out].path, data, bytes);
}

static enum tess_status mail_recv(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                  void *data, size_t bytes, uint32_t *request_out)
{
    struct mail *mail = (struct mail *)transport;
    TESS_TRY(mail_begin(mail, peer, transport->rank, tag, request_out));
    mail->request[*request_out].data = data;
    mail->request[*request_out].bytes = bytes;
    return TESS_OK;
}

static enum tess_status mail_test(struct tess_transport *transport, uint32_t number, bool *done_out)
{
    struct mail *mail = (struct mail *)transport;
    struct mail_request *request = &mail->request[number];
    char path[MAIL_BYTES];

    *done_out = request->data == NULL;
    FILE *file = *done_out ? NULL : fopen(request->path, "r");
    if (file != NULL) {
        *done_out = fread(request->data, 1, request->bytes, file) == request->bytes;
        fclose(file);
        if (!*done_out)
            TESS_FAIL(TESS_ERR_COMM, "'%s' is too short", request->path);
        (void)unlink(request->path);
    }
    request->used = !*done_out;
    snprintf(path, sizeof(path), "%s/aborted", mail->folder);
    if (!*done_out && access(path, F_OK) == 0)
        TESS_FAIL(TESS_ERR_ABORTED, "another rank failed");
    return TESS_OK;
}

static enum tess_status mail_wait(struct tess_transport *transport, double timeout_s)
{
    const struct timespec pause = {.tv_nsec = timeout_s > 0 ? 50000 : 0};
    (void)transport;
    nanosleep(&pause, NULL);
    return TESS_OK;
}

static void mail_abort(struct tess_transport *transport, const char *reason)
{
    char path[MAIL_BYTES];
    snprintf(path, sizeof(path), "%s/aborted", ((struct mail *)transport)->folder);
    (void)mail_write(path, reason, strlen(reason));
}

static void mail_close(struct tess_transport *transport)
{
    struct mail *mail = (struct mail *)transport;
    char path[MAIL_BYTES];

    snprintf(path, sizeof(path), "%s/rank.%d", mail->folder, (int)transport->rank);
    (void)unlink(path);
    (void)rmdir(mail->folder); /* the last rank's succeeds */
    while (mail->counts != NULL) {
        struct mail_count *count = mail->counts;
        mail->counts = count->next;
        free(count);
    }
    free(mail);
}

static const char *mail_host_name(const struct tess_transport *transport, int32_t rank)
{
    (void)transport;
    (void)rank;
    return "this host";
}

static const struct tess_transport_ops mail_ops = {.name = "mail",
                                                   .host_name = mail_host_name,
                                                   .send = mail_send,
                                                   .recv = mail_recv,
                                                   .test = mail_test,
                                                   .wait = mail_wait,
                                                   .abort = mail_abort,
                                                   .close = mail_close};

/* Rank 0 makes the folder and the others learn its name. */
static enum tess_status mail_open(const struct tess_comm_request *request,
                                  struct tess_comm **comm_out)
{
    const struct mail_options *options = request->options;
    char own[MAIL_BYTES / 2] = "", all[MAIL_RANKS_MAX][MAIL_BYTES / 2], path[MAIL_BYTES];
    struct mail *mail = calloc(1, sizeof(*mail));

    if (mail == NULL || request->rank_count > MAIL_RANKS_MAX) {
        free(mail);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the messages of %d ranks", request->rank_count);
    }
    snprintf(own, sizeof(own), "%s/tessera.mail.XXXXXX", options->folder);
    if (request->rank == 0 && mkdtemp(own) == NULL)
        own[0] = '\0';
    mail->transport = (struct tess_transport){.ops = &mail_ops,
                                              .rank = request->rank,
                                              .rank_count = request->rank_count,
                                              .host = mail->host};
    enum tess_status status = request->boot->gather(request->boot->context, own, sizeof(own), all);
    if (status == TESS_OK && all[0][0] == '\0')
        status = tess_fail(TESS_ERR_IO, "cannot make a folder in '%s'", options->folder);
    snprintf(mail->folder, sizeof(mail->folder), "%s", all[0]);
    snprintf(path, sizeof(path), "%s/rank.%d", mail->folder, (int)request->rank);
    if (status == TESS_OK)
        status = mail_write(path, "", 0);
    if (status != TESS_OK) {
        mail_close(&mail->transport);
        return status;
    }
    return tess_comm_net_open(&mail->transport, request->world, request->order, request->timeout_s,
                              comm_out);
}

const struct tess_communicator_ops outsider_mail = {
    .abi = TESS_ABI,
    .name = "mail",
    .summary = "messages are files in a folder",
    .host = TESS_COMM_PROCESSES | TESS_COMM_STARTED,
    .boot = true,
    .options = mail_option_table,
    .options_size = sizeof(struct mail_options),
    .open = mail_open,
};
