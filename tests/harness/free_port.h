/*
 * Ports for programs that a test starts. A port that is only looked for is free until somebody else
 * is given it, be it for the near end of a connection. So a socket stays bound to it, and does not
 * listen: the system gives the port to nobody then, and who asks for this one with SO_REUSEADDR, as
 * the engine does, may listen there.
 */
#ifndef TESSERA_TESTS_HARNESS_FREE_PORT_H
#define TESSERA_TESTS_HARNESS_FREE_PORT_H

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* Of the loopback; this program's until the next call. */
static inline int32_t free_port(void)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(name);
    static int before = -1;
    const int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (before >= 0)
        close(before);
    before = fd;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &length), 0);
    return ntohs(name.sin_port);
}

#endif
