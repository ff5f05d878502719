/*
 * Asks mpirun of MPICH (and of what is made from it) by PMI 1: lines of "cmd=... key=value ..."
 * over a socket that each process inherits. MPI itself sends the same commands on it later, when
 * it starts; it asks line by line, so nothing of its own is taken. Protocol: MPICH's
 * src/pmi/src/pmi_v1.c speaks it; init, the space's name, put, barrier, get and finalize are all
 * that is used.
 */
#include "base/clock.h"
#include "comm/boot/boot_find.h"
#include "comm/boot/boot_socket.h"
#include "tessera/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PMI_LINE_BYTES 1024
#define PMI_KEY        "tessera_rank_0"
#define PMI_LEAVE_S    1.0

struct pmi {
    int fd;
    double limit_s;
    char line[PMI_LINE_BYTES];
};

/* One byte at a time: what follows the line is not ours. */
static bool pmi_read_line(struct pmi *pmi)
{
    for (char *at = pmi->line; at < pmi->line + sizeof(pmi->line); at++) {
        if (!tess__boot_receive(pmi->fd, at, 1, pmi->limit_s, NULL, 0))
            return false;
        if (*at == '\n') {
            *at = '\0';
            return true;
        }
    }
    return false;
}

/* Ask, and take the answer, which is of the kind `answer` and has no other code than 0. */
static enum tess_status pmi_ask(struct pmi *pmi, const char *question, const char *answer)
{
    const bool answered =
        tess__boot_send(pmi->fd, question, strlen(question), pmi->limit_s, NULL, 0) &&
        pmi_read_line(pmi);
    const char *code = answered ? strstr(pmi->line, " rc=") : NULL;
    if (!answered || strncmp(pmi->line, answer, strlen(answer)) != 0 ||
        (code != NULL && strtol(code + 4, NULL, 10) != 0))
        TESS_FAIL(TESS_ERR_COMM,
                  "mpirun does not help the ranks to find each other (PMI 1, '%.*s': %s%.80s%s); "
                  "give all ranks the host of rank 0 and a free port of it in MASTER_ADDR and "
                  "MASTER_PORT",
                  (int)strcspn(question, " \n"), question, answered ? "'" : "no answer",
                  answered ? pmi->line : "", answered ? "'" : "");
    return TESS_OK;
}

/* The value of " key=" in the line, up to the next space. */
static enum tess_status pmi_value(const struct pmi *pmi, const char *key,
                                  char value[TESS_BOOT_ADDRESS_BYTES])
{
    const char *at = strstr(pmi->line, key);
    const size_t length = at != NULL ? strcspn(at + strlen(key), " ") : 0;
    if (length == 0 || length >= TESS_BOOT_ADDRESS_BYTES)
        TESS_FAIL(TESS_ERR_COMM, "mpirun answers '%.80s', in which there is no%s", pmi->line, key);
    memcpy(value, at + strlen(key), length);
    value[length] = '\0';
    return TESS_OK;
}

static enum tess_status pmi_exchange(struct pmi *pmi, int32_t rank, const char *name,
                                     char address[TESS_BOOT_ADDRESS_BYTES])
{
    char question[PMI_LINE_BYTES];
    if (rank == 0) {
        if (address[0] == '\0')
            TESS_FAIL(TESS_ERR_COMM, "the host of rank 0 has no address for other hosts");
        snprintf(question, sizeof(question), "cmd=put kvsname=%s key=" PMI_KEY " value=%s\n", name,
                 address);
        TESS_TRY(pmi_ask(pmi, question, "cmd=put_result"));
    }
    TESS_TRY(pmi_ask(pmi, "cmd=barrier_in\n", "cmd=barrier_out"));
    snprintf(question, sizeof(question), "cmd=get kvsname=%s key=" PMI_KEY "\n", name);
    TESS_TRY(pmi_ask(pmi, question, "cmd=get_result"));
    return pmi_value(pmi, " value=", address);
}

/* -1: there is none. */
static int pmi_descriptor(void)
{
    const char *text = getenv("PMI_FD");
    char *end = NULL;
    const long fd = text != NULL ? strtol(text, &end, 10) : -1;
    return text == NULL || end == text || *end != '\0' || fd < 0 || fd > 1 << 20 ||
                   fcntl((int)fd, F_GETFD) < 0
               ? -1
               : (int)fd;
}

enum tess_status tess__boot_pmi(int32_t rank, double timeout_s, char name[TESS_BOOT_ADDRESS_BYTES],
                                char address[TESS_BOOT_ADDRESS_BYTES])
{
    struct pmi pmi = {.fd = pmi_descriptor(), .limit_s = tess_clock_s() + timeout_s};
    const char *text = getenv("PMI_FD");
    if (pmi.fd < 0)
        TESS_FAIL(TESS_ERR_USAGE, "PMI_FD is '%.20s', which is no open descriptor",
                  text != NULL ? text : "");
    TESS_TRY(pmi_ask(&pmi, "cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init"));
    TESS_TRY(pmi_ask(&pmi, "cmd=get_my_kvsname\n", "cmd=my_kvsname"));
    TESS_TRY(pmi_value(&pmi, " kvsname=", name));
    return address != NULL ? pmi_exchange(&pmi, rank, name, address) : TESS_OK;
}

void tess__boot_pmi_leave(void)
{
    static const char word[] = "cmd=finalize\n";
    struct pmi pmi = {.fd = pmi_descriptor(), .limit_s = tess_clock_s() + PMI_LEAVE_S};
    /* Where MPI has taken leave, the other end is gone. */
    if (pmi.fd >= 0 && tess__boot_send(pmi.fd, word, sizeof(word) - 1, pmi.limit_s, NULL, 0))
        (void)pmi_read_line(&pmi);
}
