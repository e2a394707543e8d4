/* Wrong arguments, limits and disagreements: a code and a message each, and no crash. The daemon's
 * host pool has a cap of 64 MiB here. */
#include "check.h"

static void arguments(const char *name)
{
    rgaps_publisher_options_t wrong_size = {.size = 3};
    rgaps_publisher_options_t wrong_domain = {.size = sizeof wrong_domain, .domain = "cuda:x"};
    rgaps_publisher_options_t wrong_type = {.size = sizeof wrong_type, .type_name = "\xff"};
    rgaps_subscriber_options_t wrong_late = {.size = sizeof wrong_late, .late = 9};
    rgaps_subscriber_options_t wrong_held = {.size = sizeof wrong_held, .max_held = 100000};
    rgaps_subscriber_options_t wrong_path = {.size = sizeof wrong_path, .require = 7};
    rgaps_publisher_options_t wrong_slow = {.size = sizeof wrong_slow, .slow_reader = 9};
    rgaps_node_options_t wrong_file = {.size = sizeof wrong_file, .config_file = "/no/such/file"};
    rgaps_node_options_t wrong_realm = {.size = sizeof wrong_realm, .realm = "a realm"};
    rgaps_publisher_t *publisher = (rgaps_publisher_t *)&wrong_size;
    rgaps_subscriber_t *subscriber;
    rgaps_wait_set_t *wait_set;
    rgaps_node_t *node;
    rgaps_dtype_t dtype;
    char long_name[300];

    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    FAILS(RGAPS_ERROR_ARGUMENT, "topic is NULL", rgaps_publisher_create(NULL, NULL, &publisher));
    CHECK(publisher == NULL);
    FAILS(RGAPS_ERROR_ARGUMENT, "publisher is NULL", rgaps_publisher_create(name, NULL, NULL));
    FAILS(RGAPS_ERROR_ARGUMENT, "UTF-8", rgaps_publisher_create("\xc3(", NULL, &publisher));
    FAILS(RGAPS_ERROR_ARGUMENT, "", rgaps_publisher_create("", NULL, &publisher));
    FAILS(RGAPS_ERROR_ARGUMENT, "255", rgaps_publisher_create(long_name, NULL, &publisher));
    FAILS(RGAPS_ERROR_ARGUMENT, "sizeof", rgaps_publisher_create(name, &wrong_size, &publisher));
    FAILS(RGAPS_ERROR_ARGUMENT, "'cuda:x' is not a domain",
          rgaps_publisher_create(name, &wrong_domain, &publisher));
    FAILS(RGAPS_ERROR_ARGUMENT, "type_name", rgaps_publisher_create(name, &wrong_type, &publisher));
    FAILS(RGAPS_ERROR_ARGUMENT, "RGAPS_LATE_LAST",
          rgaps_subscriber_create(name, &wrong_late, &subscriber));
    FAILS(RGAPS_ERROR_ARGUMENT, "max_held", rgaps_subscriber_create(name, &wrong_held, &subscriber));
    FAILS(RGAPS_ERROR_ARGUMENT, "RGAPS_PATH_ZERO_COPY",
          rgaps_subscriber_create(name, &wrong_path, &subscriber));
    FAILS(RGAPS_ERROR_ARGUMENT, "slow_reader",
          rgaps_publisher_create(name, &wrong_slow, &publisher));
    FAILS(RGAPS_ERROR_ARGUMENT, "/no/such/file", rgaps_node_create("test", &wrong_file, &node));
    FAILS(RGAPS_ERROR_ARGUMENT, "realm", rgaps_node_create("test", &wrong_realm, &node));
    FAILS(RGAPS_ERROR_ARGUMENT, "float7", rgaps_dtype_parse("float7", &dtype));
    FAILS(RGAPS_ERROR_ARGUMENT, "wait_set is NULL", rgaps_wait_set_create(NULL, NULL));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_publisher_push(NULL, name, 1));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_subscriber_release(NULL, NULL));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_subscriber_wait(NULL, 0));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_loan_publish(NULL, NULL));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_sample_tensor(NULL, NULL));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_wait_set_wait(NULL, 0, NULL, 0, NULL));
    OK(rgaps_sample_release(NULL));
    OK(rgaps_sample_release_on(NULL, NULL));
    OK(rgaps_wait_set_create(NULL, &wait_set));
    rgaps_wait_set_destroy(wait_set);

    /* What has no code gives nothing for NULL. */
    CHECK(rgaps_sample_data(NULL) == NULL && rgaps_sample_bytes(NULL) == 0);
    CHECK(rgaps_loan_data(NULL) == NULL && rgaps_loan_bytes(NULL) == 0);
    CHECK(rgaps_publisher_domain(NULL) == NULL && rgaps_publisher_subscribers(NULL) == 0);
    CHECK(rgaps_publisher_mismatched(NULL) == 0 && rgaps_subscriber_mismatched(NULL) == 0);
    CHECK(rgaps_sample_domain(NULL) == NULL && rgaps_subscriber_held(NULL) == 0);
    rgaps_loan_drop(NULL);
    rgaps_node_destroy(NULL);
    rgaps_listener_destroy(NULL);
    rgaps_wait_set_destroy(NULL);
}

static void limits(const char *name)
{
    rgaps_publisher_options_t few = {.size = sizeof few, .max_loans = 1};
    rgaps_subscriber_options_t one = {.size = sizeof one, .max_held = 1};
    rgaps_publisher_t *publisher;
    rgaps_subscriber_t *subscriber;
    rgaps_loan_t *loan, *other, *gone;
    rgaps_sample_t *sample;
    rgaps_tensor_t tensor;
    rgaps_dtype_t dtype;
    const uint64_t shape[2] = {30, 40};
    const uint64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const void *data, *second;
    int local = 0;

    OK(rgaps_publisher_create(name, &few, &publisher));
    FAILS(RGAPS_ERROR_TIMED_OUT, "0 of 1",
          rgaps_publisher_wait_for_subscribers(publisher, 1, 10 * MS));
    FAILS(RGAPS_ERROR_ARGUMENT, "data is NULL", rgaps_publisher_push(publisher, NULL, 5));
    FAILS(RGAPS_ERROR_TOO_LARGE, name, rgaps_publisher_loan(publisher, (size_t)1 << 40, &loan));
    FAILS(RGAPS_ERROR_TOO_LARGE, "cap", rgaps_publisher_push(publisher, &local, SIZE_MAX));
    FAILS(RGAPS_ERROR_ARGUMENT, "alignment",
          rgaps_publisher_loan_aligned(publisher, 10, 3, &loan));
    OK(rgaps_publisher_loan_aligned(publisher, 4800, 4096, &loan));
    CHECK((uintptr_t)rgaps_loan_data(loan) % 4096 == 0);
    FAILS(RGAPS_ERROR_TOO_MANY_LOANS, "max_loans", rgaps_publisher_loan(publisher, 1, &other));
    CHECK(other == NULL);
    FAILS(RGAPS_ERROR_ARGUMENT, "do not fit", rgaps_loan_write(loan, 4799, shape, 2));
    FAILS(RGAPS_ERROR_ARGUMENT, "do not fit", rgaps_loan_write(loan, SIZE_MAX, shape, 2));
    FAILS(RGAPS_ERROR_ARGUMENT, "cannot be cut", rgaps_loan_truncate(loan, 4801));

    OK(rgaps_dtype_parse("float32", &dtype));
    CHECK(dtype.code == RGAPS_DTYPE_FLOAT && dtype.bits == 32 && dtype.lanes == 1);
    FAILS(RGAPS_ERROR_ARGUMENT, "dimensions",
          rgaps_tensor_contiguous(dtype, 9, nine, &tensor, NULL));
    FAILS(RGAPS_ERROR_ARGUMENT, "shape is NULL",
          rgaps_tensor_contiguous(dtype, 1, NULL, &tensor, NULL));
    OK(rgaps_tensor_contiguous(dtype, 2, shape, &tensor, NULL));
    OK(rgaps_loan_set_tensor(loan, &tensor));
    tensor.strides[0] = 41;
    FAILS(RGAPS_ERROR_ARGUMENT, "spans", rgaps_loan_set_tensor(loan, &tensor));
    tensor.ndim = 1000000;
    FAILS(RGAPS_ERROR_ARGUMENT, "dimensions", rgaps_loan_set_tensor(loan, &tensor));
    tensor.ndim = 1;
    tensor.dtype.bits = 0;
    FAILS(RGAPS_ERROR_ARGUMENT, "rgaps_dtype_parse", rgaps_loan_set_tensor(loan, &tensor));
    FAILS(RGAPS_ERROR_ARGUMENT, "NULL", rgaps_loan_set_tensor(loan, NULL));

    OK(rgaps_subscriber_create(name, &one, &subscriber));
    FAILS(RGAPS_ERROR_EMPTY, name,
          rgaps_subscriber_try_recv(subscriber, &sample));
    CHECK(sample == NULL);
    FAILS(RGAPS_ERROR_TIMED_OUT, name, rgaps_subscriber_wait(subscriber, 5 * MS));
    FAILS(RGAPS_ERROR_TIMED_OUT, name, rgaps_subscriber_pull(subscriber, 5 * MS, &data, NULL));
    FAILS(RGAPS_ERROR_ARGUMENT, "data is NULL", rgaps_subscriber_pull(subscriber, 0, NULL, NULL));
    memset(rgaps_loan_data(loan), 7, 4800);
    gone = loan;
    OK(rgaps_loan_publish(loan, NULL));
    /* The handle is gone: dropping it again touches nothing. */
    rgaps_loan_drop(gone);
    OK(rgaps_publisher_push(publisher, &local, sizeof local));
    OK(rgaps_subscriber_pull(subscriber, SOON, &data, NULL));
    FAILS(RGAPS_ERROR_TOO_MANY_HELD, "max_held",
          rgaps_subscriber_pull(subscriber, SOON, &second, NULL));
    FAILS(RGAPS_ERROR_NOT_HELD, "not pulled", rgaps_subscriber_release(subscriber, &local));
    OK(rgaps_subscriber_release(subscriber, data));
    OK(rgaps_subscriber_pull(subscriber, SOON, &second, NULL));
    /* Destroying the subscriber releases what it pulled; twice is harmless. */
    rgaps_subscriber_destroy(subscriber);
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

/* This program's environment names no CUDA driver. */
static void without_cuda(const char *name)
{
    rgaps_publisher_options_t gpu = {.size = sizeof gpu, .domain = "cuda"};
    rgaps_publisher_options_t automatic = {.size = sizeof automatic, .domain = "auto"};
    rgaps_publisher_t *publisher;

    FAILS(RGAPS_ERROR_DOMAIN_UNAVAILABLE, "no GPU can be used",
          rgaps_publisher_create(name, &gpu, &publisher));
    OK(rgaps_publisher_create(name, &automatic, &publisher));
    CHECK(strcmp(rgaps_publisher_domain(publisher), "host") == 0);
    rgaps_publisher_destroy(publisher);
}

static void disagreements(const char *name)
{
    rgaps_publisher_options_t plain = {.size = sizeof plain,
                                       .type_name = "image",
                                       .best_effort = 1,
                                       .history_messages = 4};
    rgaps_publisher_options_t tensors = {.size = sizeof tensors, .type_name = "uint8[1]"};
    rgaps_publisher_options_t strict = {.size = sizeof strict,
                                        .history_messages = 2,
                                        .deadline_ns = 30 * MS};
    rgaps_publisher_options_t hungry = {.size = sizeof hungry, .history_messages = 64};
    rgaps_subscriber_options_t typed = {.size = sizeof typed, .type_name = "points"};
    rgaps_subscriber_options_t reliable = {.size = sizeof reliable, .reliable = 1};
    rgaps_subscriber_options_t deep = {.size = sizeof deep, .depth = 1u << 20};
    rgaps_publisher_options_t gpu = {.size = sizeof gpu,
                                     .domain = "cuda:GPU-00000000-0000-0000-0000-0000000000ff"};
    rgaps_publisher_t *publisher, *other;
    rgaps_subscriber_t *subscriber;
    rgaps_loan_t *loan;
    uint64_t sequence;
    char second[160], third[160];
    static unsigned char megabytes[4 << 20];
    int i;

    OK(rgaps_publisher_create(name, &plain, &publisher));
    /* Who does not match is not refused, and both are told. */
    for (i = 0; i < 2; i++) {
        const rgaps_subscriber_options_t *wrong[] = {&typed, &reliable};

        OK(rgaps_subscriber_create(name, wrong[i], &subscriber));
        CHECK(rgaps_subscriber_mismatched(subscriber) == 1);
        CHECK(rgaps_publisher_mismatched(publisher) == 1);
        CHECK(rgaps_publisher_subscribers(publisher) == 0);
        rgaps_subscriber_destroy(subscriber);
    }
    CHECK(rgaps_publisher_mismatched(publisher) == 0);
    FAILS(RGAPS_ERROR_ARGUMENT, "depth", rgaps_subscriber_create(name, &deep, &subscriber));
    CHECK(subscriber == NULL);
    FAILS(RGAPS_ERROR_DOMAIN_MISMATCH, "", rgaps_publisher_create(name, &gpu, &other));
    rgaps_publisher_destroy(publisher);
    OK(rgaps_publisher_create(name, &tensors, &publisher));
    FAILS(RGAPS_ERROR_TYPE_MISMATCH, "plain bytes", rgaps_publisher_push(publisher, "1", 1));
    rgaps_publisher_destroy(publisher);

    /* A reliable subscriber holds the publisher back until its deadline; the loan remains. */
    snprintf(second, sizeof second, "%s/held back", name);
    OK(rgaps_publisher_create(second, &strict, &publisher));
    OK(rgaps_subscriber_create(second, &reliable, &subscriber));
    OK(rgaps_publisher_push(publisher, "1", 1));
    OK(rgaps_publisher_push(publisher, "2", 1));
    OK(rgaps_publisher_loan(publisher, 1, &loan));
    *(char *)rgaps_loan_data(loan) = '3';
    FAILS(RGAPS_ERROR_BACK_PRESSURED, second, rgaps_loan_publish(loan, &sequence));
    CHECK(rgaps_loan_bytes(loan) == 1);
    for (i = 0; i < 2; i++) {
        const void *data;

        OK(rgaps_subscriber_pull(subscriber, SOON, &data, NULL));
        CHECK(*(const char *)data == '1' + i);
        OK(rgaps_subscriber_release(subscriber, data));
    }
    OK(rgaps_loan_publish(loan, &sequence));
    CHECK(sequence == 2);
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);

    /* History that a held-back reader still needs fills the pool. */
    snprintf(third, sizeof third, "%s/full", name);
    OK(rgaps_publisher_create(third, &hungry, &publisher));
    OK(rgaps_subscriber_create(third, &reliable, &subscriber));
    for (i = 0; i < 64; i++) {
        rgaps_status_t status = rgaps_publisher_push(publisher, megabytes, sizeof megabytes);

        if (status != RGAPS_OK) {
            FAILS(RGAPS_ERROR_POOL_FULL, "pool.host.cap", status);
            break;
        }
    }
    CHECK(i >= 8 && i < 17);
    rgaps_subscriber_destroy(subscriber);
    rgaps_publisher_destroy(publisher);
}

int main(void)
{
    char name[128];

    CHECK(strcmp(rgaps_version(), "0.1.0") == 0);
    CHECK(strcmp(rgaps_error_message(), "") == 0);
    CHECK(strcmp(rgaps_status_name(RGAPS_OK), "RGAPS_OK") == 0);
    CHECK(strcmp(rgaps_status_name(RGAPS_ERROR_INTERNAL), "RGAPS_ERROR_INTERNAL") == 0);
    CHECK(strcmp(rgaps_status_name(RGAPS_ERROR_PATH_TOO_SLOW), "RGAPS_ERROR_PATH_TOO_SLOW") == 0);
    CHECK(strcmp(rgaps_status_name(-12345), "RGAPS_ERROR_?") == 0);
    snprintf(name, sizeof name, "%s", topic("errors"));
    arguments(name);
    limits(name);
    snprintf(name, sizeof name, "%s", topic("disagreements"));
    disagreements(name);
    without_cuda(topic("without cuda"));
    return 0;
}
