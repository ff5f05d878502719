/* A server for one page, see scrape.h. */
#include "run/scrape.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SCRAPE_CLIENTS       8 /* at a time; others wait in the kernel's queue */
#define SCRAPE_QUEUE         16
#define SCRAPE_LIMIT_S       2.0  /* from a client's arrival to the last byte for it */
#define SCRAPE_REQUEST_BYTES 4096 /* a request's line and headers */

struct scrape_client {
    int fd; /* -1: free */
    double until_s;
    size_t got, sent, count;
    char *reply; /* [count]; NULL: the request is not complete */
    char request[SCRAPE_REQUEST_BYTES + 1];
};

struct tess__scrape {
    int fd, port;
    struct scrape_client client[SCRAPE_CLIENTS];
};

/* ---- listening ------------------------------------------------------------------------------- */

/* A socket that listens at one of the addresses; -1, and errno. */
static int scrape_listen(const struct addrinfo *first)
{
    const int on = 1;
    for (const struct addrinfo *at = first; at; at = at->ai_next) {
        const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SCRAPE_QUEUE) == 0)
            return fd;
        const int error = errno;
        close(fd);
        errno = error;
    }
    return -1;
}

static int scrape_find_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } address = {.any = {.sa_family = AF_UNSPEC}};
    socklen_t bytes = sizeof(address);
    if (getsockname(fd, &address.any, &bytes) != 0)
        return 0;
    return ntohs(address.any.sa_family == AF_INET6 ? address.six.sin6_port : address.four.sin_port);
}

enum tess_status tess__scrape_open(const char *host, int port, const char *option,
                                   struct tess__scrape **scrape_out)
{
    const struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const char *name = host[0] ? host : "127.0.0.1";
    struct addrinfo *found;
    char service[16];
    snprintf(service, sizeof(service), "%d", port);
    const int failed = getaddrinfo(name, service, &wanted, &found);
    if (failed != 0)
        TESS_FAIL(TESS_ERR_USAGE, "%s: there is no address %s: %s", option, name,
                  gai_strerror(failed));
    const int fd = scrape_listen(found);
    const int error = errno;
    freeaddrinfo(found);
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "%s: cannot listen at port %d of %s: %s; choose another port",
                  option, port, name, strerror(error));
    struct tess__scrape *scrape = calloc(1, sizeof(*scrape));
    if (!scrape) {
        close(fd);
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for a server", option);
    }
    scrape->fd = fd;
    scrape->port = scrape_find_port(fd);
    for (int c = 0; c < SCRAPE_CLIENTS; c++)
        scrape->client[c].fd = -1;
    *scrape_out = scrape;
    return TESS_OK;
}

int tess__scrape_port(const struct tess__scrape *scrape)
{
    return scrape->port;
}

/* ---- clients --------------------------------------------------------------------------------- */

static void scrape_drop(struct scrape_client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    free(client->reply);
    client->fd = -1;
    client->reply = NULL;
}

void tess__scrape_close(struct tess__scrape *scrape)
{
    if (!scrape)
        return;
    for (int c = 0; c < SCRAPE_CLIENTS; c++)
        scrape_drop(&scrape->client[c]);
    close(scrape->fd);
    free(scrape);
}

static void scrape_accept(struct tess__scrape *scrape)
{
    for (int c = 0; c < SCRAPE_CLIENTS; c++) {
        struct scrape_client *client = &scrape->client[c];
        if (client->fd >= 0)
            continue;
        client->fd = accept4(scrape->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client->fd < 0)
            return;
        client->until_s = tess_clock_s() + SCRAPE_LIMIT_S;
        client->got = client->sent = client->count = 0;
    }
}

/* The reply to a request whose headers are complete, or that is too long. */
static void scrape_answer(struct scrape_client *client, const char *page)
{
    const char *status = "200 OK", *type = "text/plain; version=0.0.4; charset=utf-8", *body = page;
    char method[8] = "", path[64] = "", end = '\0';
    const int words = sscanf(client->request, "%7s %63s%c", method, path, &end);
    const bool head = strcmp(method, "HEAD") == 0;
    if (client->got == SCRAPE_REQUEST_BYTES)
        status = "431 Request Header Fields Too Large", body = "the request is too long\n";
    else if (words < 3 || (!head && strcmp(method, "GET") != 0))
        status = "405 Method Not Allowed", body = "only GET and HEAD\n";
    else if (strcmp(path, "/metrics") != 0)
        status = "404 Not Found", body = "the page is /metrics\n";
    else if (!page)
        status = "503 Service Unavailable", body = "no memory for the page\n";
    const int count = asprintf(&client->reply,
                               "HTTP/1.0 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                               "Connection: close\r\n\r\n%s",
                               status, type, strlen(body), head ? "" : body);
    if (count < 0)
        client->reply = NULL;
    client->count = count < 0 ? 0 : (size_t)count;
}

/* Read what is there. True: the request is complete, or too long. False also for a client that is
 * gone, which is dropped. */
static bool scrape_read(struct scrape_client *client)
{
    const size_t room = SCRAPE_REQUEST_BYTES - client->got;
    const ssize_t now = recv(client->fd, client->request + client->got, room, 0);
    if (now == 0 || (now < 0 && errno != EAGAIN && errno != EINTR))
        scrape_drop(client);
    if (now <= 0)
        return false;
    client->got += (size_t)now;
    client->request[client->got] = '\0';
    return client->got == SCRAPE_REQUEST_BYTES || strstr(client->request, "\r\n\r\n") ||
           strstr(client->request, "\n\n");
}

static void scrape_send(struct scrape_client *client)
{
    while (client->sent < client->count) {
        const ssize_t now = send(client->fd, client->reply + client->sent,
                                 client->count - client->sent, MSG_NOSIGNAL);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0 && errno == EAGAIN)
            return;
        if (now <= 0)
            break;
        client->sent += (size_t)now;
    }
    (void)shutdown(client->fd, SHUT_WR);
    scrape_drop(client);
}

void tess__scrape_serve(struct tess__scrape *scrape, char *(*page)(void *context), void *context)
{
    char *text = NULL;
    bool made = false;
    scrape_accept(scrape);
    for (int c = 0; c < SCRAPE_CLIENTS; c++) {
        struct scrape_client *client = &scrape->client[c];
        if (client->fd >= 0 && !client->reply && scrape_read(client)) {
            text = made ? text : page(context);
            made = true;
            scrape_answer(client, text);
        }
        if (client->fd >= 0 && client->reply)
            scrape_send(client);
        if (client->fd >= 0 && tess_clock_s() >= client->until_s)
            scrape_drop(client);
    }
    free(text);
}
