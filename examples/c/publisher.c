/* Publishes a number and a picture's worth of bytes, ten times a second:
 *
 *     cc publisher.c -o publisher $(pkg-config --cflags --libs rgaps)
 *     ./publisher pictures
 */
#include <rgaps.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 640, HEIGHT = 480 };

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, rgaps_error_message());
    return 1;
}

int main(int argc, char **argv)
{
    const char *topic = argc > 1 ? argv[1] : "pictures";
    const uint64_t shape[2] = {HEIGHT, WIDTH};
    const struct timespec tenth = {0, 100000000};
    rgaps_publisher_t *publisher;
    rgaps_tensor_t tensor;
    rgaps_dtype_t dtype;
    uint64_t number;
    size_t bytes;

    if (rgaps_publisher_create(topic, NULL, &publisher) != RGAPS_OK) {
        return fail("no publisher");
    }
    if (rgaps_dtype_parse("uint8", &dtype) != RGAPS_OK ||
        rgaps_tensor_contiguous(dtype, 2, shape, &tensor, &bytes) != RGAPS_OK) {
        return fail("no tensor");
    }
    for (number = 0;; number++) {
        rgaps_loan_t *loan;

        /* The picture is drawn where its subscribers will read it. */
        if (rgaps_publisher_loan(publisher, bytes, &loan) != RGAPS_OK) {
            return fail("no loan");
        }
        memset(rgaps_loan_data(loan), (int)(number % 256), bytes);
        if (rgaps_loan_set_tensor(loan, &tensor) != RGAPS_OK ||
            rgaps_loan_set_tag(loan, number) != RGAPS_OK ||
            rgaps_loan_publish(loan, NULL) != RGAPS_OK) {
            return fail("not published");
        }
        printf("%llu: %lu bytes to %u subscribers\n", (unsigned long long)number,
               (unsigned long)bytes, rgaps_publisher_subscribers(publisher));
        nanosleep(&tenth, NULL);
    }
}
