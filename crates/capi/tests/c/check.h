// What the test programs share: calls that have to succeed, to fail, and values that have to be equal.
#ifndef CHECK_H
#define CHECK_H

#include <anabranch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                                                                                         \
    do {                                                                                                                 \
        anabranch_status status_ = (call);                                                                               \
        if (status_ != ANABRANCH_OK) {                                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, anabranch_last_error());                       \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

// The call returns this status, and the text has these words.
#define FAILS(call, status, words)                                                                                       \
    do {                                                                                                                 \
        anabranch_status got_ = (call);                                                                                  \
        if (got_ != (status) || strstr(anabranch_last_error(), words) == NULL) {                                         \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, anabranch_status_text(got_),               \
                    anabranch_last_error());                                                                             \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

#define EQUAL(given, wanted)                                                                                             \
    do {                                                                                                                 \
        double given_ = (double)(given), wanted_ = (double)(wanted);                                                     \
        if (given_ != wanted_) {                                                                                         \
            fprintf(stderr, "%s:%d: %s is %g, not %g\n", __FILE__, __LINE__, #given, given_, wanted_);                   \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

#endif
