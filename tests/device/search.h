/*
 * Searches scenarios with the explorer, as tests/device/model.cpp and tests/rdma/model.cpp do.
 *
 * Each is searched at random for a moment, exhaustively with few preemptions, and at random again. The last line is JSON; the exit
 * code is 1 if a scenario failed.
 */
#pragma once
#include "explorer.h"

#include <time.h>

namespace model {

struct Scenario {
    const char *name;
    void (*run)();
    int preemptions;
};
/* Of this process, so that a search does not depend on what else runs. */
inline double seconds() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return double(now.tv_sec) + double(now.tv_nsec) / 1e9;
}

template <size_t Count>
int search(const Scenario (&scenarios)[Count], int count, char **arguments) {
    std::string only;
    double budget = 4;
    uint64_t seed = 1;
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = arguments[i];
        if (name == "--only") only = arguments[i + 1];
        if (name == "--seconds") budget = atof(arguments[i + 1]);
        if (name == "--seed") seed = strtoull(arguments[i + 1], nullptr, 10);
    }
    bool failed = false;
    std::string json;
    for (const Scenario &scenario : scenarios) {
        if (!only.empty() && only != scenario.name) continue;
        model::Explorer &all = explorer();
        all.failure.clear();
        all.is_complete = false;
        const double begun = seconds();
        long exhaustive = 0, random = 0;
        int complete = -1;
        /* Some at random first, which find most mutants soon; then half of the time for each way. */
        all.preemptions_max = 1 << 20;
        random += all.sample(scenario.run, 5000, seed);
        for (int preemptions = 0; preemptions <= scenario.preemptions && all.failure.empty(); ++preemptions) {
            all.preemptions_max = preemptions;
            all.is_complete = false;
            all.stop = [&] { return seconds() - begun > budget / 2; };
            exhaustive += all.exhaust(scenario.run);
            if (!all.is_complete) break;
            complete = preemptions;
        }
        all.preemptions_max = 1 << 20;
        while (all.failure.empty() && seconds() - begun < budget) random += all.sample(scenario.run, 200, seed + random);
        printf("%-24s %9ld exhaustive (whole up to %d preemptions), %9ld random: %s\n", scenario.name, exhaustive, complete,
               random, all.failure.empty() ? "ok" : all.failure.c_str());
        failed = !all.failure.empty();
        if (!json.empty()) json += ",";
        json += std::string("{\"name\":\"") + scenario.name + "\",\"exhaustive\":" + std::to_string(exhaustive) +
                ",\"whole_up_to_preemptions\":" + std::to_string(complete) + ",\"random\":" + std::to_string(random) +
                ",\"failure\":\"" + all.failure + "\"}";
        if (failed) break;
    }
    printf("{\"seed\":%llu,\"scenarios\":[%s]}\n", static_cast<unsigned long long>(seed), json.c_str());
    return failed ? 1 : 0;
}

}  // namespace model
