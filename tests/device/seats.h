/* Seats that the daemon frees: publisher, subscribers and the process that forwards are killed at random, a subscriber releases nothing,
 * and nobody but the daemon evicts them or gives seats back. Part of check.cu. */
#pragma once

/* Waits until the publisher has gone on for more than the ring holds. */
bool goes_on(const Topic &topic, uint64_t messages) {
    uint64_t before = 0, now = 0;
    want(rgaps_device_mapping_newest(topic.mapping, &before), "rgaps_device_mapping_newest");
    const double until = seconds() + 60;
    while (now < before + messages && seconds() < until) {
        want(rgaps_device_mapping_newest(topic.mapping, &now), "rgaps_device_mapping_newest");
        sleep_ms(1);
    }
    if (now < before + messages) printf("the publisher does not go on: message %llu\n", static_cast<unsigned long long>(now));
    return now >= before + messages;
}

int seats(const Options &options) {
    const std::string domain = options.text("--domain", back_end);
    const long kills = options.number("--kills", 12);
    const auto seed = uint64_t(options.number("--seed", 1));
    const uint64_t bytes = 256;
    const char *name = "seats";
    use_domain(domain);
    const Topic topic = Topic::create(domain, 64, 80, bytes);
    const Shared shared = make_boards(5);
    Bridging between = bridging(shared, 3, domain, topic, name, RGAPS_DEVICE_TO_HOSTS);
    bool ok = between.start_it();
    /* Three are left: one for each subscriber. Those of the dead are wanted again. */
    for (uint32_t taken = 1; taken + 3 < RGAPS_DEVICE_MAX_SUBSCRIBERS; ++taken) topic.seat();
    Member members[3] = {{"publisher", {}, true}, {"reliable subscriber", {}, false}, {"reliable subscriber", {}, false}};
    const auto work_of = [&](size_t number, const char *task) {
        Work work;
        work.task = task;
        work.domain = domain;
        work.topics = {std::string("@") + name};
        work.seats = {own_seat};
        work.boards_fd = shared.fd;
        work.boards_count = 5;
        work.board = number;
        work.bytes = bytes;
        work.is_varied = true;
        work.mode = rgaps::device::reliable;
        return work;
    };
    const auto begin = [&](size_t number) {
        Member &member = members[number];
        memset(shared.boards + number, 0, sizeof(Board));
        member.work = work_of(number, member.is_publisher ? "publish" : "receive");
        if (member.is_publisher) member.work.seats.clear();
        member.process = start(member.work);
        if (!member.is_publisher) ok &= wait_until_running(shared.boards[number], member.process, 60);
    };
    for (size_t number : {1, 2, 0}) begin(number);
    const pid_t hung = start(work_of(4, "hang"));
    ok &= wait_until_running(shared.boards[4], hung, 60);
    ok &= ended_well(hung, 60) && static_cast<int64_t>(shared.boards[4].status) == int64_t(Status::evicted);
    printf("a subscriber that releases nothing was told %lld (evicted is %lld)\n", static_cast<long long>(shared.boards[4].status),
           static_cast<long long>(Status::evicted));
    ok &= goes_on(topic, 200);
    std::mt19937_64 random(seed);
    for (long killed = 0; killed < kills && ok; ++killed) {
        sleep_ms(long(random() % 50));
        const size_t number = random() % 4;
        if (number == 3) {
            between.kill_it();
            ok &= between.start_it();
        } else {
            Member &member = members[number];
            kill(member.process, SIGKILL);
            waitpid(member.process, nullptr, 0);
            ++member.kills;
            member.account(shared.boards[number]);
            /* Another takes its place when the daemon has freed the seat. */
            if (!member.is_publisher) ok &= goes_on(topic, 200);
            begin(number);
        }
        ok &= goes_on(topic, 200);
    }
    uint64_t received = 0, lost = 0, corrupt = 0;
    for (size_t number : {0, 1, 2}) {
        Member &member = members[number];
        const uint32_t endpoint = member.is_publisher ? RGAPS_DEVICE_PUBLISHER_ENDPOINT : uint32_t(shared.boards[number].seat);
        want(rgaps_device_mapping_stop(topic.mapping, endpoint), "rgaps_device_mapping_stop");
        ok &= ended_well(member.process, 60);
        member.account(shared.boards[number]);
        printf("%-24s %6ld lives %6ld kills %12llu messages %8llu lost %8llu corrupt\n", member.name, member.lives, member.kills,
               static_cast<unsigned long long>(member.messages), static_cast<unsigned long long>(member.lost),
               static_cast<unsigned long long>(member.corrupt));
        if (!member.is_publisher) received += member.messages;
        lost += member.lost;
        corrupt += member.corrupt;
    }
    /* Before seats are taken, whose next subscribers clear what the evicted held. */
    const uint64_t leaked = lost_blocks(topic, shared.boards);
    /* Their processes have ended, too. */
    uint32_t free_seats = 0, seat = 0;
    const double until = seconds() + 60;
    while (free_seats < 3 && seconds() < until) {
        free_seats += rgaps_device_mapping_take_seat(topic.mapping, &seat) == RGAPS_OK;
        sleep_ms(1);
    }
    between.kill_it();
    ok &= lost == 0 && corrupt == 0 && leaked == 0 && received > 0 && free_seats == 3;
    printf("{\"back_end\":\"%s\",\"way\":\"seats\",\"domain\":\"%s\",\"kills\":%ld,\"received\":%llu,\"lost\":%llu,\"corrupt\":%llu,"
           "\"leaked_blocks\":%llu,\"free_seats\":%u,\"seed\":%llu,\"ok\":%s}\n",
           back_end, domain.c_str(), kills, static_cast<unsigned long long>(received), static_cast<unsigned long long>(lost),
           static_cast<unsigned long long>(corrupt), static_cast<unsigned long long>(leaked), free_seats,
           static_cast<unsigned long long>(seed), ok ? "true" : "false");
    rgaps_device_mapping_destroy(topic.mapping);
    return ok ? 0 : 1;
}
