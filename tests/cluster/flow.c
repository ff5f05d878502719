/*
 * flow: what one TCP connection carries, as the receiver sees it.
 *
 *     flow serve PORT            take one connection, count what comes, print Mbit/s
 *     flow send HOST PORT S M    send zeros for S seconds, at M Mbit/s at most (0: no limit)
 *
 * The time runs from the first byte to the last. It checks the links of the lab, not Tessera.
 */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char flow_block[1 << 16];

static double flow_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int flow_fail(const char *what)
{
    perror(what);
    return 1;
}

static int flow_serve(const char *port)
{
    struct addrinfo *at, hints = {.ai_family = AF_INET,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    if (getaddrinfo(NULL, port, &hints, &at) != 0)
        return flow_fail("getaddrinfo");
    int on = 1, listener = socket(at->ai_family, at->ai_socktype, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(listener, at->ai_addr, at->ai_addrlen) != 0 || listen(listener, 1) != 0)
        return flow_fail(port);
    freeaddrinfo(at);
    int from = accept(listener, NULL, NULL);
    if (from < 0)
        return flow_fail("accept");
    double first = 0, last = 0, bytes = 0;
    ssize_t count;
    while ((count = read(from, flow_block, sizeof(flow_block))) > 0) {
        last = flow_now();
        if (first == 0)
            first = last; /* these bytes came before the clock was started */
        else
            bytes += (double)count;
    }
    if (count < 0)
        return flow_fail("read");
    printf("%.1f\n", last > first ? bytes * 8e-6 / (last - first) : 0.0);
    return 0;
}

/* The server may be started at the same time: it is waited for. */
static int flow_connect(const char *host, const char *port)
{
    struct addrinfo *at, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(host, port, &hints, &at) != 0)
        return -1;
    for (int i = 0; i < 100; i++) {
        int to = socket(at->ai_family, at->ai_socktype, 0);
        if (connect(to, at->ai_addr, at->ai_addrlen) == 0) {
            freeaddrinfo(at);
            return to;
        }
        close(to);
        usleep(50000);
    }
    freeaddrinfo(at);
    return -1;
}

static int flow_send(const char *host, const char *port, double seconds, double mbit)
{
    unsigned int bytes_per_s = (unsigned int)(mbit / 8e-6);
    int to = flow_connect(host, port);
    if (to < 0)
        return flow_fail(host);
    if (bytes_per_s > 0 &&
        setsockopt(to, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, sizeof(bytes_per_s)) != 0)
        return flow_fail("SO_MAX_PACING_RATE");
    double end = flow_now() + seconds;
    while (flow_now() < end)
        if (write(to, flow_block, sizeof(flow_block)) < 0)
            return flow_fail("write");
    return close(to);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return flow_serve(argv[2]);
    if (argc == 6 && strcmp(argv[1], "send") == 0)
        return flow_send(argv[2], argv[3], strtod(argv[4], NULL), strtod(argv[5], NULL));
    fprintf(stderr, "usage: flow serve PORT | flow send HOST PORT SECONDS MBIT\n");
    return 2;
}
