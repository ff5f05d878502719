/*
 * The secret of a job, by which its processes recognise each other: a connection whose other end
 * does not have it is closed. It is never sent. Each side proves by HMAC-SHA256 over fresh random
 * numbers of both sides that it has it, so what an eavesdropper has recorded is of no use:
 *
 *     accepting    challenge: magic, nonce            -->   connecting
 *     accepting    <--    answer: greeting, nonce, proof    connecting
 *     accepting    (checks)   proof                   -->   connecting (checks)
 *
 * A greeting names the protocol, the job and the ranks of both sides: a proof is for these alone.
 * What follows on the connection is neither encrypted nor signed.
 *
 * Without a secret the same is sent with a key of zeros, which everybody can do.
 *
 * These functions do not wait: with connections that do not block, each side keeps its challenge
 * and answer and goes on when enough bytes have come. boot_door.h has the same for those who may
 * wait.
 */
#ifndef TESSERA_COMM_BOOT_BOOT_SECRET_H
#define TESSERA_COMM_BOOT_BOOT_SECRET_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tess_boot;

#define TESS_SECRET_KEY_BYTES   32
#define TESS_SECRET_NONCE_BYTES 16
#define TESS_SECRET_PROOF_BYTES 32
#define TESS_GREETING_BYTES     32

/* The variables that have a job's secret, or the name of a file with it. */
#define TESS_SECRET      "TESS_JOB_SECRET"
#define TESS_SECRET_FILE "TESS_JOB_SECRET_FILE"

struct tess_secret {
    unsigned char key[TESS_SECRET_KEY_BYTES]; /* zeros: there is none */
};

/* ---- where it comes from --------------------------------------------------------------------- */

/* TESS_SECRET, else the file that TESS_SECRET_FILE names, else zeros. TESS_ERR_USAGE where it is
 * too short, and as below. */
enum tess_status tess_secret_from_environment(struct tess_secret *secret_out);
/* A regular file of this user or root that nobody else may read or write, with 16 to 4096
 * characters; the end of its last line does not count. TESS_ERR_USAGE, TESS_ERR_IO. */
enum tess_status tess_secret_from_file(const char *path, struct tess_secret *secret_out);
/* As a text for TESS_SECRET, for processes that this one starts. */
#define TESS_SECRET_TEXT_BYTES (2 * TESS_SECRET_KEY_BYTES + 1)
void tess_secret_text(const struct tess_secret *secret, char text[TESS_SECRET_TEXT_BYTES]);

/* A secret for one purpose: from this one and a word. */
void tess_secret_derive(const struct tess_secret *secret, const void *word, size_t bytes,
                        struct tess_secret *secret_out);
/*
 * The secret of connections that ranks make after they have met: from that of the job and `word`,
 * random bytes of one rank that all ranks have gathered over the boot. So it differs from meeting
 * to meeting, and where the job has no secret, only ranks and those who listen on the wire have it.
 */
void tess_boot_secret(const struct tess_boot *boot, const void *word, size_t bytes,
                      struct tess_secret *secret_out);

/* ---- signatures ---------------------------------------------------------------------------- */

/* Of a message that is its own proof, where none can ask first. A recorded one is as good as the
 * first: messages need numbers. */
void tess_secret_sign(const struct tess_secret *secret, const void *message, size_t bytes,
                      unsigned char proof_out[TESS_SECRET_PROOF_BYTES]);
/* Takes the same time whatever is wrong. */
bool tess_secret_signed(const struct tess_secret *secret, const void *message, size_t bytes,
                        const unsigned char proof[TESS_SECRET_PROOF_BYTES]);

/* ---- proofs ---------------------------------------------------------------------------------- */

/* What goes over the wire, as it lies in memory. */
struct tess_secret_challenge {
    uint64_t magic;
    unsigned char nonce[TESS_SECRET_NONCE_BYTES];
};

struct tess_secret_answer {
    unsigned char greeting[TESS_GREETING_BYTES];
    unsigned char nonce[TESS_SECRET_NONCE_BYTES];
    unsigned char proof[TESS_SECRET_PROOF_BYTES];
};

_Static_assert(sizeof(struct tess_secret_challenge) == 24 &&
                   sizeof(struct tess_secret_answer) == 80,
               "what goes over the wire has no holes");

/* Accepting, first: one for each connection. False: the system gives no random numbers. */
bool tess_secret_challenge(struct tess_secret_challenge *challenge_out);
/* Connecting, when the challenge has come: what to send. False: as above, or it is no challenge. */
bool tess_secret_prove(const struct tess_secret *secret,
                       const struct tess_secret_challenge *challenge,
                       const unsigned char greeting[TESS_GREETING_BYTES],
                       struct tess_secret_answer *answer_out);
/* Accepting, when the answer has come: is it of one who has the secret? Then `proof` is to be sent.
 * Takes the same time whatever is wrong. */
bool tess_secret_check(const struct tess_secret *secret,
                       const struct tess_secret_challenge *challenge,
                       const struct tess_secret_answer *answer,
                       unsigned char proof_out[TESS_SECRET_PROOF_BYTES]);
/* Connecting, when that has come: does the accepting side have the secret? */
bool tess_secret_confirm(const struct tess_secret *secret,
                         const struct tess_secret_challenge *challenge,
                         const struct tess_secret_answer *answer,
                         const unsigned char proof[TESS_SECRET_PROOF_BYTES]);

#endif
