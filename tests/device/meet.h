/* Device topics and ordinary ones: what kernels publish, a subscriber on the host receives, while the process that forwards is
 * killed; and the reverse. Part of check.cu. */
#pragma once

/* The process that forwards. */
int bridge(const Options &options) {
    const std::string domain = options.text("--domain", "");
    use_domain(domain);
    const Topic topic = Topic::open(domain, options.text("--topics", ""), RGAPS_DEVICE_PUBLISHER);
    Board *board = map_boards(int(options.number("--boards", -1)), size_t(options.number("--boards-count", 0))) + options.number("--board", 0);
    rgaps_device_bridge_t *bridge = nullptr;
    const int direction = int(options.number("--mode", 0));
    want(rgaps_device_bridge_create(nullptr, options.text("--name", "").c_str(), topic.mapping, direction, &bridge),
         "rgaps_device_bridge_create");
    __atomic_store_n(&board->is_running, uint64_t(1), __ATOMIC_RELEASE);
    for (uint64_t forwarded = 0, refused = 0;;) {
        want(rgaps_device_bridge_figures(bridge, &forwarded, &refused), "rgaps_device_bridge_figures");
        board->counts[0] = Counts{0, 0, forwarded, refused, 0};
        sleep_ms(1);
    }
}

/* A bridge that runs. */
struct Bridging {
    Work work;
    Board *board;
    pid_t process = 0;
    bool start_it() {
        memset(board, 0, sizeof(Board));
        process = start(work);
        return wait_until_running(*board, process, 60);
    }
    void kill_it() {
        kill(process, SIGKILL);
        waitpid(process, nullptr, 0);
    }
};

Bridging bridging(const Shared &shared, size_t board, const std::string &domain, const Topic &topic, const char *name, uint32_t direction) {
    Bridging one{{}, shared.boards + board};
    one.work.program = "bridge";
    one.work.name = name;
    one.work.domain = domain;
    one.work.topics = {topic.numbers()};
    one.work.boards_fd = shared.fd;
    one.work.boards_count = 4;
    one.work.board = board;
    one.work.mode = direction;
    return one;
}

/* What the host has received. Two bridges are two publishers: between them the tag gives the order, and not the time. */
struct Received {
    uint64_t messages = 0, corrupt = 0;
    std::set<uint64_t> sequences;
    std::vector<uint64_t> words;

    uint64_t repeated() const { return messages - sequences.size(); }
    uint64_t lost() const { return sequences.empty() ? 0 : *sequences.rbegin() - sequences.size(); }

    void take(const rgaps_sample_t *sample, uint64_t bytes_max) {
        const uint64_t sequence = rgaps_sample_tag(sample), bytes = rgaps_sample_bytes(sample);
        Job job{};
        job.bytes = bytes_max;
        job.is_varied = true;
        words.resize(bytes_max / 8);
        uint64_t wrong = bytes != jobs::length_of(job, sequence);
        want(rgaps_sample_read(sample, 0, words.data(), std::min(bytes, bytes_max)), "rgaps_sample_read");
        /* The first word is a time. */
        for (uint64_t word = 1; word < bytes / 8; ++word) wrong += words[word] != jobs::pattern(sequence, word);
        corrupt += wrong != 0;
        ++messages;
        sequences.insert(sequence);
    }
};

/* Kernels publish; the bridge is killed `kills` times. Whether all went well. */
bool meet_hosts(const std::string &domain, const Shared &shared, uint64_t messages, long kills, uint64_t seed, Received *received) {
    const uint64_t bytes = 4096;
    const Topic topic = Topic::create(domain, 64, 80, bytes);
    Bridging between = bridging(shared, 0, domain, topic, "meet/out", RGAPS_DEVICE_TO_HOSTS);
    bool ok = between.start_it();
    rgaps_subscriber_t *subscriber = nullptr;
    rgaps_subscriber_options_t reliable{};
    reliable.size = sizeof reliable;
    reliable.reliable = 1;
    want(rgaps_subscriber_create("meet/out", &reliable, &subscriber), "rgaps_subscriber_create");
    Work work;
    work.task = "publish";
    work.domain = domain;
    work.topics = {"@meet/out"};
    work.boards_fd = shared.fd;
    work.boards_count = 4;
    work.board = 1;
    work.bytes = bytes;
    work.is_varied = true;
    const pid_t publisher = start(work);
    std::mt19937_64 random(seed);
    const double until = seconds() + 120;
    const auto next_kill = [&] { return received->messages + 1 + random() % (2 * messages / uint64_t(kills + 1) + 1); };
    uint64_t kill_at = next_kill(), newest = 0;
    for (bool is_stopped = false; !is_stopped || received->sequences.size() < newest;) {
        rgaps_sample_t *sample = nullptr;
        const rgaps_status_t status = rgaps_subscriber_recv(subscriber, 100000000, &sample);
        if (status == RGAPS_OK) {
            received->take(sample, bytes);
            want(rgaps_sample_release(sample), "rgaps_sample_release");
        } else if (status != RGAPS_ERROR_TIMED_OUT) {
            want(status, "rgaps_subscriber_recv");
        }
        if (seconds() > until) {
            printf("of %llu messages %zu came\n", static_cast<unsigned long long>(newest), received->sequences.size());
            ok = false;
            break;
        }
        if (kills > 0 && received->messages >= kill_at) {
            between.kill_it();
            ok &= between.start_it();
            --kills;
            kill_at = next_kill();
        }
        if (!is_stopped && kills == 0 && received->messages >= messages) {
            want(rgaps_device_mapping_stop(topic.mapping, RGAPS_DEVICE_PUBLISHER_ENDPOINT), "rgaps_device_mapping_stop");
            /* It waits for room until then, which this loop makes. */
            int status_of_process = 0;
            if (waitpid(publisher, &status_of_process, WNOHANG) == publisher) {
                is_stopped = true;
                ok &= WIFEXITED(status_of_process) && WEXITSTATUS(status_of_process) == 0;
                want(rgaps_device_mapping_newest(topic.mapping, &newest), "rgaps_device_mapping_newest");
            }
        }
    }
    between.kill_it();
    rgaps_subscriber_destroy(subscriber);
    rgaps_device_mapping_destroy(topic.mapping);
    return ok;
}

/* The host publishes; a kernel receives and verifies. */
bool meet_kernels(const std::string &domain, const Shared &shared, uint64_t messages, Counts *found) {
    const uint64_t bytes = 4096;
    const Topic topic = Topic::create(domain, 64, 80, bytes);
    Bridging between = bridging(shared, 2, domain, topic, "meet/in", RGAPS_DEVICE_TO_KERNELS);
    bool ok = between.start_it();
    Work work;
    work.task = "receive";
    work.domain = domain;
    work.topics = {"@meet/in"};
    work.seats = {topic.seat()};
    work.boards_fd = shared.fd;
    work.boards_count = 4;
    work.board = 3;
    work.bytes = bytes;
    work.messages = messages;
    work.mode = rgaps::device::reliable;
    work.is_varied = true;
    const pid_t subscriber = start(work);
    ok &= wait_until_running(shared.boards[3], subscriber, 60);
    rgaps_publisher_t *publisher = nullptr;
    rgaps_publisher_options_t options{};
    options.size = sizeof options;
    options.domain = domain.c_str();
    options.deadline_ns = 60000000000;
    want(rgaps_publisher_create("meet/in", &options, &publisher), "rgaps_publisher_create");
    Job job{};
    job.bytes = bytes;
    job.is_varied = true;
    std::vector<uint64_t> words(bytes / 8);
    for (uint64_t sequence = 1; sequence <= messages; ++sequence) {
        const uint64_t length = jobs::length_of(job, sequence);
        for (uint64_t word = 0; word < length / 8; ++word) words[word] = jobs::pattern(sequence, word);
        want(rgaps_publisher_push(publisher, words.data(), length), "rgaps_publisher_push");
    }
    ok &= ended_well(subscriber, 120);
    *found = counts_of(shared.boards[3]);
    between.kill_it();
    rgaps_publisher_destroy(publisher);
    rgaps_device_mapping_destroy(topic.mapping);
    return ok;
}

int meet(const Options &options) {
    const std::string domain = options.text("--domain", back_end);
    const auto messages = uint64_t(options.number("--messages", 2000));
    const long kills = options.number("--kills", 8);
    const auto seed = uint64_t(options.number("--seed", 1));
    use_domain(domain);
    const Shared shared = make_boards(4);
    Received out;
    Counts in{};
    const double begun = seconds();
    bool ok = meet_hosts(domain, shared, messages, kills, seed, &out);
    const double between = seconds();
    ok &= meet_kernels(domain, shared, messages, &in);
    const double ended = seconds();
    const uint64_t lost = out.lost() + (messages - std::min(messages, in.messages)) + in.missed, corrupt = out.corrupt + in.corrupt;
    /* A killed bridge leaves at most one message that it had published and not released. */
    ok &= lost == 0 && corrupt == 0 && out.messages >= messages && out.repeated() <= uint64_t(kills);
    printf("{\"back_end\":\"%s\",\"way\":\"meet\",\"domain\":\"%s\",\"to_hosts\":%llu,\"to_hosts_per_s\":%.0f,\"to_kernels\":%llu,"
           "\"to_kernels_per_s\":%.0f,\"kills\":%ld,\"repeated\":%llu,\"lost\":%llu,\"corrupt\":%llu,\"seed\":%llu,\"ok\":%s}\n",
           back_end, domain.c_str(), static_cast<unsigned long long>(out.messages), double(out.messages) / (between - begun),
           static_cast<unsigned long long>(in.messages), double(in.messages) / (ended - between), kills,
           static_cast<unsigned long long>(out.repeated()), static_cast<unsigned long long>(lost),
           static_cast<unsigned long long>(corrupt), static_cast<unsigned long long>(seed), ok ? "true" : "false");
    return ok ? 0 : 1;
}
