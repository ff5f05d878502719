/* In the place of sentence.cpp where SentencePiece was not there when Tessera was built. */
#include "tokenizer/sentence.h"

#include "tessera/check.h"

enum tess_status tess__sentence_open(const char *file, const char *bytes, size_t count,
                                     struct tess__sentence **sentence_out)
{
    (void)bytes, (void)count, (void)sentence_out;
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "%s: a model of SentencePiece, without which this Tessera was built: install "
              "libsentencepiece-dev and build again",
              file);
}

void tess__sentence_close(struct tess__sentence *sentence)
{
    (void)sentence;
}

/* None is ever open. */

int32_t tess__sentence_count(const struct tess__sentence *sentence)
{
    (void)sentence;
    return 0;
}

int32_t tess__sentence_end(const struct tess__sentence *sentence)
{
    (void)sentence;
    return -1;
}

const char *tess__sentence_piece(const struct tess__sentence *sentence, int32_t piece,
                                 size_t *bytes_out, enum tess__sentence_kind *kind_out)
{
    (void)sentence, (void)piece;
    *bytes_out = 0;
    *kind_out = TESS__SENTENCE_UNUSED;
    return "";
}

enum tess_status tess__sentence_encode(struct tess__sentence *sentence, const char *text,
                                       size_t bytes, int begins, const int **piece_out,
                                       size_t *count_out)
{
    (void)sentence, (void)text, (void)bytes, (void)begins, (void)piece_out, (void)count_out;
    return TESS_ERR_UNSUPPORTED;
}
