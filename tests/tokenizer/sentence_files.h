/* Models of SentencePiece for tests, written here from the description of their format. */
#ifndef TESSERA_TESTS_TOKENIZER_SENTENCE_FILES_H
#define TESSERA_TESTS_TOKENIZER_SENTENCE_FILES_H

/* `kind`: "bpe", with byte fallback, or "unigram", without; as in sentence.py. */
void sentence_write(const char *path, const char *kind);

#define SENTENCE_BPE_VOCABULARY (3 + 256 + 1 + 29)

#endif
