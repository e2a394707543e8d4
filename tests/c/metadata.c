/* Attachments, headers and parts. */
#include "check.h"

static void attachment(const char *name)
{
    static unsigned char most[RGAPS_MAX_ATTACHMENT_BYTES + 1];
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample;
    rgaps_loan_t *loan;
    const void *data;
    uint64_t number;
    size_t bytes;

    OK(rgaps_publisher_create(name, NULL, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    fill(most, sizeof most, 3);

    OK(rgaps_publisher_loan(publisher, 8, &loan));
    FAILS(RGAPS_ERROR_ARGUMENT, "4096", rgaps_loan_set_attachment(loan, most, sizeof most));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_loan_set_attachment(loan, NULL, 1));
    OK(rgaps_loan_set_attachment(loan, most, sizeof most - 1));
    OK(rgaps_loan_publish(loan, NULL));
    OK(rgaps_publisher_push(publisher, "plain", 5));

    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    OK(rgaps_sample_attachment(sample, &data, &bytes));
    CHECK(bytes == RGAPS_MAX_ATTACHMENT_BYTES && is_filled(data, bytes, 3));
    FAILS(RGAPS_ERROR_NOT_FOUND, "no header", rgaps_sample_capture_ns(sample, &number));
    CHECK(rgaps_sample_part_count(sample) == 0);
    OK(rgaps_sample_release(sample));

    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    OK(rgaps_sample_attachment(sample, &data, &bytes));
    CHECK(data == NULL && bytes == 0);
    OK(rgaps_sample_release(sample));
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

static void header(const char *name)
{
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample;
    rgaps_loan_t *loan;
    const char *text;
    uint64_t capture_ns;
    int64_t number;
    double real;

    OK(rgaps_publisher_create(name, NULL, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    OK(rgaps_publisher_loan(publisher, 8, &loan));
    OK(rgaps_loan_set_attachment(loan, "replaced", 8));
    OK(rgaps_loan_set_capture_ns(loan, UINT64_C(1700000000000000000)));
    OK(rgaps_loan_set_frame_id(loan, "left"));
    OK(rgaps_loan_set_int(loan, "exposure_us", -7));
    OK(rgaps_loan_set_double(loan, "gain", 1.5));
    OK(rgaps_loan_set_text(loan, "lens", "wide"));
    FAILS(RGAPS_ERROR_ARGUMENT, "frame_id", rgaps_loan_set_text(loan, "frame_id", "twice"));
    OK(rgaps_loan_publish(loan, NULL));

    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    OK(rgaps_sample_capture_ns(sample, &capture_ns));
    CHECK(capture_ns == UINT64_C(1700000000000000000));
    OK(rgaps_sample_frame_id(sample, &text));
    CHECK(strcmp(text, "left") == 0);
    OK(rgaps_sample_header_int(sample, "exposure_us", &number));
    CHECK(number == -7);
    OK(rgaps_sample_header_double(sample, "gain", &real));
    CHECK(real == 1.5);
    OK(rgaps_sample_header_double(sample, "exposure_us", &real));
    CHECK(real == -7.0);
    OK(rgaps_sample_header_text(sample, "lens", &text));
    CHECK(strcmp(text, "wide") == 0);
    FAILS(RGAPS_ERROR_NOT_FOUND, "'colour'", rgaps_sample_header_text(sample, "colour", &text));
    CHECK(text == NULL);
    FAILS(RGAPS_ERROR_ARGUMENT, "not an integer", rgaps_sample_header_int(sample, "lens", &number));
    OK(rgaps_sample_release(sample));
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

static void parts(const char *name)
{
    const uint64_t image[3] = {4, 5, 3}, depths[2] = {4, 5};
    rgaps_part_t wanted[2] = {{.name = "rgb"}, {.name = "depth"}}, part;
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_sample_t *sample;
    rgaps_loan_t *loan;
    rgaps_dtype_t dtype;
    int index;

    OK(rgaps_publisher_create(name, NULL, &publisher));
    OK(rgaps_subscriber_create(name, NULL, &subscriber));
    OK(rgaps_dtype_parse("uint8", &dtype));
    OK(rgaps_tensor_contiguous(dtype, 3, image, &wanted[0].tensor, NULL));
    OK(rgaps_dtype_parse("float32", &dtype));
    OK(rgaps_tensor_contiguous(dtype, 2, depths, &wanted[1].tensor, NULL));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_publisher_loan_parts(publisher, NULL, 2, &loan));
    OK(rgaps_publisher_loan_parts(publisher, wanted, 2, &loan));
    CHECK(wanted[0].offset == 0 && wanted[0].bytes == 60);
    CHECK(wanted[1].offset == 256 && wanted[1].bytes == 80);
    for (index = 0; index < 2; index++) {
        unsigned char *to = (unsigned char *)rgaps_loan_data(loan) + wanted[index].offset;
        fill(to, wanted[index].bytes, (uint64_t)index);
    }
    OK(rgaps_loan_publish(loan, NULL));
    wanted[1].name = "rgb";
    FAILS(RGAPS_ERROR_ARGUMENT, "two parts are called 'rgb'",
          rgaps_publisher_loan_parts(publisher, wanted, 2, &loan));

    OK(rgaps_subscriber_recv(subscriber, SOON, &sample));
    CHECK(rgaps_sample_part_count(sample) == 2);
    OK(rgaps_sample_part(sample, "depth", &part));
    CHECK(strcmp(part.name, "depth") == 0 && part.offset == 256 && part.bytes == 80);
    CHECK(part.tensor.ndim == 2 && part.tensor.shape[1] == 5 && part.tensor.strides[0] == 5);
    CHECK(part.tensor.dtype.bits == 32);
    CHECK(is_filled((const unsigned char *)rgaps_sample_data(sample) + part.offset, part.bytes, 1));
    OK(rgaps_sample_part_at(sample, 0, &part));
    CHECK(strcmp(part.name, "rgb") == 0);
    CHECK(is_filled(rgaps_sample_data(sample), part.bytes, 0));
    FAILS(RGAPS_ERROR_NOT_FOUND, "'rgb', 'depth'", rgaps_sample_part(sample, "pose", &part));
    FAILS(RGAPS_ERROR_NOT_FOUND, "has 2", rgaps_sample_part_at(sample, 2, &part));
    OK(rgaps_sample_release(sample));
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

int main(void)
{
    attachment(topic("attachment"));
    header(topic("header"));
    parts(topic("parts"));
    return 0;
}
