"""All cases in turns, in the same processes: rounds, each in an order of its own, so that what changes with time changes every way alike."""
import random
import time

from pool import Failed

SEED = 1


class Crew:
    """Processes that are started anew after a failure, and what was measured of them alone."""

    def __init__(self, make):
        self.make = make
        self.pool = None
        self.warm = set()
        self.alone = {}

    def ready(self, key, measure):
        """The pool, with what `measure` did in it: models are built, graphs recorded. Its first result is kept."""
        if self.pool is None:
            self.pool = self.make()
            self.warm = set()
        if key not in self.warm:
            found = measure(self.pool)
            self.warm.add(key)
            self.alone.setdefault(key, found)
        return self.pool

    def close(self):
        if self.pool is not None:
            self.pool.close()
        self.pool = None


def take_turns(crew, cases, count, seconds_max, attempt, say):
    """Calls attempt(round, number, case) for every case in each round, and yields the case and what failed. What failed is not tried again, since each
    try may cost a minute. A round is begun only if it will end within `seconds_max` of the begin, going by the last one."""
    order, left = random.Random(SEED), list(cases)
    begun = time.monotonic()
    last = 0
    for number_of_round in range(count):
        round_begun = time.monotonic()
        if round_begun - begun + last > seconds_max:
            break
        order.shuffle(left)
        for number, case in enumerate(list(left)):
            try:
                how = attempt(number_of_round, number, case)
            except Failed as error:
                left.remove(case)
                crew.close()
                how = str(error)
            if how:
                yield case, how
        last = time.monotonic() - round_begun
        say(f"round {number_of_round + 1}: {last:.1f} s")
    crew.close()
