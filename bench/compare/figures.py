"""Figures of what was measured; needs no torch."""

def rank(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


def times(values_ns):
    """What is told of a distribution."""
    return {f"p{part}_us": round(rank(values_ns, part / 100) / 1000, 2) for part in (50, 99)} | {
        "min_us": round(min(values_ns) / 1000, 2),
        "max_us": round(max(values_ns) / 1000, 2),
    }
