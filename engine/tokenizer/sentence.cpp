/* See sentence.h. The library's exceptions and C++ types stay in this file. */
#include "tokenizer/sentence.h"

#include "tessera/log.h"

#include <sentencepiece_processor.h>

#include <memory>
#include <string>
#include <vector>

struct tess__sentence {
    std::string file, bytes;
    sentencepiece::SentencePieceProcessor begins, goes_on;
    bool may_go_on = false; /* goes_on is loaded */
    std::vector<int> piece;
};

/*
 * A ModelProto whose normalizer_spec (field 3) has add_dummy_prefix (field 3) off: the same message
 * twice is merged, and the last value counts.
 */
static const char sentence_no_prefix[] = {3 << 3 | 2, 2, 3 << 3, 0};

static enum tess_status sentence_load(sentencepiece::SentencePieceProcessor *processor,
                                      const std::string &file, const std::string &bytes)
{
    const auto status = processor->LoadFromSerializedProto(bytes);
    if (status.ok())
        return TESS_OK;
    /* Of what does not parse the library names its own source alone. */
    const std::string why = status.error_message();
    return tess_fail(TESS_ERR_DATA, "%s: not a model of SentencePiece, truncated or damaged%s%s",
                     file.c_str(), why.find(".cc(") == why.npos ? ": " : "",
                     why.find(".cc(") == why.npos ? why.c_str() : "");
}

enum tess_status tess__sentence_open(const char *file, const char *bytes, size_t count,
                                     struct tess__sentence **sentence_out)
try {
    auto sentence = std::make_unique<tess__sentence>();
    sentence->file = file;
    sentence->bytes.assign(bytes, count);
    const enum tess_status status =
        sentence_load(&sentence->begins, sentence->file, sentence->bytes);
    if (status == TESS_OK)
        *sentence_out = sentence.release();
    return status;
} catch (const std::exception &error) {
    return tess_fail(TESS_ERR_MEMORY, "%s: %s", file, error.what());
}

void tess__sentence_close(struct tess__sentence *sentence)
{
    delete sentence;
}

int32_t tess__sentence_count(const struct tess__sentence *sentence)
{
    return sentence->begins.GetPieceSize();
}

int32_t tess__sentence_end(const struct tess__sentence *sentence)
{
    return sentence->begins.eos_id();
}

const char *tess__sentence_piece(const struct tess__sentence *sentence, int32_t piece,
                                 size_t *bytes_out, enum tess__sentence_kind *kind_out)
{
    const auto &processor = sentence->begins;
    const std::string &text = processor.IdToPiece(piece);
    *bytes_out = text.size();
    *kind_out = processor.IsByte(piece)      ? TESS__SENTENCE_BYTE
                : processor.IsControl(piece) ? TESS__SENTENCE_CONTROL
                : processor.IsUnknown(piece) ? TESS__SENTENCE_UNKNOWN
                : processor.IsUnused(piece)  ? TESS__SENTENCE_UNUSED
                                             : TESS__SENTENCE_TEXT;
    return text.data();
}

enum tess_status tess__sentence_encode(struct tess__sentence *sentence, const char *text,
                                       size_t bytes, int begins, const int **piece_out,
                                       size_t *count_out)
try {
    if (!begins && !sentence->may_go_on) {
        const std::string without(sentence_no_prefix, sizeof(sentence_no_prefix));
        const enum tess_status status =
            sentence_load(&sentence->goes_on, sentence->file, sentence->bytes + without);
        if (status != TESS_OK)
            return status;
        sentence->may_go_on = true;
    }
    const auto &processor = begins ? sentence->begins : sentence->goes_on;
    const auto status = processor.Encode({text, bytes}, &sentence->piece);
    if (!status.ok())
        return tess_fail(TESS_ERR_DATA, "%s fails on this text: %s", sentence->file.c_str(),
                         status.ToString().c_str());
    *piece_out = sentence->piece.data();
    *count_out = sentence->piece.size();
    return TESS_OK;
} catch (const std::exception &error) {
    return tess_fail(TESS_ERR_MEMORY, "%s: %s", sentence->file.c_str(), error.what());
}
