/*
 * Device topics between processes: the demo with kills, and figures. Compiled by nvcc its kernels run on a GPU; compiled by a
 * C++ compiler, threads take their place.
 *
 *     check demo    [--domain D] [--seconds N] [--kills N] [--seed N]
 *     check latency [--domain D] [--bytes N] [--subscribers N] [--messages N] [--peer D]
 *     check bare    [--domain D] [--messages N] [--peer D]
 *     check accesses [--domain D] [--peer D]
 *     check rate    [--domain D] [--bytes N] [--blocks N] [--messages N]
 *     check meet    [--domain D] [--messages N] [--kills N] [--seed N]    with ordinary topics; wants a daemon
 *     check seats   [--domain D] [--kills N] [--seed N]                   seats that the daemon frees; wants one with a short stall_ms
 *     check far-publish|far-receive [--domain D] [--messages N]           one on each of two linked hosts; want daemons
 *
 * Each process is this program again. The last line is JSON; the exit code is 1 if a word was wrong, a message was lost
 * untold, a reliable subscriber missed one, or a job failed.
 */
#include "jobs.h"
#include "lanes.h"

#include "rgaps/device.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

using jobs::Board;
using jobs::Counts;
using jobs::Job;
using jobs::Task;
using rgaps::device::Status;

namespace {

[[noreturn]] void die(const std::string &what) {
    fprintf(stderr, "check: %s\n", what.c_str());
    exit(1);
}

void want(rgaps_status_t status, const char *call) {
    if (status != RGAPS_OK) die(std::string(call) + ": " + rgaps_status_name(status) + ": " + rgaps_error_message());
}

double seconds() { return double(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)) / 1e9; }

void sleep_ms(long ms) {
    timespec time{ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, nullptr);
}

/* Options by name, with their text. */
struct Options {
    std::map<std::string, std::string> values;
    std::string text(const char *name, const char *none) const {
        const auto found = values.find(name);
        return found == values.end() ? none : found->second;
    }
    long number(const char *name, long none) const {
        const auto found = values.find(name);
        return found == values.end() ? none : atol(found->second.c_str());
    }
};

/* Memory that the processes of a run share. */
struct Shared {
    int fd = -1;
    Board *boards = nullptr;
};

Board *map_boards(int fd, size_t count) {
    void *at = mmap(nullptr, count * sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) die("mmap failed");
    return static_cast<Board *>(at);
}

Shared make_boards(size_t count) {
    Shared shared;
    shared.fd = memfd_create("boards", 0);
    if (shared.fd < 0 || ftruncate(shared.fd, off_t(count * sizeof(Board)))) die("no shared memory");
    shared.boards = map_boards(shared.fd, count);
    return shared;
}

Counts counts_of(const Board &board) {
    return board.counts[__atomic_load_n(&board.current, __ATOMIC_ACQUIRE) & 1];
}

/* A kernel launch: each block runs one job, with so many threads. */
#if defined(__CUDACC__)

constexpr const char *back_end = "cuda";
constexpr uint32_t default_threads = 128;
constexpr uint32_t threads_max = 512;

struct SharedCount {
    unsigned long long *wrong;
    __device__ void add(uint64_t more) { atomicAdd(wrong, more); }
    template <class Group>
    __device__ uint64_t take(const Group &group) {
        const uint64_t taken = *wrong;
        group.sync();
        if (group.thread_rank() == 0) *wrong = 0;
        return taken;
    }
};

__global__ void __launch_bounds__(threads_max, 1) run_jobs(const Job *all) {
    __shared__ unsigned long long wrong;
    const auto group = cooperative_groups::this_thread_block();
    if (group.thread_rank() == 0) wrong = 0;
    group.sync();
    SharedCount count{&wrong};
    /* A copy, in registers: behind each acquire a load of the job would go to the GPU's memory again. */
    const Job job = all[blockIdx.x];
    jobs::run(group, job, &count);
}

void want(cudaError_t error, const char *call) {
    if (error != cudaSuccess) die(std::string(call) + ": " + cudaGetErrorString(error));
}

void use_domain(const std::string &domain) {
    const size_t colon = domain.find(':');
    want(cudaSetDevice(colon == std::string::npos ? 0 : atoi(domain.c_str() + colon + 1)), "cudaSetDevice");
    want(cudaFree(nullptr), "cudaFree");
}

/* Boards are in the memory of the GPU while the kernel runs, and copied to the shared ones now and then. */
void launch(std::vector<Job> all, uint32_t threads) {
    const size_t count = all.size();
    Board *on_device = nullptr;
    Job *jobs_on_device = nullptr;
    cudaStream_t kernels, copies;
    want(cudaMalloc(&on_device, count * sizeof(Board)), "cudaMalloc");
    want(cudaMalloc(&jobs_on_device, count * sizeof(Job)), "cudaMalloc");
    want(cudaMemset(on_device, 0, count * sizeof(Board)), "cudaMemset");
    want(cudaStreamCreateWithFlags(&kernels, cudaStreamNonBlocking), "cudaStreamCreate");
    want(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "cudaStreamCreate");
    std::vector<Board *> shared;
    for (size_t i = 0; i < count; ++i) {
        shared.push_back(all[i].board);
        all[i].board = on_device + i;
    }
    want(cudaMemcpy(jobs_on_device, all.data(), count * sizeof(Job), cudaMemcpyHostToDevice), "cudaMemcpy");
    want(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    run_jobs<<<static_cast<unsigned>(count), threads, 0, kernels>>>(jobs_on_device);
    want(cudaGetLastError(), "launch");
    std::unique_ptr<Board> copy(new Board);
    for (bool is_done = false; !is_done;) {
        const cudaError_t state = cudaStreamQuery(kernels);
        if (state != cudaErrorNotReady) want(state, "kernel");
        is_done = state == cudaSuccess;
        for (size_t i = 0; i < count; ++i) {
            const size_t bytes = is_done ? sizeof(Board) : offsetof(Board, samples);
            want(cudaMemcpyAsync(copy.get(), on_device + i, bytes, cudaMemcpyDeviceToHost, copies), "cudaMemcpyAsync");
            want(cudaStreamSynchronize(copies), "cudaStreamSynchronize");
            Board *to = shared[i];
            if (is_done) memcpy(to->samples, copy->samples, sizeof(Board) - offsetof(Board, samples));
            to->ticks = copy->ticks;
            to->alone = copy->alone;
            to->nanoseconds = copy->nanoseconds;
            to->samples_count = copy->samples_count;
            to->status = copy->status;
            jobs::Counts counts = copy->counts[copy->current & 1];
            const uint64_t other = 1 - (to->current & 1);
            to->counts[other] = counts;
            __atomic_store_n(&to->current, other, __ATOMIC_RELEASE);
            __atomic_store_n(&to->is_running, copy->is_running, __ATOMIC_RELEASE);
        }
        if (!is_done) sleep_ms(5);
    }
    want(cudaFree(on_device), "cudaFree");
    want(cudaFree(jobs_on_device), "cudaFree");
}

#else

constexpr const char *back_end = "host";
constexpr uint32_t default_threads = 2;
constexpr uint32_t threads_max = 2;

struct SharedCount {
    std::atomic<uint64_t> *wrong;
    void add(uint64_t more) { wrong->fetch_add(more); }
    template <class Group>
    uint64_t take(const Group &group) {
        const uint64_t taken = wrong->load();
        group.sync();
        if (group.thread_rank() == 0) wrong->store(0);
        return taken;
    }
};

void use_domain(const std::string &) {}

void launch(const std::vector<Job> &all, uint32_t threads) {
    std::vector<std::thread> lanes;
    std::vector<std::unique_ptr<lanes::Block>> blocks;
    std::vector<std::unique_ptr<std::atomic<uint64_t>>> wrong;
    for (const Job &job : all) {
        blocks.emplace_back(new lanes::Block(threads));
        wrong.emplace_back(new std::atomic<uint64_t>(0));
        for (uint32_t rank = 0; rank < threads; ++rank)
            lanes.emplace_back([&job, rank, block = blocks.back().get(), wrong = wrong.back().get()] {
                SharedCount count{wrong};
                jobs::run(lanes::Group(block, rank), job, &count);
            });
    }
    for (std::thread &lane : lanes) lane.join();
}

#endif

/* A topic of this process, and the numbers of its descriptors in others. */
struct Topic {
    rgaps_device_mapping_t *mapping = nullptr;
    int descriptors[3];

    static Topic create(const std::string &domain, uint32_t depth, uint32_t blocks, uint64_t bytes) {
        Topic topic;
        want(rgaps_device_topic_create(domain.c_str(), depth, blocks, bytes, &topic.mapping), "rgaps_device_topic_create");
        want(rgaps_device_mapping_descriptors(topic.mapping, topic.descriptors), "rgaps_device_mapping_descriptors");
        for (int fd : topic.descriptors) fcntl(fd, F_SETFD, 0); /* for the processes that this one starts */
        return topic;
    }
    static Topic open(const std::string &domain, const std::string &numbers, int role) {
        Topic topic;
        if (numbers[0] == '@') {
            want(rgaps_device_topic_attach(nullptr, numbers.c_str() + 1, domain.c_str(), role, &topic.mapping),
                 "rgaps_device_topic_attach");
            return topic;
        }
        if (sscanf(numbers.c_str(), "%d,%d,%d", topic.descriptors, topic.descriptors + 1, topic.descriptors + 2) != 3)
            die("three descriptors are wanted");
        want(rgaps_device_topic_open(domain.c_str(), topic.descriptors, role, &topic.mapping), "rgaps_device_topic_open");
        return topic;
    }
    std::string numbers() const {
        return std::to_string(descriptors[0]) + "," + std::to_string(descriptors[1]) + "," + std::to_string(descriptors[2]);
    }
    rgaps_device_topic_t view() const {
        rgaps_device_topic_t view;
        want(rgaps_device_mapping_topic(mapping, &view), "rgaps_device_mapping_topic");
        return view;
    }
    uint32_t seat() const {
        uint32_t seat;
        want(rgaps_device_mapping_take_seat(mapping, &seat), "rgaps_device_mapping_take_seat");
        return seat;
    }
};

constexpr uint32_t own_seat = ~uint32_t(0);

/* One process with one launch; what it needs to know is on its command line. */
struct Work {
    std::string program = "work"; /* or bridge, which forwards the topic to `name` */
    std::string task; /* publish, receive, ping, pong */
    std::string domain, name;
    std::vector<std::string> topics, back; /* descriptors of each block's, or @ and a name */
    std::vector<uint32_t> seats; /* or own_seat: the process takes one */
    int boards_fd = -1;
    size_t boards_count = 0, board = 0; /* the first block's */
    uint64_t messages = 0, bytes = 8;
    uint32_t mode = 0, threads = default_threads;
    bool is_varied = false, is_whole = false;

    std::vector<std::string> arguments() const {
        const auto joined = [](const auto &list, auto text) {
            std::string all;
            for (const auto &one : list) all += (all.empty() ? "" : ";") + text(one);
            return all;
        };
        const auto same = [](const std::string &text) { return text; };
        const auto number = [](uint32_t value) { return std::to_string(value); };
        return {program,      "--task",    task,
                "--name",     name,        "--domain",   domain,      "--topics",
                joined(topics, same),      "--back",
                joined(back, same),        "--seats",
                joined(seats, number),     "--boards",
                std::to_string(boards_fd), "--boards-count",
                std::to_string(boards_count), "--board",
                std::to_string(board),     "--messages",
                std::to_string(messages),  "--bytes",
                std::to_string(bytes),     "--mode",
                std::to_string(mode),      "--threads",
                std::to_string(threads),   "--varied",
                is_varied ? "1" : "0",     "--whole",
                is_whole ? "1" : "0"};
    }
};

std::vector<std::string> split(const std::string &text) {
    std::vector<std::string> parts;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(';', at), text.size());
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

int work(const Options &options) {
    const std::map<std::string, Task> tasks = {
        {"publish", Task::publish},     {"receive", Task::receive},     {"ping", Task::ping}, {"pong", Task::pong},
        {"bare_ping", Task::bare_ping}, {"bare_pong", Task::bare_pong}, {"hang", Task::hang}};
    const std::string name = options.text("--task", "");
    const std::string domain = options.text("--domain", "");
    const Task task = tasks.at(name);
    const bool publishes = task == Task::publish || task == Task::ping || task == Task::bare_ping;
    use_domain(domain);
    const auto topics = split(options.text("--topics", "")), back = split(options.text("--back", ""));
    const auto seats = split(options.text("--seats", ""));
    Board *boards = map_boards(int(options.number("--boards", -1)), size_t(options.number("--boards-count", 0)));
    std::vector<Job> all;
    std::vector<Topic> open;
    for (size_t i = 0; i < topics.size(); ++i) {
        Job job{};
        open.push_back(Topic::open(domain, topics[i], publishes ? RGAPS_DEVICE_PUBLISHER : RGAPS_DEVICE_SUBSCRIBER));
        job.topic = open.back().view();
        if (i < back.size()) {
            open.push_back(Topic::open(domain, back[i], publishes ? RGAPS_DEVICE_SUBSCRIBER : RGAPS_DEVICE_PUBLISHER));
            job.back = open.back().view();
        }
        job.board = boards + options.number("--board", 0) + i;
        job.messages = uint64_t(options.number("--messages", 0));
        job.bytes = uint64_t(options.number("--bytes", 8));
        job.seat = i < seats.size() ? uint32_t(strtoul(seats[i].c_str(), nullptr, 10)) : 0;
        if (job.seat == own_seat) job.seat = open.back().seat();
        job.board->seat = job.seat;
        job.mode = uint32_t(options.number("--mode", 0));
        job.task = task;
        job.is_varied = options.number("--varied", 0) != 0;
        job.is_whole = options.number("--whole", 0) != 0;
        all.push_back(job);
    }
    launch(all, uint32_t(options.number("--threads", default_threads)));
    for (const Topic &topic : open) rgaps_device_mapping_destroy(topic.mapping);
    return 0;
}

pid_t start(const Work &work) {
    std::vector<std::string> texts = work.arguments();
    texts.insert(texts.begin(), "check");
    std::vector<char *> arguments;
    for (std::string &text : texts) arguments.push_back(&text[0]);
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) die("fork failed");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        execv("/proc/self/exe", arguments.data());
        _exit(127);
    }
    return child;
}

/* Waits for a process's end; whether it ended by itself and well. */
bool ended_well(pid_t child, double limit_s) {
    const double until = seconds() + limit_s;
    int status = 0;
    pid_t done;
    while ((done = waitpid(child, &status, WNOHANG)) == 0 && seconds() < until) sleep_ms(2);
    if (done == 0) {
        fprintf(stderr, "check: process %d does not end\n", child);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool wait_until_running(const Board &board, pid_t child, double limit_s) {
    const double until = seconds() + limit_s;
    while (!__atomic_load_n(&board.is_running, __ATOMIC_ACQUIRE)) {
        if (seconds() > until || kill(child, 0) != 0) return false;
        sleep_ms(1);
    }
    return true;
}

double percentile(std::vector<uint32_t> &samples, double part) {
    if (samples.empty()) return 0;
    const size_t at = std::min(samples.size() - 1, size_t(part * double(samples.size())));
    std::nth_element(samples.begin(), samples.begin() + long(at), samples.end());
    return samples[at];
}

/* The median of each thing that was timed, in ns, as a JSON object. */
std::string medians_ns(const Board &board, const std::vector<const char *> &names) {
    const double ns_per_tick = board.ticks ? double(board.nanoseconds) / double(board.ticks) : 0;
    std::string text;
    for (size_t i = 0; i < names.size(); ++i) {
        std::vector<uint32_t> samples(board.timed[i], board.timed[i] + std::min<uint64_t>(board.timed_count, jobs::steps_max));
        text += (i ? ",\"" : "\"") + std::string(names[i]) + "\":" + std::to_string(long(percentile(samples, 0.5) * ns_per_tick + 0.5));
    }
    return "{" + text + "}";
}

const std::vector<const char *> step_names = {"wait", "read", "loan", "fill", "publish", "release"};
const std::vector<const char *> access_names = {"load",  "load_acquire", "fetch_or", "store_release", "store_and_store_release",
                                                "fence", "fence_all",    "fence_of_one_gpu", "load_of_host"};

/* Lets every kernel end, after one has failed. */
void stop_all(const Topic &topic) {
    for (uint32_t endpoint = 0; endpoint <= RGAPS_DEVICE_PUBLISHER_ENDPOINT; ++endpoint)
        want(rgaps_device_mapping_stop(topic.mapping, endpoint), "rgaps_device_mapping_stop");
}

/* Blocks that are neither in the ring nor free, with nobody running. */
uint64_t lost_blocks(const Topic &topic, Board *board) {
    memset(board, 0, sizeof *board);
    Job job{};
    job.topic = topic.view();
    job.board = board;
    job.task = Task::audit;
    launch({job}, default_threads);
    return counts_of(*board).corrupt;
}

/* The demo: a publisher, a reliable and a best-effort subscriber, killed at random; and one that never releases, which is evicted
 * before. */
struct Member {
    const char *name;
    Work work;
    bool is_publisher;
    pid_t process = 0;
    uint32_t seat = 0;
    long lives = 0, kills = 0;
    uint64_t messages = 0, missed = 0, corrupt = 0, lost = 0;

    /* What a life that is over has found. A killed one has told whole counts, up to its last message but one. */
    void account(const Board &board) {
        const Counts counts = counts_of(board);
        ++lives;
        messages += counts.messages;
        missed += counts.missed;
        corrupt += counts.corrupt;
        const uint64_t seen = counts.last + 1 - counts.first;
        if (!is_publisher && counts.first > 0) {
            lost += seen > counts.messages + counts.missed ? seen - counts.messages - counts.missed : 0;
            /* The publisher waits for a reliable one. */
            if (work.mode & rgaps::device::reliable) lost += counts.missed;
        }
    }
};

/* Evicts a subscriber that has received something; whether that was told to it. */
bool evicted_and_told(const Topic &topic, const Board &board, pid_t process, uint32_t seat) {
    const double until = seconds() + 30;
    while (counts_of(board).messages == 0 && seconds() < until) sleep_ms(1);
    want(rgaps_device_mapping_evict(topic.mapping, seat), "rgaps_device_mapping_evict");
    const bool well = ended_well(process, 30);
    want(rgaps_device_mapping_leave_seat(topic.mapping, seat), "rgaps_device_mapping_leave_seat");
    const auto status = static_cast<int64_t>(board.status);
    printf("a subscriber that releases nothing was evicted after %llu messages, and told %lld (evicted is %lld)\n",
           static_cast<unsigned long long>(counts_of(board).messages), static_cast<long long>(status),
           static_cast<long long>(Status::evicted));
    return well && status == static_cast<int64_t>(Status::evicted);
}

int demo(const Options &options) {
    const std::string domain = options.text("--domain", back_end);
    const double length_s = double(options.number("--seconds", 10));
    const long kills = options.number("--kills", 40);
    const auto seed = uint64_t(options.number("--seed", 1));
    const uint64_t bytes = 4096;
    use_domain(domain);
    Topic topic = Topic::create(domain, 64, 80, bytes);
    Shared shared = make_boards(4);
    Member members[3] = {{"publisher", {}, true}, {"reliable subscriber", {}, false}, {"best-effort subscriber", {}, false}};
    std::vector<uint32_t> samples;
    const auto begin = [&](size_t number) {
        Member &member = members[number];
        memset(shared.boards + number, 0, sizeof(Board));
        if (!member.is_publisher) member.seat = topic.seat();
        member.work.task = member.is_publisher ? "publish" : "receive";
        member.work.domain = domain;
        member.work.topics = {topic.numbers()};
        member.work.seats = {member.seat};
        member.work.boards_fd = shared.fd;
        member.work.boards_count = 4;
        member.work.board = number;
        member.work.bytes = bytes;
        member.work.is_varied = true;
        member.process = start(member.work);
    };
    const auto end = [&](size_t number) {
        Member &member = members[number];
        member.account(shared.boards[number]);
        const Board &board = shared.boards[number];
        if (!member.is_publisher) {
            samples.insert(samples.end(), board.samples, board.samples + std::min<uint64_t>(board.samples_count, jobs::samples_max));
            want(rgaps_device_mapping_leave_seat(topic.mapping, member.seat), "rgaps_device_mapping_leave_seat");
        }
    };
    members[1].work.mode = rgaps::device::reliable;
    bool ok = true;
    begin(1);
    begin(2);
    for (size_t number : {1, 2}) ok &= wait_until_running(shared.boards[number], members[number].process, 30);
    Work hung = members[1].work;
    const uint32_t hung_seat = topic.seat();
    hung.task = "hang";
    hung.seats = {hung_seat};
    hung.board = 3;
    const pid_t hung_process = start(hung);
    ok &= wait_until_running(shared.boards[3], hung_process, 30);
    begin(0);
    ok &= evicted_and_told(topic, shared.boards[3], hung_process, hung_seat);
    std::mt19937_64 random(seed);
    const double begun = seconds();
    for (long killed = 0; killed < kills; ++killed) {
        const double next = begun + length_s * (double(killed) + double(random() % 1000) / 1000) / double(kills);
        while (seconds() < next) sleep_ms(1);
        const size_t number = random() % 3;
        Member &member = members[number];
        kill(member.process, SIGKILL);
        waitpid(member.process, nullptr, 0);
        ++member.kills;
        end(number);
        begin(number);
    }
    while (seconds() < begun + length_s) sleep_ms(1);
    /* The publisher first; then subscribers take what is left. */
    for (size_t number : {0, 1, 2}) {
        Member &member = members[number];
        const uint32_t endpoint = member.is_publisher ? RGAPS_DEVICE_PUBLISHER_ENDPOINT : member.seat;
        if (!member.is_publisher) ok &= wait_until_running(shared.boards[number], member.process, 30);
        want(rgaps_device_mapping_stop(topic.mapping, endpoint), "rgaps_device_mapping_stop");
        ok &= ended_well(member.process, 30);
        const auto status = static_cast<int64_t>(shared.boards[number].status);
        const int64_t wanted = int64_t(member.is_publisher ? Status::stopped : Status::empty);
        if (status != wanted) {
            printf("%s ended with %lld\n", member.name, static_cast<long long>(status));
            ok = false;
        }
        uint64_t newest = 0;
        want(rgaps_device_mapping_newest(topic.mapping, &newest), "rgaps_device_mapping_newest");
        /* Whoever ended by itself has got all. */
        if (!member.is_publisher) member.lost += newest - std::min(newest, counts_of(shared.boards[number]).last);
        end(number);
    }
    uint64_t newest = 0, received = 0, lost = 0, corrupt = 0;
    want(rgaps_device_mapping_newest(topic.mapping, &newest), "rgaps_device_mapping_newest");
    const uint64_t leaked = lost_blocks(topic, shared.boards);
    printf("%-24s %6s %6s %12s %12s %8s %8s\n", "", "lives", "kills", "messages", "missed", "lost", "corrupt");
    for (const Member &member : members) {
        printf("%-24s %6ld %6ld %12llu %12llu %8llu %8llu\n", member.name, member.lives, member.kills,
               static_cast<unsigned long long>(member.messages), static_cast<unsigned long long>(member.missed),
               static_cast<unsigned long long>(member.lost), static_cast<unsigned long long>(member.corrupt));
        if (!member.is_publisher) received += member.messages;
        lost += member.lost;
        corrupt += member.corrupt;
    }
    const double p50_us = percentile(samples, 0.5) / 1000, p99_us = percentile(samples, 0.99) / 1000;
    printf("%llu messages published, of up to %llu bytes; one way p50 %.2f us, p99 %.2f us; %llu blocks leaked\n",
           static_cast<unsigned long long>(newest), static_cast<unsigned long long>(bytes), p50_us, p99_us,
           static_cast<unsigned long long>(leaked));
    ok &= lost == 0 && corrupt == 0 && leaked == 0 && received > 0;
    printf("{\"back_end\":\"%s\",\"messages\":%llu,\"lost\":%llu,\"corrupt\":%llu,\"p50_us\":%.3f,\"received\":%llu,"
           "\"kills\":%ld,\"leaked_blocks\":%llu,\"seed\":%llu,\"ok\":%s}\n",
           back_end, static_cast<unsigned long long>(newest), static_cast<unsigned long long>(lost),
           static_cast<unsigned long long>(corrupt), p50_us, static_cast<unsigned long long>(received), kills,
           static_cast<unsigned long long>(leaked), static_cast<unsigned long long>(seed), ok ? "true" : "false");
    rgaps_device_mapping_destroy(topic.mapping);
    return ok ? 0 : 1;
}

uint32_t threads_for(uint64_t bytes) { return bytes > 256 ? default_threads : std::min(32u, threads_max); }

/* Round trips between two processes, whose other subscribers receive and verify, too; or those of bare words. Answers have 8
 * bytes, so half of a round trip is one way for messages of 8 bytes only. */
int latency(const Options &options, bool is_bare) {
    const std::string domain = options.text("--domain", back_end), peer = options.text("--peer", domain.c_str());
    const auto bytes = uint64_t(options.number("--bytes", 8)), messages = uint64_t(options.number("--messages", 20000));
    const auto subscribers = size_t(options.number("--subscribers", 1));
    use_domain(domain);
    /* Topics lie where they are received. */
    Topic there = Topic::create(peer, 16, 32, bytes), back = Topic::create(domain, 16, 32, 8);
    Shared shared = make_boards(subscribers + 1);
    Work work;
    work.boards_fd = shared.fd;
    work.boards_count = subscribers + 1;
    work.messages = messages;
    work.bytes = bytes;
    work.threads = uint32_t(options.number("--threads", bytes > 1024 ? threads_max : threads_for(bytes)));
    work.topics = {there.numbers()};
    bool ok = true;
    std::vector<pid_t> processes;
    for (size_t i = 1; i <= subscribers; ++i) {
        Work reader = work;
        reader.domain = peer;
        reader.board = i;
        reader.mode = rgaps::device::reliable;
        reader.seats = {there.seat()};
        reader.task = is_bare ? "bare_pong" : i == subscribers ? "pong" : "receive";
        if (i == subscribers) reader.back = {back.numbers()};
        /* Their first word is no time, so `receive` verifies all but that. */
        processes.push_back(start(reader));
        ok &= wait_until_running(shared.boards[i], processes.back(), 60);
    }
    work.domain = domain;
    work.task = is_bare ? "bare_ping" : "ping";
    work.back = {back.numbers()};
    work.seats = {back.seat()};
    processes.push_back(start(work));
    /* The one that waits for answers ends first. */
    const bool pinged = ended_well(processes.back(), 120) && shared.boards[0].status == 0;
    processes.pop_back();
    if (!pinged) stop_all(there), stop_all(back);
    ok &= pinged;
    for (pid_t process : processes) ok &= ended_well(process, 60);
    Board &board = shared.boards[0];
    uint64_t corrupt = 0, lost = 0;
    for (size_t i = 0; i <= subscribers; ++i) {
        const Counts counts = counts_of(shared.boards[i]);
        corrupt += counts.corrupt;
        lost += messages - std::min(messages, counts.messages);
        ok &= shared.boards[i].status == 0;
    }
    std::vector<uint32_t> samples(board.samples, board.samples + std::min<uint64_t>(board.samples_count, jobs::samples_max));
    const double ns_per_tick = board.ticks ? double(board.nanoseconds) / double(board.ticks) : 0;
    const auto round_trip_us = [&](double part) { return percentile(samples, part) * ns_per_tick / 1000; };
    const double p50 = round_trip_us(0.5), p99 = round_trip_us(0.99), least = round_trip_us(0);
    ok &= corrupt == 0 && lost == 0 && !samples.empty();
    printf("{\"back_end\":\"%s\",\"way\":\"%s\",\"domain\":\"%s\",\"peer\":\"%s\",\"bytes\":%llu,\"subscribers\":%zu,"
           "\"messages\":%llu,\"round_trip_min_us\":%.3f,\"round_trip_p50_us\":%.3f,\"round_trip_p99_us\":%.3f,"
           "\"half_round_trip_p50_us\":%.3f,\"threads\":%u,\"alone\":[%llu,%llu],\"ping_ns\":%s,\"pong_ns\":%s,\"lost\":%llu,\"corrupt\":%llu,"
           "\"ok\":%s}\n",
           back_end, is_bare ? "bare" : "topic", domain.c_str(), peer.c_str(), static_cast<unsigned long long>(bytes), subscribers,
           static_cast<unsigned long long>(messages), least, p50, p99, p50 / 2, work.threads,
           static_cast<unsigned long long>(board.alone), static_cast<unsigned long long>(shared.boards[subscribers].alone),
           medians_ns(board, step_names).c_str(),
           medians_ns(shared.boards[subscribers], step_names).c_str(), static_cast<unsigned long long>(lost),
           static_cast<unsigned long long>(corrupt), ok ? "true" : "false");
    return ok ? 0 : 1;
}

/* What one access costs one thread. */
int accesses(const Options &options) {
    const std::string domain = options.text("--domain", back_end), peer = options.text("--peer", domain.c_str());
    use_domain(domain);
    const Topic made = Topic::create(peer, 16, 32, 8);
    const Topic topic = Topic::open(domain, made.numbers(), RGAPS_DEVICE_PUBLISHER);
    Shared shared = make_boards(1);
    Job job{};
    job.topic = topic.view();
    job.board = shared.boards;
    job.messages = 64;
    job.task = Task::accesses;
    launch({job}, 1);
    printf("{\"back_end\":\"%s\",\"domain\":\"%s\",\"peer\":\"%s\",\"ns\":%s,\"ok\":true}\n", back_end, domain.c_str(),
           peer.c_str(), medians_ns(shared.boards[0], access_names).c_str());
    rgaps_device_mapping_destroy(topic.mapping);
    rgaps_device_mapping_destroy(made.mapping);
    return 0;
}

/* As fast as it goes: each block of the publisher's kernel has a topic, and each block of the subscriber's receives one. */
int rate(const Options &options) {
    const std::string domain = options.text("--domain", back_end), peer = options.text("--peer", domain.c_str());
    const auto bytes = uint64_t(options.number("--bytes", 64)), messages = uint64_t(options.number("--messages", 100000));
    const auto blocks = size_t(options.number("--blocks", 1));
    use_domain(domain);
    Shared shared = make_boards(2 * blocks);
    Work publisher, subscriber;
    std::vector<Topic> topics;
    for (size_t i = 0; i < blocks; ++i) {
        topics.push_back(Topic::create(peer, 64, 96, bytes));
        publisher.topics.push_back(topics.back().numbers());
        subscriber.seats.push_back(topics.back().seat());
    }
    publisher.boards_fd = shared.fd;
    publisher.boards_count = 2 * blocks;
    publisher.messages = messages;
    publisher.bytes = bytes;
    publisher.threads = uint32_t(options.number("--threads", threads_for(bytes)));
    publisher.task = "publish";
    subscriber.topics = publisher.topics;
    subscriber.boards_fd = shared.fd;
    subscriber.boards_count = 2 * blocks;
    subscriber.messages = messages;
    subscriber.bytes = bytes;
    subscriber.threads = publisher.threads;
    subscriber.task = "receive";
    subscriber.mode = rgaps::device::reliable;
    publisher.board = blocks;
    publisher.domain = domain;
    subscriber.domain = peer;
    bool ok = true;
    const pid_t reads = start(subscriber);
    for (size_t i = 0; i < blocks; ++i) ok &= wait_until_running(shared.boards[i], reads, 60);
    const pid_t writes = start(publisher);
    ok &= ended_well(writes, 120);
    if (!ok)
        for (const Topic &topic : topics) stop_all(topic);
    ok &= ended_well(reads, 60);
    uint64_t corrupt = 0, lost = 0, received = 0, longest_ns = 1;
    for (size_t i = 0; i < blocks; ++i) {
        const Counts counts = counts_of(shared.boards[i]);
        corrupt += counts.corrupt;
        received += counts.messages;
        lost += messages - std::min(messages, counts.messages);
        longest_ns = std::max(longest_ns, shared.boards[i].nanoseconds);
        ok &= shared.boards[i].status == 0;
    }
    ok &= corrupt == 0 && lost == 0;
    const double per_second = double(received) * 1e9 / double(longest_ns);
    printf("{\"back_end\":\"%s\",\"domain\":\"%s\",\"peer\":\"%s\",\"bytes\":%llu,\"blocks\":%zu,\"messages\":%llu,"
           "\"messages_per_s\":%.0f,\"gib_per_s\":%.3f,\"lost\":%llu,\"corrupt\":%llu,\"ok\":%s}\n",
           back_end, domain.c_str(), peer.c_str(), static_cast<unsigned long long>(bytes), blocks,
           static_cast<unsigned long long>(received), per_second, per_second * double(bytes) / double(1 << 30),
           static_cast<unsigned long long>(lost), static_cast<unsigned long long>(corrupt), ok ? "true" : "false");
    return ok ? 0 : 1;
}

#include "meet.h"
#include "far.h"
#include "seats.h"

}  // namespace

int main(int count, char **arguments) {
    const std::string command = count > 1 ? arguments[1] : "";
    Options options;
    for (int i = 2; i + 1 < count; i += 2) options.values[arguments[i]] = arguments[i + 1];
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (command == "work") return work(options);
    if (command == "demo") return demo(options);
    if (command == "latency") return latency(options, false);
    if (command == "bare") return latency(options, true);
    if (command == "rate") return rate(options);
    if (command == "accesses") return accesses(options);
    if (command == "meet") return meet(options);
    if (command == "bridge") return bridge(options);
    if (command == "seats") return seats(options);
    if (command == "far-publish") return far_publish(options);
    if (command == "far-receive") return far_receive(options);
    die("usage: check demo|latency|bare|rate|accesses|meet|seats|far-publish|far-receive [--domain D] ...; see the top of tests/device/check.cu");
}
