/* Reads what publisher.c publishes, without a copy:
 *
 *     cc subscriber.c -o subscriber $(pkg-config --cflags --libs rgaps)
 *     ./subscriber pictures
 */
#include <rgaps.h>

#include <stdio.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, rgaps_error_message());
    return 1;
}

int main(int argc, char **argv)
{
    const char *topic = argc > 1 ? argv[1] : "pictures";
    rgaps_subscriber_t *subscriber;

    if (rgaps_subscriber_create(topic, NULL, &subscriber) != RGAPS_OK) {
        return fail("no subscriber");
    }
    for (;;) {
        rgaps_sample_t *sample;
        rgaps_tensor_t tensor;

        if (rgaps_subscriber_recv(subscriber, RGAPS_FOREVER, &sample) != RGAPS_OK) {
            return fail("nothing received");
        }
        printf("%llu: %lu bytes at %p, %llu missed", (unsigned long long)rgaps_sample_tag(sample),
               (unsigned long)rgaps_sample_bytes(sample), rgaps_sample_data(sample),
               (unsigned long long)rgaps_sample_missed(sample));
        if (rgaps_sample_tensor(sample, &tensor) == RGAPS_OK && tensor.ndim == 2) {
            printf(", %llu by %llu", (unsigned long long)tensor.shape[1],
                   (unsigned long long)tensor.shape[0]);
        }
        printf("\n");
        fflush(stdout);
        rgaps_sample_release(sample);
    }
}
