// The headers in C++: they compile without a warning, and what they declare links.
#include <rgaps.h>
#include <rgaps/device.h>
#include <rgaps/thesis.h>

#include <cstring>
#include <string>

int main()
{
    rgaps_publisher_options_t options{};
    options.size = sizeof options;
    options.deadline_ns = 1;
    rgaps_publisher_t *publisher = nullptr;
    rgaps_subscriber_t *subscriber = nullptr;
    const std::string topic = "c/header";
    const void *data = nullptr;
    std::size_t bytes = 0;

    if (rgaps_publisher_create(topic.c_str(), &options, &publisher) != RGAPS_OK ||
        rgaps_subscriber_create(topic.c_str(), nullptr, &subscriber) != RGAPS_OK ||
        publisher_push(publisher, 3, const_cast<char *>("c++")) != RGAPS_OK ||
        rgaps_subscriber_pull(subscriber, RGAPS_FOREVER, &data, &bytes) != RGAPS_OK) {
        return 1;
    }
    const bool same = bytes == 3 && std::memcmp(data, "c++", 3) == 0;
    subscriber_destroy(subscriber);
    publisher_destroy(publisher);
    return same ? 0 : 1;
}
