/* Kernels of two hosts: what one publishes, the other receives, through a bridge on each host and the links between them. One host runs
 * far-publish, the other far-receive (tools/device/far.sh). Part of check.cu. */
#pragma once

constexpr const char *far_name = "far";
constexpr double far_limit_s = 300;

/* A process whose kernel works on the topic. The first host's messages are numbered from 1, as the other's are, so a message that is
 * lost, repeated or moved has wrong words. */
Work far_work(const Options &options, const Shared &shared, const Topic &topic, const char *task, uint64_t bytes) {
    Work work;
    work.task = task;
    work.domain = options.text("--domain", back_end);
    work.topics = {topic.numbers()};
    work.boards_fd = shared.fd;
    work.boards_count = 1;
    work.messages = uint64_t(options.number("--messages", 2000));
    work.bytes = bytes;
    work.mode = rgaps::device::reliable;
    work.is_varied = work.is_whole = true;
    return work;
}

int far_publish(const Options &options) {
    const uint64_t bytes = uint64_t(options.number("--bytes", 4096));
    const Shared shared = make_boards(1);
    const Topic topic = Topic::create(options.text("--domain", back_end), 64, 80, bytes);
    Work work = far_work(options, shared, topic, "publish", bytes);
    const uint64_t messages = work.messages;
    work.messages = messages / 2;
    use_domain(work.domain);
    rgaps_device_bridge_t *bridge = nullptr;
    want(rgaps_device_bridge_create(nullptr, far_name, topic.mapping, RGAPS_DEVICE_TO_HOSTS, &bridge), "rgaps_device_bridge_create");
    bool ok = true;
    /* What is published before the links subscribe does not cross. The second kernel goes on where the first one ended. */
    for (int kernel = 0; kernel < 2 && ok; ++kernel) {
        printf("each byte of the input starts a kernel: %d of 2\n", kernel + 1);
        if (getchar() == EOF) die("no byte came");
        ok = ended_well(start(work), far_limit_s);
    }
    uint64_t forwarded = 0, refused = 0;
    const double until = seconds() + far_limit_s;
    while (ok && forwarded < messages) {
        want(rgaps_device_bridge_figures(bridge, &forwarded, &refused), "rgaps_device_bridge_figures");
        ok &= refused == 0 && seconds() < until;
        sleep_ms(1);
    }
    rgaps_device_bridge_destroy(bridge);
    rgaps_device_mapping_destroy(topic.mapping);
    printf("{\"back_end\":\"%s\",\"way\":\"far-publish\",\"messages\":%llu,\"refused\":%llu,\"ok\":%s}\n", back_end,
           static_cast<unsigned long long>(forwarded), static_cast<unsigned long long>(refused), ok ? "true" : "false");
    return ok ? 0 : 1;
}

int far_receive(const Options &options) {
    const uint64_t bytes = uint64_t(options.number("--bytes", 4096));
    const Shared shared = make_boards(1);
    const Topic topic = Topic::create(options.text("--domain", back_end), 64, 80, bytes);
    Work work = far_work(options, shared, topic, "receive", bytes);
    use_domain(work.domain);
    work.seats = {topic.seat()};
    const pid_t kernel = start(work);
    bool ok = wait_until_running(shared.boards[0], kernel, 60);
    rgaps_device_bridge_t *bridge = nullptr;
    want(rgaps_device_bridge_create(nullptr, far_name, topic.mapping, RGAPS_DEVICE_TO_KERNELS, &bridge), "rgaps_device_bridge_create");
    ok &= ended_well(kernel, far_limit_s);
    const Counts found = counts_of(shared.boards[0]);
    const uint64_t lost = work.messages - std::min(work.messages, found.messages) + found.missed;
    ok &= lost == 0 && found.corrupt == 0;
    rgaps_device_bridge_destroy(bridge);
    rgaps_device_mapping_destroy(topic.mapping);
    printf("{\"back_end\":\"%s\",\"way\":\"far\",\"messages\":%llu,\"lost\":%llu,\"corrupt\":%llu,\"ok\":%s}\n", back_end,
           static_cast<unsigned long long>(found.messages), static_cast<unsigned long long>(lost),
           static_cast<unsigned long long>(found.corrupt), ok ? "true" : "false");
    return ok ? 0 : 1;
}
