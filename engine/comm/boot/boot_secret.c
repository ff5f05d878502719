/* The secret of a job: where it comes from, and proofs of having it; see boot_secret.h. */
#include "comm/boot/boot_secret.h"

#include "tessera/check.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET_MAGIC UINT64_C(0x31726f6f64617274) /* "tradoor1" */
#define SECRET_LEAST 16
#define SECRET_MOST  4096

/* What a hash is of: no proof of one kind serves as another. */
static const char secret_of_text[] = "tessera secret from a text";
static const char secret_of_word[] = "tessera secret of a meeting";
static const char secret_of_connecting[] = "tessera connects";
static const char secret_of_accepting[] = "tessera accepts";
static const char secret_of_message[] = "tessera signs a message";

static bool secret_random(void *bytes, size_t count)
{
    return getrandom(bytes, count, 0) == (ssize_t)count;
}

/* ---- where it comes from --------------------------------------------------------------------- */

static enum tess_status secret_from_text(const char *text, size_t length, const char *where,
                                         struct tess_secret *secret_out)
{
    struct hmac_sha256_ctx hash;
    if (length < SECRET_LEAST || length > SECRET_MOST)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s has a secret of %zu characters: it must have %d to %d, from random numbers "
                  "(head -c 32 /dev/urandom | base64)",
                  where, length, SECRET_LEAST, SECRET_MOST);
    hmac_sha256_set_key(&hash, sizeof(secret_of_text), (const uint8_t *)secret_of_text);
    hmac_sha256_update(&hash, length, (const uint8_t *)text);
    hmac_sha256_digest(&hash, sizeof(secret_out->key), secret_out->key);
    return TESS_OK;
}

/* The file is opened first and then examined: what is examined is what is read. */
static enum tess_status secret_check_file(const char *path, int fd)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        TESS_FAIL(TESS_ERR_USAGE, "the secret's file '%s' is no regular file", path);
    if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "the secret's file '%s' has mode %03o, so that others may read or write it: "
                  "chmod 600",
                  path, (unsigned)(about.st_mode & 0777));
    if (about.st_uid != geteuid() && about.st_uid != 0)
        TESS_FAIL(TESS_ERR_USAGE, "the secret's file '%s' belongs to another user (%u)", path,
                  (unsigned)about.st_uid);
    return TESS_OK;
}

static enum tess_status secret_read(const char *path, int fd, struct tess_secret *secret_out)
{
    char text[SECRET_MOST + 2], where[256];
    size_t length = 0;
    ssize_t got = 1;
    TESS_TRY(secret_check_file(path, fd));
    while (length < sizeof(text) && ((got = read(fd, text + length, sizeof(text) - length)) > 0 ||
                                     (got < 0 && errno == EINTR)))
        length += got > 0 ? (size_t)got : 0;
    if (got < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read the secret's file '%s': %s", path, strerror(errno));
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r'))
        length--;
    snprintf(where, sizeof(where), "the file '%.200s'", path);
    return secret_from_text(text, length, where, secret_out);
}

enum tess_status tess_secret_from_file(const char *path, struct tess_secret *secret_out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open the secret's file '%s': %s", path, strerror(errno));
    const enum tess_status status = secret_read(path, fd, secret_out);
    close(fd);
    return status;
}

enum tess_status tess_secret_from_environment(struct tess_secret *secret_out)
{
    const char *text = getenv(TESS_SECRET), *path = getenv(TESS_SECRET_FILE);
    *secret_out = (struct tess_secret){{0}};
    if (text != NULL && text[0] != '\0')
        return secret_from_text(text, strlen(text), TESS_SECRET, secret_out);
    return path != NULL && path[0] != '\0' ? tess_secret_from_file(path, secret_out) : TESS_OK;
}

void tess_secret_text(const struct tess_secret *secret, char text[TESS_SECRET_TEXT_BYTES])
{
    for (size_t i = 0; i < sizeof(secret->key); i++)
        snprintf(text + 2 * i, 3, "%02x", secret->key[i]);
}

void tess_secret_derive(const struct tess_secret *secret, const void *word, size_t bytes,
                        struct tess_secret *secret_out)
{
    struct hmac_sha256_ctx hash;
    hmac_sha256_set_key(&hash, sizeof(secret->key), secret->key);
    hmac_sha256_update(&hash, sizeof(secret_of_word), (const uint8_t *)secret_of_word);
    hmac_sha256_update(&hash, bytes, word);
    hmac_sha256_digest(&hash, sizeof(secret_out->key), secret_out->key);
}

/* ---- signatures ---------------------------------------------------------------------------- */

void tess_secret_sign(const struct tess_secret *secret, const void *message, size_t bytes,
                      unsigned char proof[TESS_SECRET_PROOF_BYTES])
{
    struct hmac_sha256_ctx hash;
    hmac_sha256_set_key(&hash, sizeof(secret->key), secret->key);
    hmac_sha256_update(&hash, sizeof(secret_of_message), (const uint8_t *)secret_of_message);
    hmac_sha256_update(&hash, bytes, message);
    hmac_sha256_digest(&hash, TESS_SECRET_PROOF_BYTES, proof);
}

bool tess_secret_signed(const struct tess_secret *secret, const void *message, size_t bytes,
                        const unsigned char proof[TESS_SECRET_PROOF_BYTES])
{
    unsigned char right[TESS_SECRET_PROOF_BYTES];
    tess_secret_sign(secret, message, bytes, right);
    return nettle_memeql_sec(right, proof, sizeof(right)) != 0;
}

/* ---- proofs ---------------------------------------------------------------------------------- */

static void secret_proof(const struct tess_secret *secret, const char *role, size_t role_bytes,
                         const struct tess_secret_challenge *challenge,
                         const struct tess_secret_answer *answer,
                         unsigned char proof[TESS_SECRET_PROOF_BYTES])
{
    struct hmac_sha256_ctx hash;
    hmac_sha256_set_key(&hash, sizeof(secret->key), secret->key);
    hmac_sha256_update(&hash, role_bytes, (const uint8_t *)role);
    hmac_sha256_update(&hash, sizeof(challenge->nonce), challenge->nonce);
    hmac_sha256_update(&hash, sizeof(answer->nonce), answer->nonce);
    hmac_sha256_update(&hash, sizeof(answer->greeting), answer->greeting);
    hmac_sha256_digest(&hash, TESS_SECRET_PROOF_BYTES, proof);
}

bool tess_secret_challenge(struct tess_secret_challenge *challenge)
{
    challenge->magic = SECRET_MAGIC;
    return secret_random(challenge->nonce, sizeof(challenge->nonce));
}

bool tess_secret_prove(const struct tess_secret *secret,
                       const struct tess_secret_challenge *challenge,
                       const unsigned char greeting[TESS_GREETING_BYTES],
                       struct tess_secret_answer *answer)
{
    memcpy(answer->greeting, greeting, sizeof(answer->greeting));
    if (challenge->magic != SECRET_MAGIC || !secret_random(answer->nonce, sizeof(answer->nonce)))
        return false;
    secret_proof(secret, secret_of_connecting, sizeof(secret_of_connecting), challenge, answer,
                 answer->proof);
    return true;
}

bool tess_secret_check(const struct tess_secret *secret,
                       const struct tess_secret_challenge *challenge,
                       const struct tess_secret_answer *answer,
                       unsigned char proof[TESS_SECRET_PROOF_BYTES])
{
    unsigned char right[TESS_SECRET_PROOF_BYTES];
    secret_proof(secret, secret_of_connecting, sizeof(secret_of_connecting), challenge, answer,
                 right);
    const bool same = nettle_memeql_sec(right, answer->proof, sizeof(right)) != 0;
    secret_proof(secret, secret_of_accepting, sizeof(secret_of_accepting), challenge, answer,
                 proof);
    return same;
}

bool tess_secret_confirm(const struct tess_secret *secret,
                         const struct tess_secret_challenge *challenge,
                         const struct tess_secret_answer *answer,
                         const unsigned char proof[TESS_SECRET_PROOF_BYTES])
{
    unsigned char right[TESS_SECRET_PROOF_BYTES];
    secret_proof(secret, secret_of_accepting, sizeof(secret_of_accepting), challenge, answer,
                 right);
    return nettle_memeql_sec(right, proof, sizeof(right)) != 0;
}
